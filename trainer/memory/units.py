"""What FSDP2 makes of a model: units that are gathered and reduced as a whole, each parameter cut into equal rows over the ranks.

unit = Unit.of(block.parameters())
unit.shard(8)        # numbers of it that each of 8 ranks holds, the last rows padded
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from trainer.model import PackedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """shapes: of its parameters; a tied one once."""

    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, parameters: Iterable[Tensor]) -> Unit:
        """The unit of these parameters."""
        return cls(shapes=tuple(tuple(parameter.shape) for parameter in parameters))

    @property
    def whole(self) -> int:
        """Numbers in all of its parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def largest(self) -> int:
        """Numbers in its largest parameter."""
        return max((math.prod(shape) for shape in self.shapes), default=0)

    def shard(self, ranks: int) -> int:
        """Numbers that a rank holds: of each parameter its rows ÷ ranks, rounded up."""
        return sum(_rows(shape, ranks) * math.prod(shape[1:]) for shape in self.shapes)

    def largest_shard(self, ranks: int) -> int:
        """Numbers in a rank's part of the parameter of which it holds most."""
        return max((_rows(shape, ranks) * math.prod(shape[1:]) for shape in self.shapes), default=0)

    def padded(self, ranks: int) -> int:
        """Numbers in a buffer that takes all ranks' parts."""
        return self.shard(ranks) * ranks


def _rows(shape: tuple[int, ...], ranks: int) -> int:
    return -(-shape[0] // ranks) if shape else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """blocks: the decoder layers, in order. root: what is left (embeddings, last norm, head). buffers: bytes of what is not trained."""

    blocks: tuple[Unit, ...]
    root: Unit
    buffers: int

    @classmethod
    def of(cls, model: PackedModel) -> Units:
        """Each decoder block a unit, and the root with what is in none of them."""
        blocks = [list(block.parameters()) for block in model.blocks]
        inside = {id(parameter) for block in blocks for parameter in block}
        return cls(
            blocks=tuple(Unit.of(block) for block in blocks),
            root=Unit.of(parameter for parameter in model.parameters() if id(parameter) not in inside),
            buffers=sum(buffer.nbytes for buffer in model.buffers()),
        )

    @property
    def all(self) -> tuple[Unit, ...]:
        """The blocks in order, then the root."""
        return (*self.blocks, self.root)

    @property
    def whole(self) -> int:
        """Numbers in all parameters."""
        return sum(unit.whole for unit in self.all)
