"""Contender: `trainer run` as a user calls it. Tokens and seconds are summed over the windows of its own metrics.jsonl after the warm-up, and held
against the clock on the wall: a window that leaves something out would show."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.train_input import WARMUP

# Each step by itself, so that the steps counted are those that the others count: rows differ in cost.
_LOG_EVERY = 1


def main() -> None:
    shards, model, steps = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "trainer", "run", "--shards", shards, "--model", model, "--init", "random"]
        command += ["--steps", steps, "--rows-per-step", "1", "--lr", "1e-3", "--log-every", str(_LOG_EVERY)]
        command += ["--check", "off"] if "--check" in _options() else []
        began = time.perf_counter()
        subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    tokens = seconds = 0.0
    done = 0
    for line in lines:
        taken = line["step_s"] * (line["step"] - done)
        if done >= WARMUP:
            tokens += line["useful_tokens_per_s"] * taken
            seconds += taken
        done = line["step"]
    assert 0 < seconds < wall
    print(json.dumps({"tokens": round(tokens), "seconds": seconds}))


def _options() -> str:
    return subprocess.run(
        [sys.executable, "-m", "trainer", "run", "--help"], check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main()
