"""Gated-delta layers that are told their segments: Qwen3.5, Qwen3-Next and OLMo hybrid.

A projection, a short convolution of queries, keys and values, the gated delta rule, a gated norm and an output projection. Convolution and
delta rule are what mixes tokens. Models differ in how their projections are laid out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.kernels import Layer
from trainer.segmented import SegmentedLayer
from trainer.segments import Segments


class SegmentedDelta(SegmentedLayer):
    """Base for subclasses of the library's gated-delta layers.

    Subclasses say how the projections are laid out (`project`), and which norm and output projection follow.
    """

    kinds: ClassVar[tuple[Layer, ...]] = ("delta", "conv")
    conv1d: nn.Conv1d
    A_log: Tensor
    dt_bias: Tensor
    activation: str
    key_dim: int
    value_dim: int
    head_k_dim: int
    head_v_dim: int
    norm_name = "norm"
    out_name = "out_proj"

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hidden [1, T, H] to qkv [1, T, 2·key_dim+value_dim] (before the convolution), write strength and decay logits [1, T, Hv], and the
        output gate [1, T, value_dim]."""
        raise NotImplementedError

    def strength(self, logits: Tensor) -> Tensor:
        """β of the delta rule from its logits."""
        return logits.sigmoid()

    def mix(self, hidden: Tensor, segments: Segments) -> Tensor:
        length = hidden.shape[1]
        mixed, strength, decay, gate = self.project(hidden)
        mixed = self.conv_kernel(
            mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.activation, segments=segments
        )
        query, key, value = torch.split(mixed, [self.key_dim, self.key_dim, self.value_dim], dim=-1)
        # float32 for the decay: in half precision exp(A_log) can overflow.
        g = -self.A_log.float().exp() * F.softplus(decay.float() + self.dt_bias)
        out = self.delta_kernel(
            query.reshape(1, length, -1, self.head_k_dim),
            key.reshape(1, length, -1, self.head_k_dim),
            value.reshape(1, length, -1, self.head_v_dim),
            g,
            self.strength(strength),
            segments=segments,
        )
        norm, project_out = getattr(self, self.norm_name), getattr(self, self.out_name)
        out = norm(out.reshape(-1, self.head_v_dim), gate.reshape(-1, self.head_v_dim))
        projected: Tensor = project_out(out.reshape(1, length, -1))
        return projected


class _SplitProjections(SegmentedDelta):
    """Qwen3.5: one projection each for qkv, gate, strength and decay."""

    in_proj_qkv: nn.Linear
    in_proj_z: nn.Linear
    in_proj_b: nn.Linear
    in_proj_a: nn.Linear

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.in_proj_qkv(hidden), self.in_proj_b(hidden), self.in_proj_a(hidden), self.in_proj_z(hidden)


class _FusedProjections(SegmentedDelta):
    """Qwen3-Next: two projections, interleaved by key head; the library's own method takes them apart."""

    in_proj_qkvz: nn.Linear
    in_proj_ba: nn.Linear
    fix_query_key_value_ordering: Callable[[Tensor, Tensor], tuple[Tensor, ...]]

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, key, value, gate, strength, decay = self.fix_query_key_value_ordering(
            self.in_proj_qkvz(hidden), self.in_proj_ba(hidden)
        )
        mixed = torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1)
        return mixed, strength, decay, gate.flatten(2)


class _SeparateProjections(SegmentedDelta):
    """OLMo hybrid: q, k and v apart; β may reach 2, which lets a state change sign."""

    norm_name = "o_norm"
    out_name = "o_proj"
    allow_neg_eigval: bool
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    b_proj: nn.Linear
    a_proj: nn.Linear
    g_proj: nn.Linear

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mixed = torch.cat([self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)], dim=-1)
        return mixed, self.b_proj(hidden), self.a_proj(hidden), self.g_proj(hidden)

    def strength(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() * 2.0 if self.allow_neg_eigval else logits.sigmoid()


def delta_layers(model_type: str) -> tuple[type[SegmentedLayer], type[nn.Module]] | None:
    """Our base and the library's layer for a model type with gated-delta layers; None for other models."""
    if model_type in ("qwen3_5", "qwen3_5_text"):
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

        return _SplitProjections, Qwen3_5GatedDeltaNet
    if model_type in ("qwen3_5_moe", "qwen3_5_moe_text"):
        from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet

        return _SplitProjections, Qwen3_5MoeGatedDeltaNet
    if model_type == "qwen3_next":
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

        return _FusedProjections, Qwen3NextGatedDeltaNet
    if model_type == "olmo_hybrid":
        from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

        return _SeparateProjections, OlmoHybridGatedDeltaNet
    return None
