"""Plans beside those of the peers, on lengths alone: time, rows above the lower bound, segments, memory; interleaved.

python -m tests.benchmarks.bench_plan [--lengths LENGTHS.py]

LENGTHS.py has the corpora: ultrachat, short, heavy, uniform (n, capacity=…) and just_over(n, parts, capacity=…), each giving an int array. Ends with
status 1 where a peer needs fewer rows than "optimal, no cap".
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from packer.plan import lower_bound
from tests.benchmarks import modelled
from tests.benchmarks.contend_plan import WAYS
from tests.benchmarks.harness import Measured, add_outputs, interleave, leave, python, spread, table, there

PEERS = {"lightbinpack": "lightbinpack", "seqpacker": "seqpacker", "TRL": "trl"}
# TRL takes a minute for a million.
SLOW = {"TRL": 250_000, "lightbinpack": 2_000_000, "seqpacker": 2_000_000, "ffd": 2_000_000, "sequential": 2_000_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="default: tests/benchmarks/modelled.py")
    parser.add_argument("--capacity", type=int, action="append", help="repeatable; default 2048, 8192 and 32768")
    parser.add_argument("--corpus", action="append", help="repeatable; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="a share of each corpus: 0.05 for a quick look, 10 for 1e8"
    )
    add_outputs(parser)
    arguments = parser.parse_args()
    ways = [name for name in WAYS if name not in PEERS or there(name, PEERS[name])]
    document: dict[str, dict[str, object]] = {}
    lines: list[list[str]] = []
    lost = []
    with tempfile.TemporaryDirectory() as folder:
        for capacity in arguments.capacity or [2048, 8192, 32768]:
            for name, make in corpora(
                module(arguments.lengths) if arguments.lengths else modelled, arguments.scale
            ).items():
                if arguments.corpus and name not in arguments.corpus:
                    continue
                path = Path(folder) / "lengths.npy"
                lengths = make(capacity)
                np.save(path, lengths)
                chosen = [way for way in ways if len(lengths) <= SLOW.get(way, len(lengths))]
                results = interleave(
                    {way: python("contend_plan", way, path, capacity) for way in chosen}, repeats=arguments.repeats
                )
                print(f"{name}: {len(lengths):,} lengths, rows of {capacity:,}", file=sys.stderr, flush=True)
                document[f"{name}, {capacity}"], more = report(name, capacity, lengths, results)
                lines += more
                mine = int(results["optimal, no cap"].own[0]["rows"])
                lost += [
                    f"{name}, {capacity}: {way} {int(results[way].own[0]['rows']):,} rows, optimal {mine:,}"
                    for way in chosen
                    if way in PEERS and results[way].own[0]["rows"] < mine
                ]
    heading = [
        "lengths, capacity",
        "way",
        "seconds",
        "× sort",
        "rows above",
        "density",
        "most examples",
        "MB above input",
    ]
    said = "\n".join(lost) or "no peer needs fewer rows on any corpus"
    leave(arguments, document, table(heading, lines), said + "\n")
    sys.exit(bool(lost))


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lengths", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def corpora(made: ModuleType, scale: float) -> dict[str, Callable[[int], np.ndarray]]:
    def size(count: int) -> int:
        return max(1, round(count * scale))

    million, ten = size(1_000_000), size(10_000_000)
    return {
        "ultrachat 100k": lambda c: made.ultrachat(size(100_000), capacity=c),
        "ultrachat": lambda c: made.ultrachat(size(207_865), capacity=c),
        "ultrachat 1M": lambda c: made.ultrachat(million, capacity=c),
        "uniform 1M": lambda c: made.uniform(million, capacity=c),
        "half 1M": lambda c: made.just_over(million, 2, capacity=c),
        "third 1M": lambda c: made.just_over(million, 3, capacity=c),
        "short 1M": lambda c: made.short(million, capacity=c),
        "heavy 1M": lambda c: made.heavy(million, capacity=c),
        "ultrachat 10M": lambda c: made.ultrachat(ten, capacity=c),
    }


def report(
    name: str, capacity: int, lengths: np.ndarray, results: dict[str, Measured]
) -> tuple[dict[str, object], list[list[str]]]:
    bound, tokens = lower_bound(lengths, capacity), int(lengths.sum())
    sort = statistics.median(own["seconds"] for own in results["yardstick"].own)
    lines = []
    for way, found in results.items():
        own = found.own[0]
        seconds = [figures["seconds"] for figures in found.own]
        peak = max(figures["peak"] for figures in found.own) / 1e6
        rows = own.get("rows")
        filled = [f"{rows - bound:,}", f"{tokens / (rows * capacity):.4%}", str(own["fullest"])] if rows else [""] * 3
        times = f"{statistics.median(seconds) / sort:.1f}"
        lines.append([f"{name}, {capacity:,}", way, spread(seconds, "{:.3f}"), times, *filled, f"{peak:,.0f}"])
    return {"bound": bound, "ways": {way: found.own for way, found in results.items()}}, lines


if __name__ == "__main__":
    main()
