"""Plans beside those of the peers, on lengths alone: time, rows above the lower bound, segments, memory; interleaved.

python -m tests.benchmarks.bench_plan --lengths LENGTHS.py

LENGTHS.py has the corpora: ultrachat, short, heavy, uniform (n, capacity=…) and just_over(n, parts, capacity=…), each giving an int array. Ends with
status 1 where a peer needs fewer rows than "optimal, no cap".
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from packer.plan import lower_bound
from tests.benchmarks.contend_plan import WAYS
from tests.benchmarks.harness import Measured, interleave, python, spread

PEERS = {"lightbinpack": "lightbinpack", "seqpacker": "seqpacker", "TRL": "trl"}
# TRL takes a minute for a million.
SLOW = {"TRL": 250_000, "lightbinpack": 2_000_000, "seqpacker": 2_000_000, "ffd": 2_000_000, "sequential": 2_000_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, required=True)
    parser.add_argument("--capacity", type=int, action="append", help="repeatable; default 2048, 8192 and 32768")
    parser.add_argument("--corpus", action="append", help="repeatable; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of each corpus, for a quick look")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ways = [name for name in WAYS if name not in PEERS or there(name)]
    document: dict[str, dict[str, object]] = {}
    lost = []
    with tempfile.TemporaryDirectory() as folder:
        for capacity in arguments.capacity or [2048, 8192, 32768]:
            for name, make in corpora(module(arguments.lengths), arguments.scale).items():
                # Ten million are for time and memory, at one capacity.
                if (arguments.corpus and name not in arguments.corpus) or (name.endswith("10M") and capacity != 8192):
                    continue
                path = Path(folder) / "lengths.npy"
                lengths = make(capacity)
                np.save(path, lengths)
                chosen = [way for way in ways if len(lengths) <= SLOW.get(way, len(lengths))]
                results = interleave(
                    {way: python("contend_plan", way, path, capacity) for way in chosen}, repeats=arguments.repeats
                )
                document[f"{name}, {capacity}"] = report(name, capacity, lengths, results)
                mine = int(results["optimal, no cap"].own[0]["rows"])
                lost += [
                    f"{name}, {capacity}: {way} {int(results[way].own[0]['rows']):,} rows, optimal {mine:,}"
                    for way in chosen
                    if way in PEERS and results[way].own[0]["rows"] < mine
                ]
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))
    print("\n".join(lost) or "no peer needs fewer rows on any corpus")
    sys.exit(bool(lost))


def there(way: str) -> bool:
    """Whether a peer is installed; says so where it is not."""
    found = importlib.util.find_spec(PEERS[way]) is not None
    if not found:
        print(f"{way}: left out, it is not installed", flush=True)
    return found


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
        "ultrachat": lambda c: made.ultrachat(size(207_865), capacity=c),
        "ultrachat 1M": lambda c: made.ultrachat(million, capacity=c),
        "uniform 1M": lambda c: made.uniform(million, capacity=c),
        "half 1M": lambda c: made.just_over(million, 2, capacity=c),
        "third 1M": lambda c: made.just_over(million, 3, capacity=c),
        "short 1M": lambda c: made.short(million, capacity=c),
        "heavy 1M": lambda c: made.heavy(million, capacity=c),
        "ultrachat 10M": lambda c: made.ultrachat(ten, capacity=c),
    }


def report(name: str, capacity: int, lengths: np.ndarray, results: dict[str, Measured]) -> dict[str, object]:
    bound, tokens = lower_bound(lengths, capacity), int(lengths.sum())
    sort = statistics.median(own["seconds"] for own in results["yardstick"].own)
    print(f"\n{name}: {len(lengths):,} lengths, rows of {capacity:,}, at least {bound:,} rows")
    print(f"{'':22} {'seconds':>26} {'× sort':>8} {'above':>7} {'density':>10} {'examples':>9} {'MB above input':>15}")
    for way, found in results.items():
        own = found.own[0]
        seconds = [figures["seconds"] for figures in found.own]
        peak = max(figures["peak"] for figures in found.own) / 1e6
        rows = own.get("rows")
        filled = f"{rows - bound:>7,} {tokens / (rows * capacity):>10.4%} {own['fullest']:>9}" if rows else " " * 28
        times = statistics.median(seconds) / sort
        print(f"{way:22} {spread(seconds, '{:.3f}'):>26} {times:>8.1f} {filled} {peak:>15,.0f}", flush=True)
    return {"bound": bound, "ways": {way: found.own for way, found in results.items()}}


if __name__ == "__main__":
    main()
