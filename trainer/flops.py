"""Model FLOP utilisation: the arithmetic that the mathematics of a step needs ÷ what the device could have done in the time.

Counted are products and the sums that go with them, forward and backward (3 times forward), recomputation not:

    matrices of blocks      6 a weight and token; of experts only the share that a token goes through (experts a token ÷ experts)
    short convolution       6 a weight and token
    full attention          3·heads·(key width + value width) a unit of Σ length², segment by segment, causal (half of the square)
    attention in a window   the same, with w·(2·length − w) for the square of a length above the window w
    gated delta rule        18·key width·value width a value head and token: Sᵀk, k ⊗ …, Sᵀq
    Mamba-2 scan            12·state·head width a head and token: b ⊗ x, Sᵀc
    head                    6 a weight and supervised token: only these are projected

Recurrences are counted as they are defined, token by token, not in chunks, which do more. Norms, gates, activations and softmax are left out, so
the true figure is a little higher. After Chowdhery et al., "PaLM", 2022, appendix B, with Σ length² of the segments in place of the row's square.

    flops = flops_of(model)
    flops.step(tokens=7000, supervised=3000, lengths=np.array([4000, 3000]))
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainer.isolate import SHAPE, WINDOW, AttentionShape
from trainer.isolate_delta import SegmentedDelta
from trainer.isolate_scan import SegmentedScan
from trainer.model import PackedModel
from trainer.refuse import mixers
from trainer.segmented import SegmentedLayer

# Dense products, as the makers state them, in FLOP/s; fp32 without TF32, which torch does not use unless told to. The first name that is a word of the
# device's name counts.
_PEAKS: tuple[tuple[str, dict[torch.dtype, float]], ...] = (
    ("GB200", {torch.bfloat16: 2500e12}),
    ("B200", {torch.bfloat16: 2250e12}),
    ("H200 NVL", {torch.bfloat16: 835e12, torch.float32: 60e12}),
    ("H200", {torch.bfloat16: 989e12, torch.float32: 67e12}),
    ("H100 PCIe", {torch.bfloat16: 756e12, torch.float32: 51e12}),
    ("H100 NVL", {torch.bfloat16: 835e12, torch.float32: 60e12}),
    ("H100", {torch.bfloat16: 989e12, torch.float32: 67e12}),
    ("H800", {torch.bfloat16: 989e12, torch.float32: 67e12}),
    ("A100", {torch.bfloat16: 312e12, torch.float32: 19.5e12}),
    ("A800", {torch.bfloat16: 312e12, torch.float32: 19.5e12}),
    ("L40S", {torch.bfloat16: 362e12, torch.float32: 91.6e12}),
    ("L4", {torch.bfloat16: 121e12, torch.float32: 30.3e12}),
    ("A10", {torch.bfloat16: 125e12, torch.float32: 31.2e12}),
    ("RTX 4090", {torch.bfloat16: 165.2e12, torch.float32: 82.6e12}),
)
# What configs call the number of experts that a token goes through.
_EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")
Lengths = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Of all layers with one window: square: FLOPs a unit of Σ length²."""

    window: int | None
    square: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """What a step costs, forward and backward: a token in the blocks, a supervised token in the head, attention by the lengths of segments."""

    token: float
    supervised: float
    attention: tuple[Attention, ...]

    def step(self, *, tokens: float, supervised: float, lengths: Lengths) -> float:
        """FLOPs of so many tokens and targets in segments of these lengths, int64 [n]."""
        return self.linear(tokens=tokens, supervised=supervised) + self.attending(lengths)

    def linear(self, *, tokens: float, supervised: float) -> float:
        """Without attention: what grows with the number of tokens alone."""
        return self.token * tokens + self.supervised * supervised

    def attending(self, lengths: Lengths) -> float:
        """Of attention alone."""
        return sum(each.square * squares(lengths, each.window) for each in self.attention)


def squares(lengths: Lengths, window: int | None) -> int:
    """Σ length²; with a window w a length above it counts w·(2·length − w): twice the pairs of tokens that see each other, as length² is without one."""
    if window is None:
        return int((lengths * lengths).sum())
    seen = np.minimum(lengths, window)
    return int((seen * (2 * lengths - seen)).sum())


def flops_of(model: PackedModel) -> Flops | None:
    """Of a model that has been run once (attention's shapes are read off its calls); None where it has experts and does not say how many a token takes."""
    config = model.model.config.get_text_config(decoder=True)
    active = next((getattr(config, name) for name in _EXPERTS_A_TOKEN if getattr(config, name, None)), None)
    token, attention = 0.0, dict[int | None, float]()
    for block in model.blocks:
        for module in block.modules():
            weights = _weights(module, active)
            if weights is None:
                return None
            token += 6 * weights + _recurrence(module)
    for mixer in mixers(model.model).values():
        if isinstance(mixer, SegmentedLayer):
            continue
        shape: AttentionShape | None = getattr(mixer, SHAPE, None)
        if shape is None:
            return None
        window = getattr(mixer, WINDOW, None) if shape.window is None else shape.window
        square = 3.0 * shape.heads * (shape.key_dim + shape.value_dim)
        attention[window] = attention.get(window, 0.0) + square
    return Flops(
        token=token,
        supervised=6.0 * model.head.numel(),
        attention=tuple(Attention(window=window, square=square) for window, square in attention.items()),
    )


def _weights(module: nn.Module, active: int | None) -> float | None:
    """Weights of a module's own that a token is multiplied by."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    if isinstance(module, nn.Embedding):
        return 0.0
    if isinstance(module, nn.Conv1d):
        return float(module.weight.numel())
    experts = [parameter for parameter in own if parameter.dim() == 3]
    if experts and active is None:
        return None
    if experts:
        return sum(parameter.numel() * (active or 0) / parameter.shape[0] for parameter in experts)
    return float(sum(parameter.numel() for parameter in own if parameter.dim() == 2))


def _recurrence(module: nn.Module) -> float:
    if isinstance(module, SegmentedDelta):
        return 18.0 * module.head_k_dim * module.value_dim  # value width · value heads
    if isinstance(module, SegmentedScan):
        return 12.0 * module.ssm_state_size * module.intermediate_size  # head width · heads
    return 0.0


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of one device; None where they are not known: on CPU, for a name that is not in the list, for a dtype that it is not listed with."""
    return peak_of(torch.cuda.get_device_name(device), dtype) if device.type == "cuda" else None


def peak_of(name: str, dtype: torch.dtype) -> float | None:
    """By the name that a GPU gives itself: "NVIDIA H100 80GB HBM3"."""
    found = next((peaks for known, peaks in _PEAKS if re.search(rf"\b{known}\b", name)), {})
    return found.get(dtype)


def told(flops: Flops | None, peak: float | None, device: str, dtype: str) -> str:
    """What utilisation is reckoned with, for the first lines of a run."""
    if flops is None:
        return "no MFU: the model does not say how many experts a token goes through"
    attention = "".join(
        f", {each.square / 1e6:,.4g} MFLOP a unit of Σ length²"
        + ("" if each.window is None else f" in windows of {each.window:,}")
        for each in flops.attention
    )
    against = (
        f"no MFU: the peak of {device} in {dtype} is not known"
        if peak is None
        else f"MFU against {peak / 1e12:,.4g} TFLOP/s a rank"
    )
    return f"{flops.token / 1e9:,.4g} GFLOP a token, {flops.supervised / 1e9:,.4g} a target{attention}; {against}"
