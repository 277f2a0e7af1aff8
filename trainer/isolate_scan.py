"""Mamba-2 layers that are told their segments: Bamba, Granite 4 and Falcon-H1.

One projection gives the output gate, what the short convolution mixes (x, b and c of the scan) and the step sizes; the scan of
`trainer.kernels.scan` follows. The library's own path hands all of it to one fused function, boundaries or none.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.kernels import Layer
from trainer.segmented import SegmentedLayer
from trainer.segments import Segments


class SegmentedScan(SegmentedLayer):
    """Base for subclasses of the library's Mamba-2 layers."""

    kinds: ClassVar[tuple[Layer, ...]] = ("conv", "scan")
    conv1d: nn.Conv1d
    in_proj: nn.Linear
    out_proj: nn.Linear
    norm: nn.Module
    A_log: Tensor
    D: Tensor
    dt_bias: Tensor
    activation: str
    intermediate_size: int
    conv_dim: int
    num_heads: int
    n_groups: int
    ssm_state_size: int
    time_step_limit: tuple[float, float]

    def project(self, hidden: Tensor) -> Tensor:
        """hidden [1, T, H] to gate, convolution input and step logits [1, T, intermediate_size + conv_dim + heads]."""
        projected: Tensor = self.in_proj(hidden)
        return projected

    def gated(self, out: Tensor, gate: Tensor) -> Tensor:
        """What the output projection takes: the scan's output [1, T, intermediate_size], normed and gated."""
        normed: Tensor = self.norm(out, gate)
        return normed

    def mix(self, hidden: Tensor, segments: Segments) -> Tensor:
        length, state = hidden.shape[1], self.n_groups * self.ssm_state_size
        gate, mixed, step = torch.split(
            self.project(hidden), [self.intermediate_size, self.conv_dim, self.num_heads], dim=-1
        )
        mixed = self.conv_kernel(
            mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.activation, segments=segments
        )
        x, b, c = torch.split(mixed, [self.intermediate_size, state, state], dim=-1)
        # float32 for steps and decay, as for every exponent of a recurrence.
        steps = F.softplus(step.float() + self.dt_bias.float()).clamp(*self.time_step_limit)
        out = self.scan_kernel(
            x.reshape(1, length, self.num_heads, -1),
            steps,
            -self.A_log.float().exp(),
            b.reshape(1, length, self.n_groups, -1),
            c.reshape(1, length, self.n_groups, -1),
            self.D,
            segments=segments,
        )
        projected: Tensor = self.out_proj(self.gated(out.reshape(1, length, -1), gate))
        return projected


class _Scaled(SegmentedScan):
    """Falcon-H1: its projections are scaled part by part, and its norm may be left out."""

    ssm_in_multiplier: float
    mup_vector: Tensor
    mamba_rms_norm: bool

    def project(self, hidden: Tensor) -> Tensor:
        return super().project(hidden * self.ssm_in_multiplier) * self.mup_vector

    def gated(self, out: Tensor, gate: Tensor) -> Tensor:
        return super().gated(out, gate) if self.mamba_rms_norm else out * F.silu(gate)


def scan_layers(model_type: str) -> tuple[type[SegmentedLayer], type[nn.Module]] | None:
    """Our base and the library's layer for a model type with Mamba-2 layers; None for other models."""
    if model_type == "bamba":
        from transformers.models.bamba.modeling_bamba import BambaMixer

        return SegmentedScan, BambaMixer
    if model_type == "granitemoehybrid":
        from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer

        return SegmentedScan, GraniteMoeHybridMambaLayer
    if model_type == "falcon_h1":
        from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer

        return _Scaled, FalconH1Mixer
    return None
