"""`trainer plan` from its options to its exit status.

status = plan(PlanConfig(model="Qwen/Qwen3-0.6B", capacity=8192, ranks=8), as_json=False)
"""

from __future__ import annotations

import sys

from packer.console import EXIT_NO
from packer.unheard import cut_short
from trainer.memory.config import PlanConfig
from trainer.memory.plan import make_plan
from trainer.memory.report import plan_json, print_plan


def plan(config: PlanConfig, *, as_json: bool) -> int:
    """Prints the plan. Returns 1 where memory was given and does not do, else 0."""
    made = make_plan(config)
    with cut_short():
        if as_json:
            sys.stdout.write(plan_json(made))
            sys.stdout.flush()
        else:
            print_plan(made)
    return EXIT_NO if made.fits is False else 0
