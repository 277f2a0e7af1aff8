"""Teaches a transformers model where its segments end, through the library's own extension points.

Attention modules look their kernel up by name (`AttentionInterface`), so a kernel registered under our name is enough; no mask function is
registered for that name, which is the library's documented way to have none made (its packing detection would also stop the device
once a pass to ask whether positions restart). Gated-delta layers call their kernels directly, so they are replaced by subclasses while the model is built
(`register_patch_mapping`); weights and their names stay. What remains is refused by `refuse_unisolated`: a model is trained only if every
module in it that could mix tokens is one of these two.

    with isolating(config.model_type):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=register_attention(kernel, "reference"))
    bind(model, delta, conv)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.monkey_patching import get_patch_mapping, register_patch_mapping, unregister_patch_mapping

from packer.errors import UserError
from trainer.kernels.attention import AttentionKernel
from trainer.kernels.conv import ConvKernel
from trainer.kernels.delta import DeltaKernel
from trainer.segments import Segments, require

# The attribute of an attention module that does not hand its window on (`trainer.masks` finds out and sets it).
WINDOW = "packed_window"
_Kernel = TypeVar("_Kernel", bound=Callable[..., object])

# What the library hands to every attention function and what does not change causal attention inside a segment.
_HARMLESS = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict"}
)


def register_attention(kernel: AttentionKernel, label: str) -> str:
    """Make `kernel` known to transformers and give the name to load a model with (`attn_implementation`)."""
    name = f"packed_{label}"

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        is_causal: bool | None = None,
        segments: Segments | None = None,
        **options: object,
    ) -> tuple[Tensor, None]:
        segments = require(segments, _name(module))
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        extra = sorted(key for key, value in options.items() if value is not None and key not in _HARMLESS)
        if attention_mask is not None:
            extra.append("attention_mask")
        if dropout:
            extra.append(f"dropout {dropout}")
        if not causal:
            extra.append("attention to later tokens")
        if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
            extra.append(f"a batch or a cache (queries {list(query.shape)}, keys {list(key.shape)})")
        if extra:
            raise UserError(
                f"{_name(module)} asks its attention for what packed rows cannot give it: {', '.join(extra)}",
                "choose another --model; where it is dropout, set it to 0 in the model's config.json",
            )
        window = getattr(module, WINDOW, None) if sliding_window is None else sliding_window
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = kernel(query, key, value, segments=segments, scale=scale, window=window)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, _opaque(attend))
    return name


def _opaque(kernel: _Kernel) -> _Kernel:
    """Keep a kernel out of compiled graphs: its cut to the real boundaries would compile one a segment count, its layer's number one a layer."""
    disabled: _Kernel = torch.compiler.disable(kernel)  # type: ignore[no-untyped-call]  # untyped in torch
    return disabled


def _name(module: nn.Module) -> str:
    return f"{type(module).__name__} of layer {getattr(module, 'layer_idx', '?')}"


class SegmentedDelta(nn.Module):
    """A gated-delta layer that is told its segments. A base for subclasses of the library's layers: it has no parameters of its own.

    Subclasses say how the projections are laid out (`project`), and which norm and output projection follow.
    """

    delta: DeltaKernel
    conv: ConvKernel
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

    def forward(
        self,
        hidden_states: Tensor,
        cache: object = None,
        attention_mask: Tensor | None = None,
        segments: Segments | None = None,
        **_: object,
    ) -> Tensor:
        # The name is made only where it is needed: with the layer's number in it, compiled code would be one a layer.
        if segments is None:
            segments = require(segments, _name(self))
        if cache is not None or attention_mask is not None or hidden_states.shape[0] != 1:
            raise RuntimeError(f"{_name(self)} takes one packed sequence [1, T, H], no cache and no attention mask")
        length = hidden_states.shape[1]
        mixed, strength, decay, gate = self.project(hidden_states)
        mixed = self.conv(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.activation, segments=segments)
        query, key, value = torch.split(mixed, [self.key_dim, self.key_dim, self.value_dim], dim=-1)
        # float32 for the decay: in half precision exp(A_log) can overflow.
        g = -self.A_log.float().exp() * F.softplus(decay.float() + self.dt_bias)
        out = self.delta(
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


def _delta_layers(model_type: str) -> tuple[type[SegmentedDelta], type[nn.Module]] | None:
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


@contextmanager
def isolating(model_type: str) -> Iterator[None]:
    """While inside, models of this type are built with our gated-delta layers; afterwards the library is as it was found."""
    layers = _delta_layers(model_type)
    if layers is None:
        yield
        return
    ours, theirs = layers
    before = get_patch_mapping().get(theirs.__name__)
    patched = type(f"Segmented{theirs.__name__}", (ours, theirs), {"__module__": __name__})
    register_patch_mapping({theirs.__name__: patched}, overwrite=True)
    try:
        yield
    finally:
        unregister_patch_mapping([theirs.__name__])
        if before is not None:
            register_patch_mapping({theirs.__name__: before})


def bind(model: nn.Module, delta: DeltaKernel, conv: ConvKernel) -> None:
    """Give every gated-delta layer of `model` its two kernels."""
    delta, conv = _opaque(delta), _opaque(conv)
    for module in model.modules():
        if isinstance(module, SegmentedDelta):
            module.delta, module.conv = delta, conv
