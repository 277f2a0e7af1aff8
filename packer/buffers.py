"""The buffers that a model is given, as blocks in lanes: the same examples in packed rows, and in padded batches of four.

>>> row = Lane(slots=64, blocks=(Block(example=0, start=0, tokens=40), Block(example=1, start=40, tokens=24)))
>>> [[(lane.slots, lane.blocks[0].tokens) for lane in batch] for batch in padded([row], in_batch=2)]
[[(40, 24), (40, 40)]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packer.order import permutation

IN_BATCH = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Slots [start, start + tokens) of a lane, which hold an example."""

    example: int
    start: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One line of a buffer: a packed row, or an example and its padding. What no block covers is padding."""

    slots: int
    blocks: tuple[Block, ...]

    @property
    def tokens(self) -> int:
        """Of its examples, without what is padding."""
        return sum(block.tokens for block in self.blocks)


Batch = tuple[Lane, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """The same examples twice. more: examples of the last row that neither shows."""

    packed: tuple[Lane, ...]
    padded: tuple[Batch, ...]
    more: int


def padded(lanes: Sequence[Lane], *, in_batch: int = IN_BATCH, seed: int = 0) -> tuple[Batch, ...]:
    """The examples of some packed rows in random order, `in_batch` to a batch, each padded to the longest of its batch."""
    blocks = [block for lane in lanes for block in lane.blocks]
    drawn = [blocks[place] for place in permutation(len(blocks), seed)]
    batches = [drawn[first : first + in_batch] for first in range(0, len(drawn), in_batch)]
    return tuple(
        tuple(
            Lane(
                slots=max(block.tokens for block in batch),
                blocks=(Block(example=one.example, start=0, tokens=one.tokens),),
            )
            for one in batch
        )
        for batch in batches
    )
