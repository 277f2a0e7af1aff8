"""What each attention layer may see, read off the masks that the model makes for itself.

Our kernels take no mask: causality inside a segment and a window are all they know, and the window is what a layer hands to its attention function.
Some classes do not hand theirs on (their library attention reads it from the mask), and would be trained with full attention in silence. So the
model is run once on one short segment under an attention implementation that has a mask function: the function keeps the rule it is given
(`mask_function(batch, head, query, key) → bool`) and gives back a tensor that only says which rule it was; what each layer receives is
then held against what it asks of our kernel. The rule is evaluated far past the window, whatever the length of the run.

    windows = learn_windows(model, segments)     # {"model.layers.0.self_attn": 32}: layers whose window had to be taken from the mask
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from packer.errors import UserError
from trainer.isolate import WINDOW
from trainer.segments import Segments

_NAME = "packed_recorded"
_HINT = "only causal attention, whole or in a window, can be packed; choose another --model"
_Rule = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mask:
    """rule: which keys a query may see. size: of the window or chunk that the library says it has."""

    rule: _Rule
    size: int | None


def learn_windows(model: PreTrainedModel, segments: Segments) -> dict[str, int]:
    """Gives layers that do not hand on the window of their masks that window, and returns them by path; every other layer's must agree.

    segments: one segment of a few tokens, on the model's device. Raises UserError, naming the layer, where its mask is more than causality and
    a window, is another than it asks for, or is not made by the library.
    """
    masks: list[_Mask] = []
    asked: dict[
        nn.Module, tuple[int | None, int | None]
    ] = {}  # of each layer: which mask it was given, and the window it asks for

    def note_mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        mask_function: _Rule,
        local_size: int | None = None,
        device: torch.device | str = "cpu",
        **_: object,
    ) -> Tensor:
        masks.append(_Mask(rule=mask_function, size=local_size))
        return torch.full((batch_size, 1, q_length, kv_length), len(masks), dtype=torch.int64, device=device)

    def note_layer(
        module: nn.Module,
        query: Tensor,
        _key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        sliding_window: int | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        asked[module] = (_number(attention_mask, len(masks)), sliding_window)
        heads_last = query[..., :1].transpose(1, 2)
        return heads_last.new_zeros(*heads_last.shape[:3], value.shape[-1]), None

    AttentionInterface.register(_NAME, note_layer)
    AttentionMaskInterface.register(_NAME, note_mask)
    ours, length = model.config._attn_implementation, segments.num_tokens
    model.set_attn_implementation(_NAME)
    try:
        with torch.no_grad():
            ids = torch.zeros(1, length, dtype=torch.int64, device=segments.seq_idx.device)
            places = torch.arange(length, device=ids.device)[None]
            model.base_model(
                input_ids=ids, attention_mask=None, position_ids=places, use_cache=False, segments=segments
            )
    finally:
        model.set_attn_implementation(ours)
        # What is registered stays so for the life of the process, and would keep the model's layers with it.
        heard = dict(asked)
        asked.clear()
    names = {module: path for path, module in model.named_modules()}
    learnt: dict[str, int] = {}
    for module, (number, window) in heard.items():
        where = f"{names.get(module, 'a layer')} ({type(module).__name__})"
        if number is None:
            raise UserError(f"{where} makes its mask by itself, so what it may see is not known", _HINT)
        wanted = _window(masks[number - 1], where)
        if window is None and wanted is not None:
            setattr(module, WINDOW, wanted)
            learnt[names[module]] = wanted
        elif window != wanted:
            raise UserError(f"{where} asks for a window of {window} tokens, but its mask has {wanted or 'none'}", _HINT)
    return learnt


def _number(mask: Tensor | None, made: int) -> int | None:
    """Which mask this is; None for one that the library did not make, or that was changed on its way."""
    if mask is None or mask.dtype == torch.bool or mask.numel() == 0:
        return None
    least, most = float(mask.min()), float(mask.max())
    return int(least) if least == most and least.is_integer() and 1 <= least <= made else None


def _window(mask: _Mask, where: str) -> int | None:
    """The window of a rule, None where it is all that came before; raises UserError where it is anything else."""
    edges = [64] if mask.size is None else [64, mask.size, 2 * mask.size, 3 * mask.size]
    queries = torch.tensor(sorted({max(edge + step, 0) for edge in edges for step in (-64, -2, -1, 0, 1, 2)}))[:, None]
    keys = torch.arange(int(queries.max()) + 3)[None]
    zero = torch.zeros(1, 1, dtype=torch.int64)
    try:
        seen = mask.rule(zero, zero, queries, keys).expand(len(queries), keys.shape[1])
    except (IndexError, RuntimeError, TypeError) as error:
        raise UserError(f"{where} has a mask that depends on more than places: {error}", _HINT) from None
    causal = keys <= queries
    if torch.equal(seen, causal):
        return None
    if mask.size is not None and torch.equal(seen, causal & (queries - keys < mask.size)):
        return mask.size
    raise UserError(f"{where} has a mask that is not causality and a window", _HINT)
