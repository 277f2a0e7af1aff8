"""From chats to shards: packer against TRL's own preparation and a plain `datasets.map`, interleaved, 2 cores.

python -m tests.benchmarks.bench_build --rows ROWS.jsonl --tokenizer FOLDER
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.chats import write
from tests.benchmarks.harness import Measured, add_outputs, interleave, leave, python, spread, table, there

PEERS = ("TRL", "datasets.map (no packing)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="real chats to draw turns from (ultrachat's schema)")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32_000, help="conversations for packer (about 1,300 tokens each)")
    parser.add_argument(
        "--trl-count", type=int, default=3_200, help="conversations for TRL, and for all as whole processes"
    )
    parser.add_argument("--repeats", type=int, default=3)
    add_outputs(parser)
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
        }
        if there("TRL", "trl"):
            contenders["TRL, small"] = python(
                "contend_trl", place / "small.jsonl", arguments.tokenizer, 2, arguments.trl_count
            )
        if there("datasets.map", "datasets"):
            contenders["datasets.map (no packing), small"] = python(
                "contend_map", place / "small.jsonl", arguments.tokenizer, 2, arguments.trl_count
            )
        results = interleave(contenders, repeats=arguments.repeats)
    rows = [
        [
            name,
            f"{int(found.own[0]['tokens']):,}",
            # All of a small build is start-up: what is timed begins behind each worker's first part.
            spread([rate / 1e3 for rate in found.rates()]) if found.own[0]["tokens"] else "",
            f"{statistics.median(own['start'] for own in found.own):.1f}",
            spread(found.wall, "{:.1f}"),
            spread([bytes_ / 1e6 for bytes_ in found.memory]),
        ]
        for name, found in results.items()
    ]
    heading = ["", "tokens timed", "thousand tokens/s, steady", "start, s", "whole process, s", "peak memory, MB"]
    figures = {name: ratios(results, peer) for peer in PEERS if (name := f"{peer}, small") in results}
    runs = {name: [found.wall, found.memory, found.own] for name, found in results.items()}
    compared = [[peer, *(f"{value:.2f}" for value in its.values())] for peer, its in figures.items()]
    of = ["packer ÷", *next(iter(figures.values()), {})]
    leave(arguments, {"ratios": figures, "runs": runs}, table(heading, rows), table(of, compared))


def ratios(results: dict[str, Measured], peer: str) -> dict[str, float]:
    """packer ÷ a peer: of speed, and of memory."""
    theirs, small = results[f"{peer}, small"], results["packer, fast encoder, small"]
    rate = statistics.median(theirs.rates())
    return {
        "steady, fast encoder": statistics.median(results["packer, fast encoder"].rates()) / rate,
        "steady, tokenizers": statistics.median(results["packer, tokenizers"].rates()) / rate,
        "whole process, same chats": statistics.median(theirs.wall) / statistics.median(small.wall),
        "peak memory": statistics.median(results["packer, fast encoder"].memory) / statistics.median(theirs.memory),
    }


if __name__ == "__main__":
    main()
