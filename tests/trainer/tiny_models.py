"""Tiny random models of every supported family, as packed models and as the library's own, with the same weights."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trainer.model import PackedModel, load_model

VOCABULARY = 61
_BASE: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_HYBRID: dict[str, object] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS: dict[str, object] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_MAMBA2: dict[str, object] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_chunk_size": 16,
    "time_step_limit": [0.3, 2.0],
}
CONFIGS: dict[str, dict[str, object]] = {
    "qwen3_5": {"model_type": "qwen3_5_text", **_BASE, **_HYBRID},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **_BASE, **_HYBRID, **_EXPERTS},
    "qwen3_next": {"model_type": "qwen3_next", **_BASE, **_HYBRID, **_EXPERTS},
    "olmo_hybrid": {"model_type": "olmo_hybrid", **_BASE, **_HYBRID},
    "lfm2": {"model_type": "lfm2", **_BASE, "layer_types": ["conv", "full_attention"], "conv_bias": True},
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        **_BASE,
        **_EXPERTS,
        "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1,
    },
    "bamba": {"model_type": "bamba", **_BASE, **_MAMBA2, "attn_layer_indices": [1]},
    "granite_hybrid": {
        "model_type": "granitemoehybrid",
        **_BASE,
        **_MAMBA2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 4,
        "shared_intermediate_size": 16,
        "logits_scaling": 3.0,
        "embedding_multiplier": 2.0,
    },
    "falcon_h1": {
        "model_type": "falcon_h1",
        **_BASE,
        **_MAMBA2,
        "mamba_d_ssm": 64,
        "lm_head_multiplier": 0.5,
        "mamba_rms_norm": True,
        "ssm_in_multiplier": 1.5,
        "ssm_multipliers": [0.5, 1.5, 0.75, 1.25, 2.0],
    },
    "qwen3": {"model_type": "qwen3", **_BASE},
    "llama": {"model_type": "llama", **_BASE, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", **_BASE, "sliding_window": 7},
    "mistral_full": {"model_type": "mistral", **_BASE, "sliding_window": None},
    "gemma2": {
        "model_type": "gemma2",
        **_BASE,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **_BASE,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": 3.0,
    },
}
DENSE = [name for name in CONFIGS if "moe" not in name and name not in ("qwen3_next", "granite_hybrid")]


def write_config(folder: Path, config: dict[str, object]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def packed_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> PackedModel:
    source = write_config(folder / name, CONFIGS[name])
    return load_model(
        source, init="random", seed=0, dtype=dtype, kernels="auto", device="cpu", vocab_at_least=VOCABULARY
    )


def stock_model(packed: PackedModel, name: str, folder: Path) -> PreTrainedModel:
    """The library's own model and attention, untouched, with the packed model's weights."""
    config = AutoConfig.from_pretrained(write_config(folder / name, CONFIGS[name]))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.load_state_dict(packed.model.state_dict())
    return model.to(packed.head.dtype)


def alone(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    return lambda ids: model(input_ids=ids, use_cache=False).logits


def examples(lengths: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]
