"""What a build takes of memory for each example, beyond what any build takes: two builds of short chats, one several times as large.

python -m tests.benchmarks.measure_memory --tokenizer FOLDER                       # 200,000 and 2,000,000 chats
python -m tests.benchmarks.measure_memory --tokenizer FOLDER --small 20000 --large 100000

The chats are of a few words each, so that what is kept per example is not hidden by its text. Measured from outside over all processes of the build:
anonymous bytes (what only these processes hold), and all resident ones, which count pages of mapped files that the kernel may take back at any time.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_SECONDS_BETWEEN_LOOKS = 0.02
_WORDS = [
    "the",
    "a",
    "tree",
    "river",
    "stone",
    "light",
    "morning",
    "walk",
    "small",
    "green",
    "quiet",
    "under",
    "over",
    "between",
    "old",
    "new",
    "bright",
    "cold",
    "long",
    "road",
    "house",
    "field",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """Of one build, in bytes: the most that its processes held at one time."""

    anonymous: int
    resident: int


def write(path: Path, count: int) -> None:
    """`count` chats of 10 to 60 tokens."""
    draw = random.Random(count)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            question, answer = (" ".join(draw.choices(_WORDS, k=draw.randrange(1, 20))) for _ in range(2))
            messages = [{"role": "user", "content": f"{number} {question}"}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")


def measure(data: Path, tokenizer: Path, out: Path, workers: int) -> Peak:
    """Builds and looks on; raises RuntimeError where the build fails."""
    command = [sys.executable, "-m", "packer", "build", data, "--tokenizer", tokenizer, "-o", out, "--quiet"]
    process = psutil.Popen([*map(str, command), "--workers", str(workers)], stderr=subprocess.PIPE, text=True)
    anonymous = resident = 0
    while process.poll() is None:
        found = [_held(member) for member in _family(process)]
        anonymous = max(anonymous, sum(one for one, _ in found))
        resident = max(resident, sum(one for _, one in found))
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}:\n{process.stderr.read()[-2000:]}")
    return Peak(anonymous=anonymous, resident=resident)


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _held(member: psutil.Process) -> tuple[int, int]:
    """(anonymous, resident) bytes of one process; nothing where it has just ended."""
    try:
        lines = Path(f"/proc/{member.pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    values = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("RssAnon:", "VmRSS:"))}
    return int(values.get("RssAnon", 0)) * 1024, int(values.get("VmRSS", 0)) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--small", type=int, default=200_000)
    parser.add_argument("--large", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (arguments.small, arguments.large):
            data = Path(folder) / f"{count}.jsonl"
            write(data, count)
            peaks[count] = measure(data, arguments.tokenizer, Path(folder) / f"packed-{count}", arguments.workers)
            print(
                f"{count:>10,} examples: at most {peaks[count].anonymous / 1e6:,.0f} MB anonymous, {peaks[count].resident / 1e6:,.0f} MB resident"
            )
    more = arguments.large - arguments.small
    small, large = peaks[arguments.small], peaks[arguments.large]
    print(f"bytes an example: {(large.anonymous - small.anonymous) / more:.1f} anonymous", end=", ")
    print(f"{(large.resident - small.resident) / more:.1f} resident")


if __name__ == "__main__":
    main()
