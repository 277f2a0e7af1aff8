"""The config of a 27B hybrid: 64 layers, three of the gated delta rule to one of full attention, dense, a vocabulary of 248,320."""

HYBRID_27B: dict[str, object] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 5_120,
    "intermediate_size": 17_408,
    "num_hidden_layers": 64,
    "full_attention_interval": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "eos_token_id": 1,
    "dtype": "bfloat16",
}


def parameters_27b() -> int:
    """By hand: embedding and head; of a block the MLP and two norms; of its mixer the projections, convolution, gates and norms."""
    hidden, mlp, heads, keys, width = 5_120, 17_408, 24, 4, 256
    block = 3 * hidden * mlp + 2 * hidden
    attention = hidden * (2 * heads + 2 * keys) * width + heads * width * hidden + 2 * width
    key, value = 16 * 128, 48 * 128
    mixed = 2 * key + value
    delta = hidden * (mixed + value + 2 * 48) + value * hidden + mixed * 4 + 2 * 48 + 128
    return 2 * 248_320 * hidden + hidden + 64 * block + 16 * attention + 48 * delta
