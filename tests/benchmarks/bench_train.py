"""Training: `trainer run` beside a bare loop over the same batches, and beside TRL on the same examples, packed and padded; useful tokens a second.

Start-up is left out on all sides, runs are interleaved, each is a process of its own. A step is one row for the packed, four examples for the padded.

python -m tests.benchmarks.bench_train                           # the bundled chats and the tiny hybrid
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import packer
from packer.config import BuildConfig
from tests.benchmarks.harness import interleave, python, spread
from tests.support import SAMPLE, TINY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=SAMPLE)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--capacity", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of contenders")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "packed"
        packer.build(
            BuildConfig(
                datasets=(str(arguments.rows),),
                tokenizer=str(arguments.model),
                capacity=arguments.capacity,
                out=shards,
            )
        )
        common = (shards, arguments.model, arguments.steps)
        contenders = {
            "trainer run": python("contend_trainer", *common),
            "bare loop": python("contend_bare", *common),
            "TRL, bfd": python("contend_trl_train", "bfd", *common, arguments.capacity),
            "TRL, padded": python("contend_trl_train", "padded", *common, arguments.capacity),
        }
        wanted = arguments.only or list(contenders)
        results = interleave({name: contenders[name] for name in wanted}, repeats=arguments.repeats)
    print(f"{'':14} {'useful tokens/s':>26} {'whole process, s':>22} {'peak memory, MB':>22}")
    for name, found in results.items():
        memory = spread([bytes_ / 1e6 for bytes_ in found.memory])
        print(f"{name:14} {spread(found.rates()):>26} {spread(found.wall, '{:.1f}'):>22} {memory:>22}")
    rates = {name: statistics.median(found.rates()) for name, found in results.items()}
    ratios = {f"trainer run ÷ {name}": rates["trainer run"] / rate for name, rate in rates.items()}
    for name, value in ratios.items():
        print(f"{name:28} {value:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ratios": ratios, "rates": rates}, indent=1))


if __name__ == "__main__":
    main()
