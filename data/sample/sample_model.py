"""The folder of the tiny hybrid model: tokenizer, chat template, configuration. No weights.

Why: its shape is that of the large hybrids (three gated-delta layers to one of full attention, grouped heads in both),
so all that can go wrong with them can go wrong here, in a second and without a GPU.

Example: `write_model_folder(Path("tiny"), train_tokenizer(["some text", "and more"] * 9))`.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB_SIZE = 4096  # the added tokens counted
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = (*SPECIAL_TOKENS, "<think>", "</think>", "<tool_call>", "</tool_call>")
# The way of splitting that the Qwen family uses: contractions, words with one leading mark, single digits, punctuation,
# line ends, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = r"""{#- ChatML. Content is used as it is: nothing is stripped, so masks can be laid over the text. -#}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- 'You may call these tools:' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role: ' + message.role) }}
    {%- endif %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function if call.function else call %}
            {{- '\n<tool_call>\n' + ({'name': function.name, 'arguments': function.arguments} | tojson) }}
            {{- '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` entries, the added tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(ADDED_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    roles = ["system\n", "user\n", "assistant\n", "tool\n"] * 100  # so that each is one token in the template
    tokenizer.train_from_iterator([*texts, *roles], trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE - len(ADDED_TOKENS):
        raise ValueError(f"too little text: only {tokenizer.get_vocab_size()} entries were found")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    others = ADDED_TOKENS[len(SPECIAL_TOKENS) :]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in others])
    return tokenizer


def model_config(pad_id: int, eos_id: int) -> dict[str, object]:
    """A Qwen3.5-style text model of 3 million parameters."""
    layers = (["linear_attention"] * 3 + ["full_attention"]) * 2
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": eos_id,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 160,
        "initializer_range": 0.02,
        "intermediate_size": 384,
        "layer_types": layers,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_5_text",
        "num_attention_heads": 4,
        "num_hidden_layers": len(layers),
        "num_key_value_heads": 2,
        "pad_token_id": pad_id,
        "rms_norm_eps": 1e-06,
        # A quarter of a head's 64 numbers turns: 16, that is 8 pairs, which the three axes share as 3 + 3 + 2.
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }


def write_model_folder(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the folder's five files."""
    ids = tokenizer.get_vocab()
    pad_id, eos_id = ids["<|endoftext|>"], ids["<|im_end|>"]
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, object] = {
        "config.json": model_config(pad_id, eos_id),
        "generation_config.json": {
            "do_sample": True,
            "eos_token_id": [eos_id, pad_id],
            "pad_token_id": pad_id,
            "temperature": 0.8,
            "top_p": 0.95,
        },
        "tokenizer_config.json": {
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "model_max_length": 32768,
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
    }
    for name, content in files.items():
        (folder / name).write_bytes((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
    (folder / "tokenizer.json").write_bytes((tokenizer.to_str(pretty=False) + "\n").encode())
    (folder / "chat_template.jinja").write_bytes(CHAT_TEMPLATE.encode())
