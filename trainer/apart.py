"""Whether a model as transformers runs it keeps the examples of a packed row apart: tried on two of them, not believed.

What keeps them apart differs by attention implementation and by what is installed, and what is lost on the way says nothing: sdpa and eager need
a mask that transformers makes from positions which restart (`find_packed_sequence_indices`), but only with no attention mask and no cache;
flash attention takes boundaries; gated-delta, convolution and Mamba layers do with two packages what they do not do with one. So two examples
lie in a row, with the very arguments that training would give, and three things must hold: no gradient crosses the boundary in any layer, each example computes
what it computes alone, and no RoPE looks at the longest position of the row (which short rows do not show).

    prove_apart(model, keywords)        # returns, or raises UserError with the layer's name
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from packer.errors import UserError
from trainer.library import one_line
from trainer.refuse import decoder_blocks, safe_rope
from trainer.segments import Segments

# Neither a multiple of a chunk, both longer than any short convolution.
_FIRST, _SECOND = 67, 61
_HINT = "call isolate(model) of trainer.adapters first, which gives its layers the boundaries; where that refuses it too, take another model"
# What another order of summation may do to logits, as a share of their norm; a leak or lost positions do far more.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE_ROUNDING = 0.1
# What the library's own code raises where it is given what it does not know, or lacks what it needs.
_CANNOT = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, NotImplementedError, ImportError)


def prove_apart(model: PreTrainedModel, keywords: Callable[[Segments], Mapping[str, object]]) -> None:
    """Raises UserError, naming the layer, where one example of a row can see another.

    keywords: what training gives the model besides input_ids and position_ids, made from the boundaries. The model lies on the device it will be
    trained on; its mode, gradients and weights stay as they are.
    """
    for path, module in model.named_modules():
        rope = getattr(module, "rope_type", None)
        for rope_type in rope.values() if isinstance(rope, dict) else [rope] if isinstance(rope, str) else []:
            if not safe_rope(rope_type):
                raise UserError(
                    f"{path} ({type(module).__name__}): RoPE of type {rope_type} depends on the length of the whole row",
                    "take another model",
                )
    was_training = model.training
    model.train(False)
    try:
        _prove(model, keywords)
    except _CANNOT as error:
        raise UserError(
            f"{type(model).__name__} cannot run on a packed row as transformers computes it: {one_line(error).rstrip('.')}",
            _HINT,
        ) from error
    finally:
        model.train(was_training)


def _prove(model: PreTrainedModel, keywords: Callable[[Segments], Mapping[str, object]]) -> None:
    embedding = cast(nn.Embedding, model.get_input_embeddings())
    ids = torch.randint(embedding.num_embeddings, (1, _FIRST + _SECOND), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )
    packed = Segments.from_lengths([_FIRST, _SECOND])
    with _seen(model) as blocks, torch.enable_grad():
        logits = _logits(model, ids, packed, keywords)
        for path, (before, after) in blocks.items():
            if _leak(before, after):
                raise UserError(
                    f"{_mixer(model, path)} lets one example of a packed row see another, as transformers computes it here",
                    _HINT,
                )
        start = next(iter(blocks.values()))[0] if blocks else None
        if start is not None and _leak(start, logits):
            raise UserError(f"{type(model).__name__} lets one example of a packed row see another", _HINT)
    logits = logits.detach()
    with torch.no_grad():
        for part in (slice(0, _FIRST), slice(_FIRST, None)):
            length = ids[:, part].shape[1]
            alone = _logits(model, ids[:, part], Segments.from_lengths([length]), keywords)
            difference = float((logits[:, part] - alone).float().norm() / alone.float().norm())
            if not difference <= _ROUNDING.get(model.dtype, _COARSE_ROUNDING):
                raise UserError(
                    f"{type(model).__name__} computes something else for an example in a packed row than alone (logits differ by {difference:.1%})",
                    _HINT,
                )


def _logits(
    model: PreTrainedModel, ids: Tensor, segments: Segments, keywords: Callable[[Segments], Mapping[str, object]]
) -> Tensor:
    places = torch.cat([torch.arange(length) for length in segments.lengths])[None].to(ids.device)
    given = keywords(segments.to(ids.device))
    logits: Tensor = model(input_ids=ids, position_ids=places, **given).logits
    return logits


def _leak(before: Tensor, after: Tensor) -> bool:
    """Whether a gradient flows from one example's side of `after` to the other's of `before`, either way; both [1, T, …]."""
    first, second = slice(0, _FIRST), slice(_FIRST, None)
    for seen, mine in ((first, second), (second, first)):
        (gradient,) = torch.autograd.grad(after[:, mine].float().square().sum(), before, retain_graph=True)
        if bool(gradient[:, seen].any()):  # anything but 0, NaN included
            return True
    return False


@contextmanager
def _seen(model: PreTrainedModel) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Hidden states before and after each decoder layer of the next forward, by the layer's path."""
    blocks = decoder_blocks(model)
    names = {module: path for path, module in model.named_modules()}
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def as_leaf(_module: nn.Module, _args: tuple[object, ...], embedded: Tensor) -> Tensor:
        return embedded.detach().requires_grad_()

    def note(module: nn.Module, args: tuple[object, ...], options: Mapping[str, object], result: object) -> None:
        before = args[0] if args else options["hidden_states"]
        after = result[0] if isinstance(result, tuple) else result
        if isinstance(before, Tensor) and isinstance(after, Tensor):
            seen[names[module]] = (before, after)

    handles = [model.get_input_embeddings().register_forward_hook(as_leaf)]
    handles += [block.register_forward_hook(note, with_kwargs=True) for block in blocks]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _mixer(model: PreTrainedModel, block: str) -> str:
    """What in a decoder layer most likely leaks, as a person knows it: what holds a convolution, else the attention, else the layer."""
    inside = [(path, module) for path, module in model.named_modules() if path.startswith(f"{block}.")]
    holds = [path.rpartition(".")[0] for path, module in inside if isinstance(module, nn.Conv1d)]
    attends = [path for path, module in inside if "Attention" in type(module).__name__]
    path = next(iter([*holds, *attends]), block)
    return f"{path} ({type(model.get_submodule(path)).__name__})"
