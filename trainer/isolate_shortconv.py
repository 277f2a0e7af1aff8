"""Short-convolution layers that are told their segments: LFM2's double-gated convolution.

One projection gives two gates and a value; the value, gated once, goes through a causal convolution of a few tokens, is gated again and projected.
The convolution is all that mixes tokens.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from trainer.kernels import Layer
from trainer.segmented import SegmentedLayer
from trainer.segments import Segments


class SegmentedShortConv(SegmentedLayer):
    """Base for subclasses of the library's short-convolution layers."""

    kinds: ClassVar[tuple[Layer, ...]] = ("conv",)
    conv: nn.Conv1d
    in_proj: nn.Linear
    out_proj: nn.Linear

    def mix(self, hidden: Tensor, segments: Segments) -> Tensor:
        gate, gate_out, value = self.in_proj(hidden).chunk(3, dim=-1)
        mixed = self.conv_kernel(gate * value, self.conv.weight.squeeze(1), self.conv.bias, None, segments=segments)
        projected: Tensor = self.out_proj(gate_out * mixed)
        return projected


def shortconv_layers(model_type: str) -> tuple[type[SegmentedLayer], type[nn.Module]] | None:
    """Our base and the library's layer for a model type with short-convolution layers; None for other models."""
    if model_type == "lfm2":
        from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

        return SegmentedShortConv, Lfm2ShortConv
    if model_type == "lfm2_moe":
        from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeShortConv

        return SegmentedShortConv, Lfm2MoeShortConv
    return None
