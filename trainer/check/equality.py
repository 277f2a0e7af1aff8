"""An example computes in a packed row what it computes alone: logits, loss, and the gradient of every parameter, in float64.

Packed is our model with reference kernels, alone is the library's own model run on each example by itself; they agree to 1e-9, normwise per
parameter. What the run's own kernels and dtype make of it is `trainer.check.equality_in_training`.

    found = equality_in_float64(doubles, windows, device)
    found.max_grad_error, found.worst
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.check.doubles import Doubles, plain_functions
from trainer.check.subject import rows_to_batch
from trainer.check.windows import Window, counted
from trainer.float64 import float32_means_float64
from trainer.step import loss_of, optimised, reported

FLOAT64_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Equality:
    """max_logit_error: the largest ‖packed − alone‖ ÷ ‖alone‖ of an example's logits; max_grad_error: of a parameter's gradient, `worst` its name;
    loss_error: of the summed loss. worst_ratio: the largest error ÷ what it may be; passed where that is at most 1. tolerance: the largest relative error
    that was allowed."""

    dtype: str
    max_logit_error: float
    max_grad_error: float
    loss_error: float
    tolerance: float
    worst_ratio: float
    worst: str

    @property
    def passed(self) -> bool:
        return self.worst_ratio <= 1.0


def equality_in_float64(doubles: Doubles, windows: Sequence[Window], device: torch.device) -> Equality:
    """Windows packed into one pass against their examples one by one. A parameter whose gradient is less than a millionth of the whole is held
    against that millionth: what cancels to 0 has no relative error."""
    packed, alone = doubles.packed, doubles.alone
    windows = [renumbered(window, doubles) for window in windows]
    batch = rows_to_batch([window.row for window in windows], device)
    logit_errors, theirs_total = [], torch.zeros((), dtype=torch.float64, device=device)
    with float32_means_float64(), plain_functions(alone):
        with torch.no_grad():
            logits = packed.logits(batch.input_ids, batch.position_ids, batch.segments)[0]
        start = 0
        for window in windows:
            at = start
            for piece in window.pieces:
                ids = torch.from_numpy(piece.ids).long().to(device)
                own = alone(input_ids=ids[None], use_cache=False).logits[0]
                logit_errors.append(_relative(logits[at : at + len(piece)], own.detach()))
                targets = torch.from_numpy(np.flatnonzero(piece.mask)).to(device)
                weights = torch.from_numpy(counted(piece)[piece.mask]).to(own)
                loss = (weights * F.cross_entropy(own[targets - 1], ids[targets], reduction="none")).sum()
                torch.autograd.backward(loss)
                theirs_total += loss.detach()
                at += len(piece)
            start += len(window.row.input_ids)
        ours = loss_of(packed, batch)
        ours_total, said_total = optimised(ours), reported(ours)
        torch.autograd.backward(ours_total)
    expected = {name: _whole(parameter) for name, parameter in alone.named_parameters()}
    total = float(torch.stack([gradient.norm() for gradient in expected.values()]).norm())
    errors = {}
    for name, parameter in packed.model.named_parameters():
        gradient = expected[name]
        scale = max(float(gradient.norm()), 1e-6 * total)
        errors[name] = float((_whole(parameter) - gradient).norm()) / scale if scale else 0.0
    packed.zero_grad()
    alone.zero_grad()
    worst = max(errors, key=lambda name: errors[name])
    loss_error = max(_relative(each.detach(), theirs_total) for each in (ours_total, said_total))
    largest = {"logits": max(logit_errors), "the loss": loss_error, f"the gradient of {worst}": errors[worst]}
    return Equality(
        dtype="float64",
        max_logit_error=max(logit_errors),
        max_grad_error=errors[worst],
        loss_error=loss_error,
        tolerance=FLOAT64_TOLERANCE,
        worst_ratio=max(largest.values()) / FLOAT64_TOLERANCE,
        worst=max(largest, key=lambda name: largest[name]),
    )


def renumbered(window: Window, doubles: Doubles) -> Window:
    """The window with the ids that its tokens have in a model cut to a smaller vocabulary."""
    if doubles.ids is None:
        return window

    def numbered(ids: np.ndarray) -> np.ndarray:
        return doubles.numbers(torch.from_numpy(ids).long()).numpy().astype(np.int32)

    pieces = tuple(dataclasses.replace(piece, ids=numbered(piece.ids)) for piece in window.pieces)
    row = window.row._replace(input_ids=numbered(window.row.input_ids))
    return dataclasses.replace(window, row=row, pieces=pieces)


def _whole(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _relative(ours: Tensor, theirs: Tensor) -> float:
    scale, error = float(theirs.norm()), float((ours - theirs).norm())
    return error / scale if scale else error
