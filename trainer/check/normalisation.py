"""The gradient of a step is the same however its rows are split over passes and ranks: Σ cross-entropy over all targets ÷ their number, or where they have
weights Σ weight · cross-entropy ÷ Σ weight.

What is compared are gradients that the step of a run adds up, divided by what it divides by; what they are held against is one pass over all rows,
divided by what is counted here, from the pieces that the windows were made of.

    found = normalisation_by_passes(doubles, windows, ranks)        # float64: to 1e-9
    found = normalisation_by_ranks(model, units, windows, dtype=torch.float32, ranks=ranks)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from packer.order import StepRows, deal
from trainer import loader
from trainer.batch import Batch
from trainer.check.doubles import Doubles
from trainer.check.equality import FLOAT64_TOLERANCE, renumbered
from trainer.check.gradients import distances, gradient_of, norms_of, plain_gradient, relative
from trainer.check.subject import at_rest, rows_to_batch
from trainer.check.windows import Window, counted
from trainer.float64 import float32_means_float64
from trainer.ranks import Ranks

_SPREADS, _GRAINS = 4.0, 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalisation:
    """split: what the rows were split over. error: the largest relative error of a parameter's gradient, `worst` its name; scale: what the whole
    gradient is multiplied by, 1 where it is right. worst_ratio: error ÷ what it may be."""

    split: str
    error: float
    tolerance: float
    scale: float
    worst_ratio: float
    worst: str

    @property
    def passed(self) -> bool:
        return self.worst_ratio <= 1.0


def normalisation_by_passes(doubles: Doubles, windows: Sequence[Window], ranks: Ranks) -> Normalisation:
    """All rows in one pass against passes of one row, and of two, in float64 on this rank alone."""
    model, alone = doubles.packed, _only_me(ranks)
    windows = [renumbered(window, doubles) for window in windows]
    with float32_means_float64():
        whole = _by_hand(model, (), windows, divisor=_targets(windows), ranks=alone)
        splits = [
            gradient_of(model, (), _dealt(windows, alone, micro_rows=rows), targets=_of_run(windows), ranks=alone)
            for rows in (1, 2)
        ]
    return _compare(
        model, f"passes of 1 and of 2 of {len(windows)} rows", whole, splits, None, FLOAT64_TOLERANCE, alone
    )


def normalisation_by_ranks(
    model: nn.Module, units: Sequence[FSDPModule], windows: Sequence[Window], *, dtype: torch.dtype, ranks: Ranks
) -> Normalisation:
    """All rows on every rank, in one pass, against the rows dealt out to the ranks. The order of rows in the one pass says what rounding does."""
    targets = _targets(windows)
    with at_rest(model):
        whole = _by_hand(model, units, windows, divisor=targets * ranks.world, ranks=ranks)
        other = _by_hand(model, units, windows[::-1], divisor=targets * ranks.world, ranks=ranks)
        dealt = gradient_of(model, units, _dealt(windows, ranks, micro_rows=1), targets=_of_run(windows), ranks=ranks)
    grain = _GRAINS * torch.finfo(dtype).eps
    return _compare(model, f"{ranks.world} ranks", whole, [dealt], other, grain, ranks)


def _compare(
    model: nn.Module,
    split: str,
    whole: Sequence[Tensor],
    splits: Sequence[Sequence[Tensor]],
    other: Sequence[Tensor] | None,
    grain: float,
    ranks: Ranks,
) -> Normalisation:
    norms = norms_of(whole, ranks)
    spread = [0.0] * len(whole) if other is None else relative(distances(other, whole, ranks), norms)
    allowed = [max(_SPREADS * each, grain) for each in spread]
    names = [name for name, _ in model.named_parameters()]
    found = []
    for each in splits:
        errors = relative(distances(each, whole, ranks), norms)
        ratios = [error / most if error == error else float("inf") for error, most in zip(errors, allowed, strict=True)]
        place = max(range(len(ratios)), key=ratios.__getitem__)
        size = sum(norm**2 for norm in norms_of(each, ranks)) ** 0.5
        scale = size / max(sum(norm**2 for norm in norms) ** 0.5, 1e-300)
        found.append(
            Normalisation(
                split=split,
                error=max(errors),
                tolerance=max(allowed),
                scale=scale,
                worst_ratio=ratios[place],
                worst=names[place],
            )
        )
    return max(found, key=lambda each: each.worst_ratio)


def _targets(windows: Sequence[Window]) -> float:
    weights = [counted(piece).astype(np.float64) for window in windows for piece in window.pieces]
    return float(sum(each.sum() for each in weights)) or 1


def _of_run(windows: Sequence[Window]) -> float:
    # Through its module, so that what is checked is what a run calls.
    _, targets = loader.weigh(window.row for window in windows)
    return targets or 1


def _by_hand(
    model: nn.Module, units: Sequence[FSDPModule], windows: Sequence[Window], *, divisor: float, ranks: Ranks
) -> list[Tensor]:
    whole = rows_to_batch([window.row for window in windows], ranks.device)
    return plain_gradient(model, units, [whole], divisor=divisor, ranks=ranks)


def _dealt(windows: Sequence[Window], ranks: Ranks, *, micro_rows: int) -> list[Batch]:
    """This rank's passes, dealt as a run deals the rows of a step."""
    count = len(windows)
    step = StepRows(rows=np.arange(count), epochs=np.zeros(count, np.int64), weights=np.ones(count, bool))
    cost = np.array([window.row.sum_sq_len for window in windows])
    dealt = deal(step, cost=cost, world=ranks.world, micro_rows=micro_rows, balance="batch")
    return [
        rows_to_batch([windows[int(number)].row for number in rows], ranks.device, weights.tolist())
        for rows, weights in zip(dealt.rows[:, ranks.rank], dealt.weights[:, ranks.rank], strict=True)
    ]


def _only_me(ranks: Ranks) -> Ranks:
    return Ranks(rank=0, world=1, local_rank=0, local_world=1, device=ranks.device)
