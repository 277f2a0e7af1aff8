"""No segment's output depends on another's tokens, forward or backward, nor on how long the others are.

- gradient: of every segment's output with respect to every other segment's input embeddings: exactly 0, or it is a leak.
- perturbation: other first, last and middle tokens in some segments, and what changes in the rest: nothing, bit for bit, where the arithmetic of a token does not
  depend on what the others are; else less than a noise floor (a mixture of experts multiplies as many tokens as were sent to each, and rounds
  accordingly).
- lengths: other lengths of the segments behind an example and of the pad tail, and a pad tail whose positions reach as far as any in the corpus. Finds
  what the first two cannot: RoPE that takes its frequencies from the longest position of a row.

Segments are dealt into two sets by each bit of their number, and each set is held against the other: any two segments differ in some bit, so S
segments need 2·log2(S) passes where one by one they would need S. The noise floor is measured where no leak can reach if gradients show none:
the same pass again, and the first segment under other tokens behind it.

    found = isolation(subject, windows, furthest=8191)
    found.passed, found.leak
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from packer.types import Row
from trainer.batch import Batch
from trainer.check.locate import Leak, crossing_gradient, find_backward, find_forward
from trainer.check.subject import Subject, at_rest, leaf_embeddings
from trainer.check.trace import spread_of
from trainer.check.windows import Window, assemble, owners

# A measured floor is a sample of the noise, not its largest value.
_FLOOR_FACTOR = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """gradient_leak: the largest |gradient| across a boundary. perturbation_leak, length_leak, noise_floor: largest changes of a hidden state, in its own
    units; rms: their size. leak: where the first of them begins, None where nothing leaks. segments: how many were held against one another."""

    gradient_leak: float
    perturbation_leak: float
    length_leak: float
    noise_floor: float
    rms: float
    segments: int
    leak: Leak | None

    @property
    def passed(self) -> bool:
        # Written so that what is not a number fails.
        return (
            self.gradient_leak == 0.0
            and self.perturbation_leak <= self.noise_floor
            and self.length_leak <= self.noise_floor
        )


def isolation(subject: Subject, windows: Sequence[Window], *, furthest: int) -> Isolation:
    """Runs the three tests. windows: of one size. furthest: the largest position that a row of the corpus can have. Under torchrun every rank
    makes the same passes."""
    rows, owner = [window.row for window in windows], owners(windows)
    with at_rest(subject.model):
        gradients = _gradients(subject, rows, owner)
        base = subject.run(rows)
        rms = spread_of([base])
        changed = _perturbations(subject, rows, owner, base)
        lengths = _lengths(subject, windows[0], furthest=furthest)
        noise = max(float((subject.run(rows) - base).abs().max()), *(each.noise for each in changed))
        perturbed = max(changed, key=lambda each: _order(each.leak))
        found = Isolation(
            gradient_leak=max((size for size, _ in gradients), key=_order),
            perturbation_leak=max((each.leak for each in changed), key=_order),
            length_leak=max((each.leak for each in lengths), key=_order),
            noise_floor=_FLOOR_FACTOR * noise,
            rms=rms,
            segments=int(owner.max()) + 1,
            leak=None,
        )
        if found.passed:
            return found
        half = max(gradients, key=lambda each: _order(each[0]))[1]
        return dataclasses.replace(found, leak=_locate(subject, rows, found, half, perturbed, lengths))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Perturbed:
    """Rows with other tokens in some segments, the slots of the others (bool [T]), how much those changed, and how much the first segment did."""

    rows: list[Row]
    untouched: Tensor
    leak: float
    noise: float


def _order(value: float) -> float:
    return float("inf") if value != value else value


def _halves(owner: Tensor) -> Iterator[Tensor]:
    """Sets of segments as slots (bool [T]), such that of any two segments each is once inside a set that the other is not in."""
    for bit in range(max(int(owner.max()).bit_length(), 1)):
        inside = (owner >> bit & 1).bool()
        yield inside
        yield ~inside


def _gradients(subject: Subject, rows: Sequence[Row], owner: Tensor) -> list[tuple[float, Tensor]]:
    """For each half: the largest gradient from its outputs to the embeddings of the other, and the half. A pass each: a sharded model's graph does not
    serve twice."""
    found = []
    for half in _halves(owner):
        if half.all() or not half.any():
            continue
        with torch.enable_grad(), leaf_embeddings(subject) as leaves:
            hidden = subject.hidden(subject.batch(rows))
            found.append((crossing_gradient([hidden[0]], leaves[0], half), half))
    return found or [(0.0, owner == 0)]


def _perturbations(subject: Subject, rows: Sequence[Row], owner: Tensor, base: Tensor) -> list[_Perturbed]:
    found = []
    for half in _halves(owner):
        slots, untouched = _ends_and_middles(owner) & half, ~half
        if not slots.any() or not untouched.any():
            continue
        changed = _with_other_tokens(rows, slots)
        difference = (subject.run(changed) - base).abs()[0].amax(dim=-1).cpu()
        # Tokens after a causal model's first segment cannot reach it; had it learnt of them all the same, a gradient would have shown it.
        first = difference[(owner == 0) & untouched]
        found.append(
            _Perturbed(
                rows=changed,
                untouched=untouched,
                leak=float(difference[untouched].max()),
                noise=float(first.max()) if first.numel() else 0.0,
            )
        )
    return found or [_Perturbed(rows=list(rows), untouched=owner == 0, leak=0.0, noise=0.0)]


def _ends_and_middles(owner: Tensor) -> Tensor:
    """The first, the middle and the last slot of each segment: bool [T]."""
    lengths = torch.bincount(owner)
    starts = lengths.cumsum(0) - lengths
    slots = torch.zeros_like(owner, dtype=torch.bool)
    slots[torch.cat([starts, starts + lengths // 2, starts + lengths - 1])] = True
    return slots


def _with_other_tokens(rows: Sequence[Row], slots: Tensor) -> list[Row]:
    """Rows in which each chosen slot (bool [T]) holds another of the tokens that occur in them."""
    known = np.unique(np.concatenate([row.input_ids for row in rows]))
    changed = []
    for row, chosen in zip(rows, slots.numpy().reshape(len(rows), -1), strict=True):
        ids = row.input_ids.copy()
        places = (np.searchsorted(known, ids[chosen]) + 1) % len(known)
        # One single token in all the rows: its neighbour, which a vocabulary of at least two has.
        ids[chosen] = known[places] if len(known) > 1 else (ids[chosen] == 0).astype(np.int32)
        changed.append(row._replace(input_ids=ids))
    return changed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Length:
    """A row whose first `example` slots hold the example. furthest: the position that its last slot is moved to, None: as the format has it."""

    row: Row
    example: int
    furthest: int | None
    leak: float = 0.0

    def batch(self, subject: Subject) -> Batch:
        batch = subject.batch([self.row])
        if self.furthest is None:
            return batch
        positions = batch.position_ids.clone()
        positions[0, self.example :] += self.furthest - int(positions[0, -1])
        return dataclasses.replace(batch, position_ids=positions)

    def run(self, subject: Subject) -> Tensor:
        with torch.no_grad():
            hidden = subject.hidden(self.batch(subject))[0, : self.example].detach()
        subject.settle()
        return hidden


def _lengths(subject: Subject, window: Window, *, furthest: int) -> list[_Length]:
    """An example at the start of a row, and how much it changes when what lies behind it is cut otherwise. The first is what the others are held
    against."""
    slots, pad_id = len(window.row.input_ids), int(window.row.input_ids[-1])
    piece = max(window.pieces, key=len)
    length = min(len(piece), slots // 2)
    piece = dataclasses.replace(piece, ids=piece.ids[:length], mask=piece.mask[:length])
    others = [each for each in window.pieces if len(each) <= (slots - length) // 4][:3]
    cuts = [[piece], [piece, *others, piece], [piece, *others[:1]]]
    rows = [assemble(cut, slots=slots, pad_id=pad_id).row for cut in cuts if sum(map(len, cut)) <= slots]
    plain, *cases = [_Length(row=row, example=length, furthest=None) for row in rows]
    if furthest > slots - length - 1:
        cases.append(dataclasses.replace(plain, furthest=furthest))
    hidden = plain.run(subject)
    return [plain, *(dataclasses.replace(each, leak=float((each.run(subject) - hidden).abs().max())) for each in cases)]


def _locate(
    subject: Subject,
    rows: Sequence[Row],
    found: Isolation,
    half: Tensor,
    perturbed: _Perturbed,
    lengths: Sequence[_Length],
) -> Leak:
    floor = found.noise_floor / found.rms if found.rms else 0.0
    leak: Leak | None = None
    if not found.perturbation_leak <= found.noise_floor:
        before, after = subject.batch(rows), subject.batch(perturbed.rows)
        leak = find_forward(subject, before, after, where=perturbed.untouched, floor=floor)
    elif found.gradient_leak != 0.0:
        leak = find_backward(subject, subject.batch(rows), targets=half)
    else:
        plain, worst = lengths[0], max(lengths, key=lambda each: _order(each.leak))
        inside = torch.arange(len(plain.row.input_ids)) < plain.example
        before, after = plain.batch(subject), worst.batch(subject)
        leak = find_forward(subject, before, after, where=inside, floor=floor, direction="lengths")
    size = max(found.gradient_leak, found.perturbation_leak, found.length_leak, key=_order)
    return leak or Leak(module="the model as a whole", kernel="", mechanism="unknown", size=size, direction="forward")
