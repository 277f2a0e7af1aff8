"""How examples lie in a row: pure functions from token arrays to the columns of a shard.

>>> batch = lay_out([[(7, np.arange(3, dtype=np.int32), np.array([False, True, True]))]], capacity=64, max_segments=8, pad_id=0)
>>> batch.cu_seqlens[0].tolist(), batch.example_ids[0].tolist()[:2]
([0, 3, 64, 64, 64, 64, 64, 64, 64], [7, -1])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.schema import RowBatch, position_dtype
from packer.types import BoolArray, Int32Array

# (example_id, ids int32 [n], loss_mask bool [n])
Placed = tuple[int, Int32Array, BoolArray]


def lay_out(
    rows: Sequence[Sequence[Placed]], *, capacity: int, max_segments: int, pad_id: int, align: int = 1
) -> RowBatch:
    """Lays each row's examples one behind the other from slot 0; what is left over is one pad tail, a segment of its own.

    With an alignment above 1 each segment is filled up with pads to a multiple of it, behind the example's last token, so that the next begins at one.

    Raises ValueError where a row's examples do not fit its capacity or its segments.
    """
    count = len(rows)
    input_ids = np.full((count, capacity), pad_id, dtype=np.int32)
    loss_mask = np.zeros((count, capacity), dtype=bool)
    position_ids = np.zeros((count, capacity), dtype=position_dtype(capacity))
    cu_seqlens = np.full((count, max_segments + 1), capacity, dtype=np.int32)
    cu_seqlens[:, 0] = 0
    example_ids = np.full((count, max_segments), -1, dtype=np.int64)
    num_examples = np.zeros(count, dtype=np.int32)
    num_segments = np.zeros(count, dtype=np.int32)
    sum_sq_len = np.zeros(count, dtype=np.int64)
    example_lens = np.zeros((count, max_segments), dtype=np.int32)
    positions = np.arange(capacity, dtype=position_ids.dtype)
    for row, examples in enumerate(rows):
        at = 0
        for place, (example_id, ids, mask) in enumerate(examples):
            length = -(-len(ids) // align) * align
            end = at + length
            if end > capacity or place >= max_segments or not len(ids):
                raise ValueError(
                    f"row {row}: {len(examples)} examples do not fit {capacity} slots and {max_segments} segments"
                )
            input_ids[row, at : at + len(ids)] = ids
            loss_mask[row, at : at + len(ids)] = mask
            position_ids[row, at:end] = positions[:length]
            cu_seqlens[row, place + 1] = end
            example_ids[row, place] = example_id
            sum_sq_len[row] += length**2
            example_lens[row, place] = len(ids)
            at = end
        has_tail = at < capacity
        if has_tail:
            if len(examples) >= max_segments:
                raise ValueError(f"row {row}: no segment left for the pad tail")
            position_ids[row, at:] = positions[: capacity - at]
        num_examples[row] = len(examples)
        num_segments[row] = len(examples) + has_tail
    return RowBatch(
        input_ids=input_ids,
        loss_mask=loss_mask,
        position_ids=position_ids,
        cu_seqlens=cu_seqlens,
        num_segments=num_segments,
        num_examples=num_examples,
        example_ids=example_ids,
        num_supervised=loss_mask.sum(axis=1).astype(np.int32),
        sum_sq_len=sum_sq_len,
        example_lens=example_lens if align > 1 else None,
    )
