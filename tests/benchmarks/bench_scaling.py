"""Builds of 10 thousand, 100 thousand and a million short chats with 1 and 2 workers: does a row cost the same, does memory stay flat?

python -m tests.benchmarks.bench_scaling --tokenizer FOLDER --counts 10000 100000 1000000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.harness import add_outputs, interleave, leave, python, spread, table
from tests.benchmarks.measure_memory import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    add_outputs(parser)
    arguments = parser.parse_args()
    lines, document = [], []
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.counts:
            data = Path(folder) / "chats.jsonl"
            write(data, count)
            contenders = {
                workers: python("contend_packer", data, arguments.tokenizer, "auto", workers, Path(folder) / "out")
                for workers in arguments.workers
            }
            found = interleave({str(name): command for name, command in contenders.items()}, repeats=arguments.repeats)
            for workers, one in found.items():
                wall, memory = statistics.median(one.wall), statistics.median(one.memory)
                start = statistics.median(own["start"] for own in one.own)
                document.append(
                    {"rows": count, "workers": int(workers), "seconds": wall, "start": start, "memory": memory}
                )
                lines.append(
                    [
                        f"{count:,}",
                        workers,
                        spread(one.wall, "{:.1f}"),
                        f"{1e6 * (wall - start) / count:.1f}",
                        f"{memory / 1e6:,.0f}",
                    ]
                )
    heading = ["rows", "workers", "whole process, s", "µs a row after the start", "peak memory, MB"]
    leave(arguments, {"builds": document}, table(heading, lines))


if __name__ == "__main__":
    main()
