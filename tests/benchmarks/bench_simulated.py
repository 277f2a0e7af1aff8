"""What no machine here can show, simulated, and to be quoted only as that: ranks waiting for each other, the loader's share, a build of 100 million.

python -m tests.benchmarks.bench_simulated --scaling scaling.json --read read.json

Rows are planned from modelled lengths. Waiting: `packer.waiting` on those rows. Loader: the bytes that every rank's prefetch thread must read at
--tokens-per-s a rank, against what reading gave (--read, of bench_read). Build: a straight line through the two largest builds of bench_scaling.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from packer.plan import make_plan
from packer.waiting import RowCosts, simulate
from tests.benchmarks import modelled
from tests.benchmarks.harness import add_outputs, leave, table

_BYTES_A_SLOT = 4 + 1 / 8 + 2  # ids, mask, positions


def waiting(examples: int, capacity: int) -> tuple[list[list[str]], list[dict[str, float]]]:
    lengths = modelled.ultrachat(examples, capacity=capacity).astype(np.int64)
    plan = make_plan(lengths, capacity=capacity)
    squares = np.add.reduceat(lengths[plan.members] ** 2, plan.offsets[:-1])
    costs = RowCosts(
        capacity=capacity, squares=squares, targets=np.add.reduceat(lengths[plan.members], plan.offsets[:-1])
    )
    lines, document = [], []
    for ranks in (8, 64, 512):
        for per_rank in (1, 4):
            found = simulate(costs, ranks=ranks, rows_per_step=ranks * per_rank)
            for kind, shares in (("every layer", found.every_layer), ("one in four", found.one_layer_in_four)):
                values = {"off": shares.off, "batch": shares.batch, "window": shares.window}
                document.append({"ranks": ranks, "rows_a_rank": per_rank, **values})
                lines.append([str(ranks), str(per_rank), kind, *(f"{value:.2%}" for value in values.values())])
    return lines, document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=207_865)
    parser.add_argument("--capacity", type=int, default=8192)
    parser.add_argument("--tokens-per-s", type=float, default=20_000, help="slots a second that one rank trains on")
    parser.add_argument("--scaling", type=Path)
    parser.add_argument("--read", type=Path)
    add_outputs(parser)
    arguments = parser.parse_args()
    lines, document = waiting(arguments.examples, arguments.capacity)
    heading = ["ranks", "rows a rank and step", "full attention in", "waiting, --balance off", "batch", "window"]
    tables = ["Simulated.\n", table(heading, lines)]
    figures: dict[str, object] = {"waiting": document}
    needed = arguments.tokens_per_s * _BYTES_A_SLOT
    loader = [
        ["one rank", f"{needed / 1e6:.2f}"],
        ["a machine of 8", f"{8 * needed / 1e6:.1f}"],
        ["512 ranks together", f"{512 * needed / 1e6:,.0f}"],
    ]
    if arguments.read:
        given = json.loads(arguments.read.read_text())["million_tokens_per_s"]["packer"] * 1e6 * _BYTES_A_SLOT
        loader.append(["given, by one thread of one process (measured, from the page cache)", f"{given / 1e6:,.0f}"])
        figures["loader_share_of_a_thread"] = needed / given
    tables.append(table([f"MB/s read at {arguments.tokens_per_s:,.0f} slots/s a rank", "MB/s"], loader))
    if arguments.scaling:
        builds = json.loads(arguments.scaling.read_text())["builds"]
        most = max(one["workers"] for one in builds)
        small, large = sorted((one for one in builds if one["workers"] == most), key=lambda one: one["rows"])[-2:]
        more = large["rows"] - small["rows"]
        seconds = (large["seconds"] - small["seconds"]) / more
        memory = max((large["memory"] - small["memory"]) / more, 0.0)
        rows = 100_000_000
        figures["build_of_100_million"] = {"hours": seconds * rows / 3600, "bytes": large["memory"] + memory * rows}
        model = [
            [
                f"{1e6 * seconds:.1f} µs and {memory:.0f} bytes a row with {most} workers",
                f"{seconds * rows / 3600:.1f}",
                f"{(large['memory'] + memory * rows) / 1e9:.1f}",
            ]
        ]
        tables.append(table(["a build of 100 million short chats, extrapolated", "hours", "GB of memory"], model))
    leave(arguments, figures, *tables)


if __name__ == "__main__":
    main()
