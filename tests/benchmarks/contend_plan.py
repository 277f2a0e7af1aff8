"""Contender: one way to plan rows for an array of lengths. Prints its seconds, rows, examples in the fullest row and peak memory above the input.

python -m tests.benchmarks.contend_plan WAY LENGTHS.npy CAPACITY

What is timed is the one call that plans, with the lengths in the form it takes, after one on a few lengths: imports that a first call makes are not planning. Its plan is checked outside of that: every
example once, no row above the capacity.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Plan = tuple[np.ndarray, np.ndarray]  # offsets [R+1], members [N]
# (what the call takes, the call, its outcome as a plan)
Way = tuple[object, Callable[[object], object], Callable[[object], Plan | None]]


def ours(strategy: str, max_segments: int | None) -> Callable[[np.ndarray, int], Way]:
    def way(lengths: np.ndarray, capacity: int) -> Way:
        from packer.plan import make_plan

        def call(lengths: object) -> object:
            return make_plan(lengths, capacity=capacity, max_segments=max_segments, strategy=strategy)

        return lengths, call, lambda plan: (plan.offsets, plan.members)

    return way


def yardstick(lengths: np.ndarray, _: int) -> Way:
    """What any plan on counts does at least: count, and sort by length."""

    def call(lengths: np.ndarray) -> object:
        return np.bincount(lengths), np.argsort(lengths.astype(np.uint16), kind="stable")

    return lengths, call, lambda _: None


def lightbinpack(lengths: np.ndarray, capacity: int) -> Way:
    from lightbinpack import obfd

    return lengths.tolist(), lambda lengths: obfd(lengths, capacity), of_lists


def seqpacker(lengths: np.ndarray, capacity: int) -> Way:
    from seqpacker import pack_sequences

    return lengths, lambda lengths: pack_sequences(lengths, capacity=capacity, strategy="obfd").bins, of_lists


def trl(lengths: np.ndarray, capacity: int) -> Way:
    """Its bfd over the whole corpus, on lists that hold no values: only their lengths matter to it. (pack_dataset calls it for 1,000 examples at a time.)"""
    import pyarrow as pa
    from trl.data_utils import _pack_bfd

    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    column = pa.LargeListArray.from_arrays(offsets, pa.nulls(int(offsets[-1])))

    def plan(table: pa.Table) -> Plan:
        # It gives the lengths in each row, and keeps no numbers: any example of a length may be the one.
        rows = table["seq_lengths"].combine_chunks()
        packed = rows.flatten().to_numpy()
        members = np.empty(len(packed), dtype=np.int64)
        members[np.argsort(packed, kind="stable")] = np.argsort(lengths, kind="stable")
        return rows.offsets.to_numpy(), members

    return pa.table({"input_ids": column}), lambda table: _pack_bfd(table, capacity), plan


def of_lists(rows: list[list[int]]) -> Plan:
    counts = np.array([len(row) for row in rows])
    return np.concatenate([[0], np.cumsum(counts)]), np.fromiter((one for row in rows for one in row), dtype=np.int64)


WAYS: dict[str, Callable[[np.ndarray, int], Way]] = {
    "yardstick": yardstick,
    "optimal, no cap": ours("optimal", 0),
    "optimal, 64 segments": ours("optimal", 63),
    "optimal, auto": ours("optimal", None),
    "bfd": ours("bfd", 0),
    "ffd": ours("ffd", 0),
    "sequential": ours("sequential", 0),
    "lightbinpack": lightbinpack,
    "seqpacker": seqpacker,
    "TRL": trl,
}


def memory(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def main() -> None:
    name, path, capacity = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    lengths = np.load(path)
    few, call, _ = WAYS[name](lengths[:16], capacity)
    call(few)
    given, call, as_plan = WAYS[name](lengths, capacity)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak of resident memory starts here
    before = memory("VmRSS")
    started = time.perf_counter()
    outcome = call(given)
    seconds = time.perf_counter() - started
    figures: dict[str, float] = {"seconds": seconds, "peak": memory("VmHWM") - before}
    plan = as_plan(outcome)
    if plan is not None:
        offsets, members = plan
        if not np.array_equal(np.sort(members), np.arange(len(lengths))):
            raise SystemExit(f"{name}: not every example exactly once")
        if np.add.reduceat(lengths[members], offsets[:-1], dtype=np.int64).max() > capacity:
            raise SystemExit(f"{name}: a row above the capacity")
        figures |= {"rows": len(offsets) - 1, "fullest": int(np.diff(offsets).max())}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
