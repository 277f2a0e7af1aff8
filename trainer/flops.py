"""Model FLOP utilisation: the arithmetic that the mathematics of a step needs ÷ what the device could have done in the time.

Counted, forward and backward (3 times forward), recomputation not: 6 for each weight of a matrix in a block and token; 6 for each weight of the head
and supervised token, since only these are projected; 6·heads·head_dim for each full-attention layer and unit of Σ len², causal, segment by
segment (Chowdhery et al., "PaLM", appendix B, with Σ len² of the segments in place of the row's square). Norms, gates, convolutions and the
recurrent state are left out, so the true figure is a little higher.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from trainer.model import PackedModel

# Dense bf16 products with fp32 sums, as the makers state them, in FLOP/s. The first name that the device's name contains counts.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12}


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """What a step costs: a token in the blocks, a supervised token in the head, a unit of Σ len² in attention."""

    token: float
    supervised: float
    square: float

    def step(self, *, tokens: float, supervised: float, squares: float) -> float:
        """FLOPs of forward and backward."""
        return self.token * tokens + self.supervised * supervised + self.square * squares


def flops_of(model: PackedModel) -> Flops | None:
    """Of a dense model; None for one whose tokens take different ways (experts, sliding windows): its count would be a guess."""
    config = model.model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(model.blocks)
    inside = [pair for block in model.blocks for pair in block.named_parameters()]
    experts = any(parameter.dim() > 2 and "conv1d" not in name for name, parameter in inside)
    if experts or not set(kinds) <= {"full_attention", "linear_attention"}:
        return None
    linear = [module for block in model.blocks for module in block.modules() if isinstance(module, nn.Linear)]
    matrices = sum(module.weight.numel() for module in linear)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Flops(
        token=6.0 * matrices,
        supervised=6.0 * model.head.numel(),
        square=6.0 * config.num_attention_heads * head_dim * kinds.count("full_attention"),
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of one device, None where they are not known: on CPU, for other dtypes than bf16, for a name that is not in the list."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in _PEAKS.items() if known in name), None)
