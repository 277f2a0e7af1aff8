"""Training: `trainer run` beside a bare loop over the same batches, and beside TRL on the same examples, packed and padded; useful tokens a second.

Start-up is left out on all sides, runs are interleaved, each is a process of its own. A step is one row for the packed, four examples for the padded.

python -m tests.benchmarks.bench_train                           # the bundled chats and the tiny hybrid
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.harness import add_outputs, interleave, leave, python, spread, table, there
from tests.benchmarks.train_input import packed
from tests.support import SAMPLE, TINY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=SAMPLE)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--capacity", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of contenders")
    add_outputs(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shards = packed(Path(folder), arguments)
        common = (shards, arguments.model, arguments.steps)
        contenders = {
            "trainer run": python("contend_trainer", *common),
            "bare loop": python("contend_bare", *common),
        }
        if there("TRL", "trl"):
            for name, way in (("TRL, bfd", "bfd"), ("TRL, padded", "padded")):
                contenders[name] = python("contend_trl_train", way, *common, arguments.capacity)
        wanted = ["trainer run", *(name for name in arguments.only or contenders if name != "trainer run")]
        results = interleave({name: contenders[name] for name in wanted}, repeats=arguments.repeats)
    rates = {name: statistics.median(found.rates()) for name, found in results.items()}
    ratios = {f"trainer run ÷ {name}": rates["trainer run"] / rate for name, rate in rates.items()}
    rows = [
        [
            name,
            spread(found.rates()),
            f"{ratios[f'trainer run ÷ {name}']:.2f}",
            spread(found.wall, "{:.1f}"),
            spread([bytes_ / 1e6 for bytes_ in found.memory]),
        ]
        for name, found in results.items()
    ]
    heading = ["", "useful tokens/s", "trainer run is faster by", "whole process, s", "peak memory, MB"]
    leave(arguments, {"ratios": ratios, "rates": rates}, table(heading, rows))


if __name__ == "__main__":
    main()
