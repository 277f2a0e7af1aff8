"""Everything that only a GPU can show, in one run of a few minutes, written to tests/gpu/RESULTS.md. Exit status 1 where something is wrong.

python -m tests.gpu.check                      # on a machine with a GPU: `make gpu-check`
python -m tests.gpu.check --cpu-smoke --out /tmp/results.md     # the same script on a CPU, tiny: does it run?
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from packer.errors import UserError
from tests.gpu import fast, right
from tests.gpu.report import Section, environment
from tests.gpu.sizes import Sizes, cpu, gpu

RESULTS = Path(__file__).with_name("RESULTS.md")


def sections(sizes: Sizes, folder: Path) -> dict[str, Callable[[], Section]]:
    """In the order of what is worth most if time runs out."""
    return {
        "Kernels against their float64 references": lambda: right.kernels(sizes),
        "A hybrid model keeps segments apart": lambda: right.isolation(sizes),
        "Ladder": lambda: fast.ladder(sizes, folder),
        "Compilation after the first pass": lambda: fast.compiles(sizes, folder),
        "One packed step, profiled": lambda: fast.profile(sizes, folder),
        "Loss": lambda: fast.losses(sizes),
    }


def run(sizes: Sizes, *, budget: float, folder: Path) -> list[Section]:
    """Each section in turn while the budget (seconds) lasts; one that breaks fails with its words, and the next goes on."""
    began, done = time.perf_counter(), []
    for title, section in sections(sizes, folder).items():
        started = time.perf_counter()
        if started - began > budget:
            done.append(Section(title=title, notes=[f"left out: {budget:.0f} s were used up"]))
            continue
        try:
            found = section()
        except (UserError, RuntimeError, ImportError, ValueError, TypeError, AttributeError, AssertionError) as error:
            traceback.print_exc()
            found = Section(title=title, passed=False, notes=[f"{type(error).__name__}: {error}"])
        found.seconds = time.perf_counter() - started
        print(found.markdown(), flush=True)
        done.append(found)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny, on a CPU, with the references for fast paths")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds after which no section is begun")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.cpu_smoke and not torch.cuda.is_available():
        print(
            "no CUDA device: run this on a machine with a GPU, or try the script itself with --cpu-smoke",
            file=sys.stderr,
        )
        return 2
    sizes = cpu() if arguments.cpu_smoke else gpu()
    head = environment(sizes.device)
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = run(sizes, budget=arguments.budget, folder=Path(folder))
    arguments.out.write_text("\n".join([head, *(section.markdown() for section in found)]), encoding="utf-8")
    wrong = [section.title for section in found if section.passed is False]
    print(f"{arguments.out}: {'wrong: ' + ', '.join(wrong) if wrong else 'all right'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
