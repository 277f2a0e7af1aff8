"""Small rows cut from the real ones: the proof costs the same whatever the corpus.

A window is a valid row of the format with few slots, made of pieces of real examples. Where its segments end is known from how it was cut
(`lengths`, `pad`), never read back from a batch: a batch that is made wrongly must not be its own witness.

    windows = cut_windows(corpus)        # the first rows, those with the most, the fewest and the shortest segments, and a long one
    windows[0].lengths, windows[0].pad
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from packer.shards import Corpus
from packer.types import BoolArray, Float32Array, Int32Array, Row

# Five chunks of 64: room for segments below a chunk, past one, and past two with a rest.
SLOTS = 320
PLACES = 16  # for segments in a window
_EXAMPLES = 12
_LOOKED_AT = 64  # rows that are searched for the shortest examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of one example: ids int32 [n], mask bool [n] (never true on the first). weights float32 [n]: what each target counts, 0 elsewhere; None where
    the corpus has no weights."""

    ids: Int32Array
    mask: BoolArray
    weights: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """row: of C slots. lengths: of its examples, in order. pad: slots of the pad tail, 0 where there is none. origin: for a person."""

    row: Row
    pieces: tuple[Piece, ...]
    pad: int
    origin: str

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each piece, in order; the pad is not among them."""
        return tuple(len(piece) for piece in self.pieces)

    @property
    def segments(self) -> tuple[int, ...]:
        """Lengths of all segments, the pad tail included."""
        return (*self.lengths, self.pad) if self.pad else self.lengths


def assemble(pieces: Sequence[Piece], *, slots: int, pad_id: int, origin: str = "") -> Window:
    """Pieces one behind the other in a row of `slots` slots, the rest a pad tail. Raises ValueError where they do not fit."""
    lengths = [len(piece) for piece in pieces]
    used, pad = sum(lengths), slots - sum(lengths)
    segments = [*lengths, pad] if pad else lengths
    if pad < 0 or len(segments) > PLACES:
        raise ValueError(f"{lengths} do not fit {slots} slots and {PLACES} segments")
    ids, mask, weights = np.full(slots, pad_id, np.int32), np.zeros(slots, bool), np.zeros(slots, np.float32)
    if pieces:
        ids[:used] = np.concatenate([piece.ids for piece in pieces])
        mask[:used] = np.concatenate([piece.mask for piece in pieces])
        weights[:used] = np.concatenate([counted(piece) for piece in pieces])
    cu_seqlens = np.full(PLACES + 1, slots, np.int32)
    cu_seqlens[: len(segments) + 1] = np.cumsum([0, *segments])
    example_ids = np.full(PLACES, -1, np.int64)
    example_ids[: len(pieces)] = np.arange(len(pieces))
    row = Row(
        input_ids=ids,
        loss_mask=mask,
        position_ids=np.concatenate([np.arange(length, dtype=np.int32) for length in segments]),
        cu_seqlens=cu_seqlens,
        example_ids=example_ids,
        num_segments=len(segments),
        num_examples=len(pieces),
        num_supervised=int(mask.sum()),
        sum_sq_len=sum(length**2 for length in lengths),
        loss_weights=weights if any(piece.weights is not None for piece in pieces) else None,
    )
    return Window(row=row, pieces=tuple(pieces), pad=pad, origin=origin)


def counted(piece: Piece) -> Float32Array:
    """What each token of a piece counts in the loss, whether or not the corpus has weights."""
    return piece.mask.astype(np.float32) if piece.weights is None else piece.weights


def owners(windows: Sequence[Window]) -> Tensor:
    """The number of each slot's segment over all windows one behind the other (pad tails are segments): int64 [M·C]."""
    lengths = torch.tensor([length for window in windows for length in window.segments])
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def cut_windows(corpus: Corpus, *, quick: bool = False) -> list[Window]:
    """Five windows of one size; where `quick` one, of the shortest segments.

    It has segments of 1, 2 and 3 tokens, some past the 64 tokens of a chunk (where a row has more than 64 slots), and a pad tail; the others add a long segment
    and a row without a pad tail.
    """
    slots, pad_id = min(SLOTS, corpus.capacity), corpus.manifest.pad_id
    most = max(corpus.manifest.max_segment_len, 1)
    counts = corpus.column("num_examples")
    looked_at = sorted({*range(min(_LOOKED_AT, len(corpus))), *np.argsort(-counts, kind="stable")[:16].tolist()})
    shortest = min(looked_at, key=lambda number: min(_lengths(corpus[number])))
    longest = max(looked_at, key=lambda number: max(_lengths(corpus[number])))

    def window(name: str, number: int, wanted: Sequence[int]) -> Window:
        pieces = _fit(_pieces(corpus[number]), wanted)
        return assemble(pieces, slots=slots, pad_id=pad_id, origin=f"{name} (row {number:,})")

    def even(number: int) -> list[int]:
        examples = min(int(counts[number]), _EXAMPLES)
        return [max((slots - slots // 8) // examples, 1)] * examples

    chosen = [
        window("shortest segments", shortest, _short(slots)),
        window("a long segment, no pad tail", longest, _long(slots, most)),
    ]
    if quick:
        return chosen[:1]
    number_most, number_fewest = int(counts.argmax()), int(counts.argmin())
    return [
        *chosen,
        window("first", 0, even(0)),
        window("most segments", number_most, even(number_most)),
        window("fewest segments", number_fewest, even(number_fewest)),
    ]


def _short(slots: int) -> list[int]:
    """Lengths of 1, 2 and 3 between others on both sides of a chunk's 64, that leave a sixth of the slots to the pad tail."""
    lengths, room = [30, 1, 2, 3, 1], slots - slots // 6
    for length in (63, 65, 5, 97):
        if sum(lengths) + length <= room:
            lengths.append(length)
    return lengths


def _long(slots: int, most: int) -> list[int]:
    """A segment of up to two thirds of the slots, and what fills the rest to the last slot."""
    first = min(slots * 11 // 16, most)
    rest = slots - first
    return [first, *([rest - 5, 5] if rest > 5 else [rest])]


def _lengths(row: Row) -> list[int]:
    lengths: list[int] = np.diff(row.cu_seqlens[: row.num_examples + 1]).tolist()
    return lengths or [0]


def _pieces(row: Row) -> list[Piece]:
    bounds = row.cu_seqlens[: row.num_examples + 1].tolist()
    weights = row.loss_weights
    return [
        Piece(
            ids=np.array(row.input_ids[start:end]),
            mask=np.array(row.loss_mask[start:end], dtype=bool),
            weights=None if weights is None else np.array(weights[start:end]),
        )
        for start, end in itertools.pairwise(bounds)
    ]


def _fit(pieces: Sequence[Piece], wanted: Sequence[int]) -> list[Piece]:
    """Pieces of exactly these lengths, taken in turn from the examples; where none is long enough, from all of them one behind the other."""
    ids, mask = np.concatenate([piece.ids for piece in pieces]), np.concatenate([piece.mask for piece in pieces])
    weights = np.concatenate([counted(piece) for piece in pieces])
    repeats = -(-max(wanted) // len(ids))
    whole = Piece(
        ids=np.tile(ids, repeats),
        mask=np.tile(mask, repeats),
        weights=None if pieces[0].weights is None else np.tile(weights, repeats),
    )
    cut = []
    for place, length in enumerate(wanted):
        in_turn = [pieces[(place + step) % len(pieces)] for step in range(len(pieces))]
        cut.append(_around_targets(next((piece for piece in in_turn if len(piece) >= length), whole), length))
    return cut


def _around_targets(piece: Piece, length: int) -> Piece:
    """`length` tokens of a piece, a third of them before its first target, so that there is something to train on."""
    targets = np.flatnonzero(piece.mask)
    wished = int(targets[0]) - length // 3 if len(targets) else 0
    start = min(max(wished, 0), len(piece) - length)
    mask = piece.mask[start : start + length].copy()
    mask[0] = False
    weights = None if piece.weights is None else piece.weights[start : start + length] * mask
    return Piece(ids=piece.ids[start : start + length], mask=mask, weights=weights)
