"""Teaches a transformers model where its segments end, through the library's own extension points.

Attention modules look their kernel up by name (`AttentionInterface`), so a kernel registered under our name is enough; no mask function is
registered for that name, which is the library's documented way to have none made (its packing detection would also stop the device
once a pass to ask whether positions restart). Gated-delta, short-convolution and Mamba-2 layers call their kernels directly, so the name under which
their own modeling file looks them up stands for a subclass while the model is built; weights and their names stay. (The library has a table for such
replacements, `register_patch_mapping`; it walks every attribute of every transformers module, and in 5.17 that imports image processing, which
fails where there is no torchvision.) What remains is refused by `trainer.refuse`: a model is trained only if every module in it that could mix
tokens is one of these.

    with isolating(config.model_type):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=register_attention(kernel, "reference"))
    layers = bind(model, "auto", torch.device("cpu"))       # what computes them, and why
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from packer.errors import UserError
from trainer.isolate_delta import delta_layers
from trainer.isolate_scan import scan_layers
from trainer.isolate_shortconv import shortconv_layers
from trainer.kernels import Choice, Layer, Mode, resolve
from trainer.kernels.attention import AttentionKernel
from trainer.segmented import SegmentedLayer, name_of, opaque
from trainer.segments import Segments, require

# The attribute of an attention module that does not hand its window on (`trainer.masks` finds out and sets it).
WINDOW = "packed_window"
# And the one that says what its last call was like.
SHAPE = "packed_shape"

# What the library hands to every attention function and what does not change causal attention inside a segment.
_HARMLESS = frozenset(
    {
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "num_items_in_batch",  # for the loss: transformers' Trainer hands it to the model
    }
)


_PREFIX = "packed_"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """heads: of queries. key_dim, value_dim: of one head. window: what the layer handed on."""

    heads: int
    key_dim: int
    value_dim: int
    window: int | None


def register_attention(kernel: AttentionKernel, label: str) -> str:
    """Make `kernel` known to transformers and give the name to load a model with (`attn_implementation`)."""
    name = f"{_PREFIX}{label}"

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
        segments = require(segments, name_of(module))
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
                f"{name_of(module)} asks its attention for what packed rows cannot give it: {', '.join(extra)}",
                "choose another --model; where it is dropout, set it to 0 in the model's config.json",
            )
        window = getattr(module, WINDOW, None) if sliding_window is None else sliding_window
        shape = AttentionShape(
            heads=query.shape[1], key_dim=query.shape[3], value_dim=value.shape[3], window=sliding_window
        )
        setattr(module, SHAPE, shape)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = kernel(query, key, value, segments=segments, scale=scale, window=window)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, opaque(attend))
    return name


def segmented_class(model_type: str) -> tuple[type[nn.Module], type[nn.Module]] | None:
    """Our subclass and the library's class of the layers of a model type that call their kernels directly; None where it has none, or ours already."""
    layers = delta_layers(model_type) or shortconv_layers(model_type) or scan_layers(model_type)
    if layers is None or issubclass(layers[1], SegmentedLayer):
        return None
    ours, theirs = layers
    return type(f"Segmented{theirs.__name__}", (ours, theirs), {"__module__": __name__}), theirs


@contextmanager
def isolating(model_type: str) -> Iterator[None]:
    """While inside, models of this type are built with our layers; afterwards the library is as it was found."""
    layers = segmented_class(model_type)
    if layers is None:
        yield
        return
    patched, theirs = layers
    modeling = sys.modules[theirs.__module__]
    setattr(modeling, theirs.__name__, patched)
    try:
        yield
    finally:
        setattr(modeling, theirs.__name__, theirs)


def is_isolated(model: PreTrainedModel) -> bool:
    """Whether this model is told its segments by the keyword `segments`: whether it was built, or changed, by us."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation).startswith(_PREFIX)


def bind(model: nn.Module, mode: Mode, device: torch.device) -> tuple[Choice, ...]:
    """Give every layer of ours in `model` its kernels, each resolved once; what computes them, and why. Raises UserError where one cannot be had."""
    layers = [module for module in model.modules() if isinstance(module, SegmentedLayer)]
    kinds: dict[Layer, None] = dict.fromkeys(kind for layer in layers for kind in layer.kinds)
    choices = []
    for kind in kinds:
        kernel, choice = resolve(kind, mode, device)
        choices.append(choice)
        for layer in layers:
            if kind in layer.kinds:
                layer.bind(kind, kernel)
    return tuple(choices)
