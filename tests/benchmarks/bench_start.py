"""What a user waits for before anything happens, on a warm machine: `--help`, `stats`, `verify`, and the first step of a run beside what importing
torch and transformers takes by itself.

python -m tests.benchmarks.bench_start
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import packer
from packer.config import BuildConfig
from tests.benchmarks.harness import add_outputs, leave, spread, table
from tests.support import SAMPLE, TINY

_IMPORTS = "import torch, transformers; from transformers import AutoModelForCausalLM"


def wall(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def to_first_step(command: list[str], out: Path) -> float:
    """Seconds until the run's first line of metrics is written."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - began
    step = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["step_s"]
    return whole - float(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    add_outputs(parser)
    arguments = parser.parse_args()
    python = [sys.executable, "-m"]
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "packed"
        packer.build(BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=packed))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "packer --help": [*python, "packer", "--help"],
            "trainer --help": [*python, "trainer", "--help"],
            "packer stats": [*python, "packer", "stats", str(packed)],
            "packer verify": [*python, "packer", "verify", str(packed)],
            "import torch, transformers": [sys.executable, "-c", _IMPORTS],
        }
        for repeat in range(arguments.repeats):
            for name, command in commands.items():
                taken.setdefault(name, []).append(wall(command))
            for name, check in (("off", "off"), ("quick", "quick")):
                out = Path(folder) / f"run-{name}-{repeat}"
                run = [*python, "trainer", "run", "--shards", str(packed), "--model", str(TINY), "--init", "random"]
                run += ["--steps", "1", "--rows-per-step", "1", "--check", check, "--out", str(out)]
                taken.setdefault(f"trainer run, all but its one step, --check {name}", []).append(
                    to_first_step(run, out)
                )
    lines = [[name, spread(seconds, "{:.2f}")] for name, seconds in taken.items()]
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    leave(arguments, {"seconds": medians}, table(["", "seconds"], lines))


if __name__ == "__main__":
    main()
