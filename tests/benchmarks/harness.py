"""Contenders measured in pairs, interleaved, each as a process of its own: what a user would wait for and what it would take of memory.

    results = interleave({"packer": command_a, "trl": command_b}, repeats=3)
    print(ratio(results["trl"], results["packer"]))

A contender is a command whose last line on stdout is one JSON object of its own figures (tokens, the seconds of its steady part). Wall time and peak
memory are taken from outside. Machines are shared and noisy: ratios of one interleaved run are what may be quoted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(kw_only=True, slots=True)
class Measured:
    """Runs of one contender: wall seconds, peak memory (anonymous bytes of all its processes together), and its own figures."""

    wall: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    own: list[dict[str, float]] = field(default_factory=list)

    def rates(self, amount: str = "tokens", seconds: str = "seconds") -> list[float]:
        return [figures[amount] / figures[seconds] for figures in self.own]


def interleave(contenders: Mapping[str, Sequence[str]], *, repeats: int, timeout: float = 1800) -> dict[str, Measured]:
    """A, B, A, B, …: every contender once a round, so that a slow minute of the machine falls on all of them."""
    results = {name: Measured() for name in contenders}
    for _ in range(repeats):
        for name, command in contenders.items():
            wall, memory, own = run(command, timeout=timeout)
            results[name].wall.append(wall)
            results[name].memory.append(memory)
            results[name].own.append(own)
    return results


def run(command: Sequence[str], *, timeout: float) -> tuple[float, int, dict[str, float]]:
    """Wall seconds, peak anonymous memory in bytes, and the JSON of the last line; raises RuntimeError where the command fails."""
    started = time.perf_counter()
    process = subprocess.Popen(list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _anonymous(process.pid))
        if time.perf_counter() - started > timeout:
            process.kill()
            raise RuntimeError(f"{command[:4]} ran past {timeout} s")
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    wall = time.perf_counter() - started
    out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{list(command)} ended with {process.returncode}:\n{err[-2000:]}")
    return wall, peak, json.loads(out.strip().splitlines()[-1])


def _anonymous(pid: int) -> int:
    """Bytes that a process and its children hold and no file backs: a mapped shard is the page cache's, not theirs.

    Who is whose child is asked of the kernel, process by process: to look through all processes of the machine takes twenty times as long, and what
    is measured waits for it.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            total += sum(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                total += sum(_anonymous(int(child)) for child in children.read().split())
    except OSError:
        pass  # it has just ended
    return total


def there(name: str, package: str) -> bool:
    """Whether a peer's package is installed; says so where it is not."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{name}: left out, {package} is not installed", file=sys.stderr, flush=True)
    return found


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """ "median (lowest to highest)"."""
    return f"{form.format(statistics.median(values))} ({form.format(min(values))} to {form.format(max(values))})"


def python(module: str, *arguments: object) -> list[str]:
    """`python -m tests.benchmarks.module …` with this interpreter."""
    return [sys.executable, "-m", f"tests.benchmarks.{module}", *map(str, arguments)]


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is what the others are of."""
    lines = [f"| {' | '.join(heading)} |", f"|{'---|' * len(heading)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Where a benchmark leaves its figures, besides printing them."""
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)


def leave(arguments: argparse.Namespace, document: Mapping[str, object], *tables: str) -> None:
    """Prints the tables and writes the files that `add_outputs` asked for."""
    text = "\n".join(tables)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(text)
