"""Finds what could let one segment of a packed row see another, and refuses the model before it is loaded.

The rule is a list of what is known to be safe, not of what is known to leak: a module with weights of its own must be a kind that works on each token
alone (linear, embedding, norm, experts and their router), or attention that goes through the library's interface, or one of our own
layers. A new kind of layer is refused by name until someone has looked at it.

    >>> safe_rope("llama3"), safe_rope("longrope")
    (True, False)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from packer.errors import UserError
from trainer.segmented import SegmentedLayer

_HINT = (
    "only models of attention, gated-delta, short-convolution and Mamba-2 layers can be packed; choose another --model"
)
# What configs call the kinds of layer that may be ours; whether this model's are is asked of its modules.
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "linear_attention", "conv", "hybrid"})
# longrope and dynamic take their frequencies from the longest position of the whole row: another example's length changes this one's output,
# which neither gradients nor changed tokens show.
_ROPE_TYPES = frozenset({"default", "linear", "yarn", "llama3", "proportional"})
# Modules with weights of their own that treat each token alone, by what the library calls them.
_TOKENWISE = re.compile(r"Norm|Experts?$|Router$|Gate$|Embedding$")
_TOKENWISE_TYPES = (nn.Linear, nn.Embedding, nn.LayerNorm, Conv1D)


def safe_rope(rope_type: str) -> bool:
    """Whether this type's frequencies are the same for every position of every row."""
    return rope_type in _ROPE_TYPES


def mixers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules that mix tokens, by path, in order: all of them safe, or UserError names the first that is not, its class and why."""
    _check_config(model.config)
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") and isinstance(found[outer], SegmentedLayer) for outer in found):
            continue  # a layer of ours: its own convolution and norm
        reason = _why_not(module)
        if reason is not None:
            raise UserError(f"{path} ({type(module).__name__}) cannot keep segments apart: {reason}", _HINT)
        if isinstance(module, SegmentedLayer) or _dispatches(module):
            found[path] = module
    _check_model(model)
    if not model._supports_flash_attn:
        # The library's own word that causality and a window are all that this model's masks say.
        name = type(model).__name__
        raise UserError(f"{name} needs attention masks that packed rows do not make (it has no flash attention)", _HINT)
    for path, module in [("the backbone", model.base_model), *_decoder_layers(model), *found.items()]:
        if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(module.forward).parameters.values()):
            raise UserError(
                f"{path} ({type(module).__name__}) takes no further keyword arguments, so it cannot be told where segments end",
                _HINT,
            )
    for path, layer in _decoder_layers(model):
        if not any(mixer.startswith(f"{path}.") for mixer in found):
            raise UserError(
                f"{path} ({type(layer).__name__}) cannot keep segments apart: nothing in it is known to mix tokens, "
                "so what does is not known",
                _HINT,
            )
    return found


def decoder_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder layers, in order: one list of the backbone, however deep it lies. Raises UserError where there is none, or more than one."""
    lists = {
        path: module
        for path, module in model.base_model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and all(isinstance(layer, GradientCheckpointingLayer) for layer in module)
    }
    outermost = [each for path, each in lists.items() if not any(path.startswith(f"{other}.") for other in lists)]
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    # longcat counts two for each of its layers; a model with several lists has one of the length it names.
    chosen = outermost if len(outermost) == 1 else [each for each in outermost if len(each) == depth]
    if len(chosen) != 1:
        raise UserError(
            f"{type(model).__name__} has no one list of its {depth} decoder layers (found {sorted(lists)}), so it cannot be sharded by layer",
            _HINT,
        )
    return list(chosen[0])


def _decoder_layers(model: PreTrainedModel) -> Iterable[tuple[str, nn.Module]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)]


def _why_not(module: nn.Module) -> str | None:
    if isinstance(module, SegmentedLayer):
        return None
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)):
        return "a convolution or recurrence that is not told where segments end"
    rope = getattr(module, "rope_type", None)
    for rope_type in rope.values() if isinstance(rope, dict) else [rope] if isinstance(rope, str) else []:
        if not safe_rope(rope_type):
            return f"RoPE of type {rope_type} depends on the length of the whole row"
    if _dispatches(module):
        if "s_aux" in _source(module):
            return "attention sinks are not supported by our kernels"
        return None
    if "Attention" in type(module).__name__ and not _holds_layers(module):
        return "attention that does not go through the library's attention interface"
    if module._parameters and not isinstance(module, _TOKENWISE_TYPES) and not _TOKENWISE.search(type(module).__name__):
        return "a kind of layer that is not known to treat each token alone"
    return None


def _holds_layers(module: nn.Module) -> bool:
    """Whether the name speaks of what lies inside: a decoder layer, or a wrapper round the attention proper."""
    return isinstance(module, GradientCheckpointingLayer) or any(
        _dispatches(inner) or isinstance(inner, SegmentedLayer) for inner in module.modules() if inner is not module
    )


def _dispatches(module: nn.Module) -> bool:
    """Whether the module's own forward looks its attention function up in the library's registry."""
    return "ALL_ATTENTION_FUNCTIONS" in _source(module)


def _source(module: nn.Module) -> str:
    try:
        return inspect.getsource(type(module).forward)
    except (OSError, TypeError):  # built-in or generated code
        return ""


def _check_config(config: PretrainedConfig) -> None:
    text = config.get_text_config(decoder=True)
    for number, layer_type in enumerate(getattr(text, "layer_types", None) or []):
        if layer_type not in _LAYER_TYPES:
            raise UserError(
                f"layer {number} of {text.model_type} is of type {layer_type!r}, which cannot keep segments apart",
                _HINT,
            )
    for name, meaning in {
        "attn_logit_softcapping": "caps attention scores, which our kernels do not",
        "use_bidirectional_attention": "lets tokens see later ones",
        "attention_dropout": "drops attention weights, which our kernels do not",
        "attn_pdrop": "drops attention weights, which our kernels do not",
    }.items():
        if getattr(text, name, None):
            raise UserError(
                f"{text.model_type} {meaning} ({name} = {getattr(text, name)})",
                f"where the model is right without it, set {name} to 0 in its config.json; else choose another --model",
            )


def _check_model(model: PreTrainedModel) -> None:
    name = type(model).__name__
    backbone = model.base_model
    if "position_ids" not in inspect.signature(backbone.forward).parameters:
        raise UserError(f"{name} takes no position_ids: its positions would run on from segment to segment", _HINT)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # untyped in transformers
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise UserError(f"{name} has an output layer that is not a plain matrix; the loss kernel needs one", _HINT)
