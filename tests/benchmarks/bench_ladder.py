"""The ladder of `trainer compare`: useful tokens a second of padded and packed training of the same examples, from its own document.

python -m tests.benchmarks.bench_ladder                          # the bundled chats and the tiny hybrid

On a CPU the rungs lie close together: a CPU is as busy with padding as with tokens, and launching kernels costs it nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.harness import add_outputs, leave, table
from tests.benchmarks.train_input import packed
from tests.support import SAMPLE, TINY

COLUMNS = {"useful_tokens_per_s": "{:,.0f}", "ratio": "{:.2f}", "slots_per_useful": "{:.2f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=SAMPLE)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--capacity", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=8)
    add_outputs(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shards = packed(Path(folder), arguments)
        command = [sys.executable, "-m", "trainer", "compare", "--shards", shards, "--model", arguments.model]
        command += ["--init", "random", "--lr", "1e-3", "--steps", arguments.steps, "--rows-per-step", 2]
        # One seed gives no verdict on the loss, and none is wanted here: `trainer compare` has its own page for that.
        command += ["--seeds", 1, "--no-replicates", "--eval-examples", 8, "--json"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"trainer compare ended with {done.returncode}")
    ladder = json.loads(done.stdout)["ladder"]
    lines = [
        [rung["name"], *(form.format(rung[key]) if rung[key] is not None else "" for key, form in COLUMNS.items())]
        for rung in ladder
    ]
    leave(arguments, {"ladder": ladder}, table(["rung", *(key.replace("_", " ") for key in COLUMNS)], lines))


if __name__ == "__main__":
    main()
