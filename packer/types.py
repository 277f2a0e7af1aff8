"""The nouns that both programs share: a packed row, and what a conversation becomes on its way into one.

conversation ──render──▶ example ──plan, layout──▶ segment of a row
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int16Array = NDArray[np.int16]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]


class Row(NamedTuple):
    """One fixed-size buffer of C slots; the fields are the columns of a shard (`packer/FORMAT.md`).

    input_ids: int32 [C]. loss_mask: bool [C]. position_ids: uint16 or int32 [C]. cu_seqlens: int32 [S+1]. example_ids: int64 [S], -1 for the
    pad tail and unused places. num_segments counts the pad tail, num_examples does not. sum_sq_len: sum of the squared lengths of the examples'
    segments. example_lens: int32 [S] where examples are aligned, which fills their segments up with pads; else None, and a segment is its example.
    loss_weights: float32 [C], what each target counts in the loss, 0 where there is none; None in a build in which every target counts 1.
    All arrays but loss_mask may be read-only views of a memory-mapped file. A named tuple, since a frozen dataclass takes three times as long to
    make, which is a fifth of what reading a row costs.
    """

    input_ids: Int32Array
    loss_mask: BoolArray
    position_ids: NDArray[np.uint16] | Int32Array
    cu_seqlens: Int32Array
    num_segments: int
    num_examples: int
    example_ids: Int64Array
    num_supervised: int
    sum_sq_len: int
    example_lens: Int32Array | None = None
    loss_weights: Float32Array | None = None

    @property
    def lengths(self) -> Int32Array:
        """The tokens of each example, alignment padding not counted: int32 [num_examples]."""
        if self.example_lens is not None:
            return self.example_lens[: self.num_examples]
        return np.diff(self.cu_seqlens[: self.num_examples + 1])

    @property
    def tokens(self) -> int:
        """The tokens of all examples in the row, no padding counted."""
        if self.example_lens is not None:
            return int(self.example_lens.sum())
        return int(self.cu_seqlens[self.num_examples])
