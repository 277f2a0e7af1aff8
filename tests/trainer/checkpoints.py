"""Tiny checkpoints as a hub has them: saved by the library from its own classes, in one file or several, in bfloat16."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.tiny_models import _BASE, _EXPERTS, _HYBRID, CONFIGS, VOCABULARY, write_config

# Families beside those of CONFIGS: experts under other names, two caps, positions that are learnt.
MORE: dict[str, dict[str, object]] = {
    "qwen3_moe": {"model_type": "qwen3_moe", **_BASE, **_EXPERTS},
    "mixtral": {"model_type": "mixtral", **_BASE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {
        "model_type": "gemma2",
        **_BASE,
        "sliding_window": 7,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "opt": {
        "model_type": "opt",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "ffn_dim": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 32,
        "attention_dropout": 0.0,
        "max_position_embeddings": 64,
    },
}
FAMILIES = {**CONFIGS, **MORE}


def saved(
    name: str, folder: Path, *, shard_size: str = "5GB", dtype: torch.dtype = torch.bfloat16, **changes: object
) -> Path:
    """Random weights of a family, as `save_pretrained` writes them."""
    config = AutoConfig.from_pretrained(write_config(folder / f"{name}-config", {**FAMILIES[name], **changes}))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        for parameter in model.parameters():  # norms start at 0 or 1, which a loader that forgets them gives too
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder / name, max_shard_size=shard_size)
    return folder / name


def vision_language(folder: Path, *, vocabulary: int = VOCABULARY, tied: bool = False) -> Path:
    """A whole `Qwen3_5ForConditionalGeneration` with a vision tower, and the `mtp` head that the library has no class for."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = {**_BASE, **_HYBRID, "vocab_size": vocabulary, "tie_word_embeddings": tied, "model_type": "qwen3_5_text"}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 4,
        "num_position_embeddings": 16,
    }
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Qwen3_5ForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"mtp.{name}": torch.randn(3, 4).bfloat16() for name in ("fc.weight", "norm.weight")}
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in parts.items() for name in part}
    size = sum(tensor.nbytes for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map})
    )
    return folder
