"""The same as `trainer.check.equality`, on the model that a run would train, with its kernels and in its dtype.

Rounding there depends on where in a row an example lies: how it falls into the chunks of 64 of a delta rule moves a gradient by 1e-4 in float32. So an
example is held against itself alone at the start of a row, and may differ from that packed by 4 times what it differs alone at other places (the
one that it has in the row among them) with other padding, or by 8 times the grain of the dtype.

    found = equality_in_training(subject, model, units, window, dtype=torch.bfloat16, ranks=ranks)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.check.equality import Equality
from trainer.check.gradients import distances, norms_of, plain_gradient, relative
from trainer.check.subject import Subject, at_rest
from trainer.check.windows import Piece, Window, assemble, counted
from trainer.ranks import Ranks

_SPREADS, _GRAINS = 4.0, 8.0
_ELSEWHERE = 13  # slots: inside a chunk of 64


def equality_in_training(
    subject: Subject,
    model: nn.Module,
    units: Sequence[FSDPModule],
    window: Window,
    *,
    dtype: torch.dtype,
    ranks: Ranks,
) -> Equality:
    """The window packed against its examples one by one; every rank calls it and makes the same passes."""
    places = _places(window)
    grain = _GRAINS * torch.finfo(dtype).eps
    with at_rest(subject.model):
        logits = _logits(subject, window, places, grain)
        names = [name for name, _ in model.named_parameters()]
        gradients = _gradients(subject, model, units, window, places, grain, ranks)
    named = {f"the gradient of {name}": pair for name, pair in zip(names, gradients, strict=True)}
    every = {**logits, **named}
    worst = max(every, key=lambda name: _ratio(*every[name]))
    return Equality(
        dtype=str(dtype).removeprefix("torch."),
        max_logit_error=max(error for error, _ in logits.values()),
        max_grad_error=max((error for error, _ in gradients), default=0.0),
        loss_error=0.0,
        tolerance=max(allowed for _, allowed in every.values()),
        worst_ratio=_ratio(*every[worst]),
        worst=worst,
    )


def _ratio(error: float, allowed: float) -> float:
    return error / allowed if error == error else float("inf")


def _places(window: Window) -> list[list[int]]:
    """Where each example lies when it is alone, three times over: at the start, where it is in the window, and elsewhere."""
    slots, lengths = len(window.row.input_ids), window.lengths
    packed = [sum(lengths[:number]) for number in range(len(lengths))]
    elsewhere = [min(_ELSEWHERE, slots - length) for length in lengths]
    return [[0] * len(lengths), packed, elsewhere]


def _logits(
    subject: Subject, window: Window, places: Sequence[Sequence[int]], grain: float
) -> dict[str, tuple[float, float]]:
    """For each example: the error of its logits and what it may be, both relative to their norm."""

    def run(each: Window, start: int, length: int) -> Tensor:
        with torch.no_grad():
            logits = subject.logits(subject.batch([each.row]))[0, start : start + length].float()
        subject.settle()
        return logits

    packed = run(window, 0, len(window.row.input_ids))
    found, start = {}, 0
    for number, piece in enumerate(window.pieces):
        runs = [run(_alone(window, piece, at[number]), at[number], len(piece)) for at in places]
        scale = float(runs[0].norm())
        spread = max((float((each - runs[0]).norm()) for each in runs[1:]), default=0.0)
        error = float((packed[start : start + len(piece)] - runs[0]).norm())
        found[f"logits of example {number} of {len(piece)} tokens"] = (
            error / scale,
            max(_SPREADS * spread / scale, grain),
        )
        start += len(piece)
    return found


def _gradients(
    subject: Subject,
    model: nn.Module,
    units: Sequence[FSDPModule],
    window: Window,
    places: Sequence[Sequence[int]],
    grain: float,
    ranks: Ranks,
) -> list[tuple[float, float]]:
    """For each parameter: the error of its gradient and what it may be, both relative. One gradient is held on to, the others come and go."""
    # Every rank computes all of it, and a sharded model sums over them.
    targets = (float(sum(counted(piece).sum() for piece in window.pieces)) or 1) * ranks.world

    def of(windows: Sequence[Window]) -> list[Tensor]:
        passes = [subject.batch([each.row]) for each in windows]
        return plain_gradient(model, units, passes, divisor=targets, ranks=ranks)

    first = of(_all_alone(window, places[0]))
    spreads = [0.0] * len(first)
    for at in places[1:]:
        other = of(_all_alone(window, at))
        spreads = list(map(max, spreads, distances(other, first, ranks)))
    errors, norms = distances(of([window]), first, ranks), norms_of(first, ranks)
    allowed = [max(_SPREADS * spread, grain) for spread in relative(spreads, norms)]
    return list(zip(relative(errors, norms), allowed, strict=True))


def _all_alone(window: Window, places: Sequence[int]) -> list[Window]:
    return [_alone(window, piece, place) for piece, place in zip(window.pieces, places, strict=True)]


def _alone(window: Window, piece: Piece, before: int) -> Window:
    """The example with nothing but pad tokens in its row."""
    slots, pad_id = len(window.row.input_ids), int(window.row.input_ids[-1])
    filler = Piece(ids=np.full(before, pad_id, np.int32), mask=np.zeros(before, bool))
    return assemble([filler, piece] if before else [piece], slots=slots, pad_id=pad_id)
