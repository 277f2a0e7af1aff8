"""Teaches a model that somebody else has loaded where its segments end, in place, so that people can keep their own loop.

    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3.5-0.8B", dtype=torch.bfloat16).to("cuda")
    for layer in isolate(model):
        print(layer.layer, layer.kernel, layer.reason)
    model(input_ids=ids, position_ids=positions, segments=segments, labels=labels, use_cache=False).loss

Parameters, their names and the model's class stay: what is saved is an ordinary model of transformers. From then on every layer that mixes tokens asks
for `segments` and raises where it is not given them, so `generate` no longer works on this object: save, and load it again. Left out, position_ids are
those of the segments: transformers would count on from one example into the next.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from packer.errors import UserError
from trainer.isolate import bind, is_isolated, register_attention, segmented_class
from trainer.kernels import Choice, Mode, resolve
from trainer.model import PackedModel, try_out
from trainer.refuse import mixers
from trainer.segmented import SegmentedLayer
from trainer.segments import Segments

# Of position_ids among the arguments of every causal model of transformers: input_ids, attention_mask, position_ids.
_POSITIONS_PLACE = 2


def isolate(model: PreTrainedModel, *, kernels: Mode = "auto") -> tuple[Choice, ...]:
    """Gives the model's attention, gated-delta, short-convolution and Mamba-2 layers our kernels; what computes each kind of layer, and why.

    The model lies whole on the device it will be trained on, not yet sharded or compiled. kernels as in `trainer run`: auto is fused on a GPU (a
    missing package is an error) and plain torch on a CPU. Raises UserError, naming the layer, where something in it cannot be kept apart; the
    model is then as it was.
    """
    if is_isolated(model):
        raise UserError(f"{type(model).__name__} is isolated already", "leave the second isolate(model) out")
    device, before, was_training = model.device, model.config._attn_implementation, model.training
    changed: list[tuple[nn.Module, type[nn.Module]]] = []
    try:
        layers = segmented_class(model.config.model_type)
        if layers is not None:
            ours, theirs = layers
            changed = [(module, theirs) for module in model.modules() if type(module) is theirs]
            for module, _ in changed:
                module.__class__ = ours
        attention, choice = resolve("attention", kernels, device)
        name = register_attention(attention, choice.kernel if choice.kernel == "reference" else "fused")
        model.set_attn_implementation(name)
        found = mixers(model)
        choices = [choice] if any(not isinstance(module, SegmentedLayer) for module in found.values()) else []
        choices += bind(model, kernels, device)
        try_out(PackedModel(model), type(model).__name__, torch.device(device))
    except UserError:
        for module, theirs in changed:
            module.__class__ = theirs
        model.set_attn_implementation(before)
        raise
    finally:
        model.train(was_training)
    model.register_forward_pre_hook(_with_positions, with_kwargs=True)
    return tuple(choices)


def _with_positions(
    _model: nn.Module, args: tuple[object, ...], options: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """What a model is called with: where segments are given and no positions, with theirs."""
    segments = options.get("segments")
    given = options.get("position_ids", args[_POSITIONS_PLACE] if len(args) > _POSITIONS_PLACE else None)
    if isinstance(segments, Segments) and given is None:
        # Behind the ids and the attention mask, where a caller counted so far.
        return args[:_POSITIONS_PLACE], {**options, "position_ids": segments.positions}
    return args, options
