"""All benchmarks one after the other, into one JSON document and one Markdown file with a table each.

python -m tests.benchmarks --out runs/bench [--quick] [--only plan read] [--read-python .venv-bench-read/bin/python]

Each is a process of its own; one that cannot run is named with its reason, and the others go on. Status 1 where one failed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import SAMPLE, TINY

_PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "pyarrow",
    "tokenizers",
    "splintr-rs",
    "lightbinpack",
    "trl",
    "datasets",
    "litdata",
    "mosaicml-streaming",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One benchmark: what it answers, its module, what it is given in full and for a quick look, and whether the peers of reading are wanted."""

    title: str
    module: str
    full: Sequence[object] = ()
    quick: Sequence[object] = ()
    reading: bool = False


def sections(rows: Path, tokenizer: Path, out: Path) -> dict[str, Section]:
    chats = ("--rows", rows, "--tokenizer", tokenizer)
    simulated = ("--scaling", out / "scaling.json", "--read", out / "read.json")
    return {
        "plan": Section(
            title="Plans from lengths alone",
            module="bench_plan",
            quick=("--scale", 0.02, "--capacity", 8192, "--repeats", 1),
        ),
        "build": Section(
            title="From chats to shards",
            module="bench_build",
            full=chats,
            quick=(*chats, "--count", 4_000, "--trl-count", 200, "--repeats", 1),
        ),
        "stages": Section(
            title="A build by stage",
            module="bench_stages",
            full=chats,
            quick=(*chats, "--count", 300, "--repeats", 1),
        ),
        "scaling": Section(
            title="Builds of more rows, with more workers",
            module="bench_scaling",
            full=("--tokenizer", tokenizer),
            quick=("--tokenizer", tokenizer, "--counts", 2_000, 10_000),
        ),
        "read": Section(
            title="Reading rows in shuffled order, one process",
            module="bench_read",
            quick=("--rows", 400, "--repeats", 1, "--passes", 1),
            reading=True,
        ),
        "verify": Section(
            title="Verifying",
            module="bench_verify",
            full=chats,
            quick=(*chats, "--count", 300, "--repeats", 1),
        ),
        "loss": Section(
            title="The loss",
            module="bench_loss",
            quick=("--vocabulary", 32_000, "--tokens", 512, "--repeats", 1),
        ),
        "kernels": Section(
            title="Reference kernels",
            module="bench_kernels",
            quick=("--tokens", 2048, "--segments", 4, "--repeats", 1),
        ),
        "train": Section(
            title="Training",
            module="bench_train",
            full=("--steps", 20),
            quick=("--steps", 12, "--repeats", 1, "--only", "bare loop"),
        ),
        "ladder": Section(title="The ladder of trainer compare", module="bench_ladder", quick=("--steps", 2)),
        "start": Section(title="Starting", module="bench_start", quick=("--repeats", 1)),
        "simulated": Section(
            title="Simulated scale", module="bench_simulated", full=simulated, quick=(*simulated, "--examples", 50_000)
        ),
    }


def run(name: str, section: Section, python: str, out: Path, *, quick: bool) -> str:
    """Runs one benchmark; an empty text, or why it failed."""
    files = ("--json", out / f"{name}.json", "--markdown", out / f"{name}.md")
    given = section.quick if quick else section.full
    # Results of benchmarks that did not run are not there to be given.
    given = [
        value
        for place, value in enumerate(given)
        if not any(
            isinstance(part, Path) and part.parent == out and not part.exists() for part in given[place : place + 2]
        )
    ]
    command = [python, "-m", f"tests.benchmarks.{section.module}", *map(str, (*given, *files))]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


def versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument(
        "--quick", action="store_true", help="small inputs, once each: that all of it runs, not what it gives"
    )
    parser.add_argument("--rows", type=Path, default=SAMPLE, help="real chats in ultrachat's schema")
    parser.add_argument("--tokenizer", type=Path, default=TINY)
    parser.add_argument("--read-python", default=sys.executable, help="the Python that has the peers of reading")
    parser.add_argument("--only", nargs="+")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    all_of_them = sections(arguments.rows, arguments.tokenizer, out)
    wanted = arguments.only or list(all_of_them)
    setting = {
        "date": datetime.date.today().isoformat(),
        "quick": arguments.quick,
        "cores": len(os.sched_getaffinity(0)),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": versions(),
    }
    document: dict[str, object] = {"setting": setting}
    texts = [
        f"Measured {setting['date']} on {setting['cores']} cores, {setting['machine']}; "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
        + (". A quick look with small inputs: no figure to quote." if arguments.quick else ".")
    ]
    failed = False
    for name in wanted:
        began = time.perf_counter()
        section = all_of_them[name]
        why = run(
            name, section, arguments.read_python if section.reading else sys.executable, out, quick=arguments.quick
        )
        print(f"{name}: {why or 'done'}, {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        failed |= bool(why)
        document[name] = {"failed": why} if why else json.loads((out / f"{name}.json").read_text())
        text = f"Failed: {why}\n" if why else (out / f"{name}.md").read_text()
        texts.append(f"### {section.title}\n\n{text}")
    (out / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    (out / "bench.md").write_text("\n\n".join(texts))
    print(out / "bench.md")
    sys.exit(failed)


if __name__ == "__main__":
    main()
