"""trainer: rows of packed examples in, a fine-tuned model out, with every step of the same shapes.

    from trainer import RunConfig, run

    status = run(RunConfig(shards="data/packed", model="Qwen/Qwen3.5-0.8B", steps=100))

Rows for a loop of your own, and a collator for transformers' `Trainer`: `trainer.adapters`. `run` is the command `trainer run` as a function. torch is imported when it is called, so that `trainer --help` answers at once.
"""

from __future__ import annotations

from packer.errors import UserError
from trainer.config import RunConfig

__all__ = ["RunConfig", "UserError", "run"]


def run(config: RunConfig) -> int:
    """Trains as `config` says and returns the exit status: 0 done, 128 and its number where a signal stopped it, after saving; raises UserError."""
    from trainer.loop import run as run_loop

    return run_loop(config)
