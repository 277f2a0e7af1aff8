"""Reading packed rows in shuffled order, one process: packer's reader beside litdata, MosaicML streaming, HF datasets and a raw memmap of ids.

make bench                                                 or, in an environment with the peers:
python -m tests.benchmarks.bench_read --rows 4000 --capacity 8192 --json read.json --markdown read.md

All read the same rows in the same order and copy the same arrays. A peer that is not installed, or cannot write or read them, is left out with the
reason.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import packed_rows
from tests.benchmarks.harness import Measured, add_outputs, interleave, leave, python, spread, table

# Contender → the format that it reads, and whom its ratio is to.
CONTENDERS = {
    "packer": "packer",
    "litdata": "litdata",
    "streaming": "streaming",
    "streaming, iterated": "streaming",
    "streaming, local": "streaming",
    "datasets": "datasets",
    "packer, ids": "packer",
    "memmap": "memmap",
}
_IDS_ONLY = ("packer, ids", "memmap")


def ready(folder: Path, packed: Path, chosen: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The contenders whose format could be written, as commands; and why the others are left out."""
    able: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    wrong: dict[str, str] = {"packer": ""}
    for name in chosen:
        kind = CONTENDERS[name]
        if kind not in wrong:
            command = python("contend_read", "write", kind, packed, folder / kind)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wrong[kind] = (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else ""
        if wrong[kind]:
            left_out[name] = wrong[kind]
        else:
            able[name] = python("contend_read", "read", name, folder / kind, packed)
    return able, left_out


def lines(results: dict[str, Measured], left_out: dict[str, str]) -> list[list[str]]:
    """Mtok/s, how many times as fast packer is with the same work, start-up, first pass, memory."""
    found_lines = []
    for name, found in results.items():
        ours = results.get("packer, ids" if name in _IDS_ONLY else "packer")
        other = ours is not None and ours is not found
        ratio, cpu = (
            f"{rate(ours, kind) / rate(found, kind):.2f}" if other else "" for kind in ("seconds", "cpu_seconds")
        )
        start, first = (statistics.median(own[key] for own in found.own) for key in ("start", "first_pass"))
        memory = f"{statistics.median(found.memory) / 1e6:,.0f}"
        speed = spread([value / 1e6 for value in found.rates()])
        found_lines.append([name, speed, ratio, cpu, f"{start:.2f}", f"{first:.2f}", memory])
    return found_lines + [[name, f"left out: {reason}", *[""] * 5] for name, reason in left_out.items()]


def rate(found: Measured, seconds: str = "seconds") -> float:
    """Tokens a second; with `cpu_seconds`, of processor time, which a busy machine changes less."""
    return statistics.median(found.rates(seconds=seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--capacity", type=int, default=8_192)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    add_outputs(parser)
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bench-read-"))
    try:
        packed_rows.write(place / "packed", rows=arguments.rows, capacity=arguments.capacity)
        able, left_out = ready(place, place / "packed", arguments.only)
        commands = {name: [*command, str(arguments.passes)] for name, command in able.items()}
        results = interleave(commands, repeats=arguments.repeats)
    finally:
        shutil.rmtree(place)
    heading = [f"{arguments.rows:,} rows of {arguments.capacity:,} slots", "million tokens/s", "packer is faster by"]
    heading += ["in CPU time", "start-up, s", "first pass, s", "peak memory, MB"]
    document = {
        "rows": arguments.rows,
        "capacity": arguments.capacity,
        "left_out": left_out,
        "million_tokens_per_s": {name: rate(found) / 1e6 for name, found in results.items()},
        "runs": {name: [found.wall, found.memory, found.own] for name, found in results.items()},
    }
    leave(arguments, document, table(heading, lines(results, left_out)))


if __name__ == "__main__":
    main()
