"""From chats to shards: packer against TRL's own preparation, interleaved, 2 cores.

python -m tests.benchmarks.bench_build --rows ROWS.jsonl --tokenizer FOLDER
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.chats import write
from tests.benchmarks.harness import interleave, python, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="real chats to draw turns from (ultrachat's schema)")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--count", type=int, default=16_000, help="conversations for packer (about 1,300 tokens each)")
    parser.add_argument(
        "--trl-count", type=int, default=3_200, help="conversations for TRL, and for all as whole processes"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write(place / "large.jsonl", arguments.rows, count=arguments.count)
        write(place / "small.jsonl", arguments.rows, count=arguments.trl_count)

        def packer(data: str, encoder: str, workers: int) -> list[str]:
            return python("contend_packer", place / data, arguments.tokenizer, encoder, workers, place / "out")

        contenders = {
            "packer, fast encoder": packer("large.jsonl", "auto", 2),
            "packer, tokenizers": packer("large.jsonl", "tokenizers", 2),
            "packer, fast encoder, small": packer("small.jsonl", "auto", 0),
            "TRL, small": python("contend_trl", place / "small.jsonl", arguments.tokenizer, 2, arguments.trl_count),
        }
        results = interleave(contenders, repeats=arguments.repeats)
    print(
        f"{'':30} {'tokens':>12} {'tokens/s, steady':>34} {'start, s':>10} {'whole process, s':>22} {'peak memory, MB':>22}"
    )
    for name, found in results.items():
        tokens = int(found.own[0]["tokens"])
        start = statistics.median(own["start"] for own in found.own)
        memory = spread([bytes_ / 1e6 for bytes_ in found.memory])
        print(
            f"{name:30} {tokens:>12,} {spread(found.rates()):>34} {start:>10.1f} {spread(found.wall, '{:.1f}'):>22} {memory:>22}"
        )
    trl, small = results["TRL, small"], results["packer, fast encoder, small"]
    rate = statistics.median(trl.rates())
    figures = {
        "steady, fast encoder": statistics.median(results["packer, fast encoder"].rates()) / rate,
        "steady, tokenizers": statistics.median(results["packer, tokenizers"].rates()) / rate,
        "whole process, same chats": statistics.median(trl.wall) / statistics.median(small.wall),
        "peak memory, packer ÷ TRL": statistics.median(results["packer, fast encoder"].memory)
        / statistics.median(trl.memory),
    }
    for name, value in figures.items():
        print(f"{name:30} {value:.2f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {
                    "ratios": figures,
                    "runs": {name: [found.wall, found.memory, found.own] for name, found in results.items()},
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
