"""`trainer profile` on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import click

from packer.console import config_option, json_option
from trainer.cli_options import hold_shards, run_options
from trainer.config import RunConfig


@click.command(short_help="Where a step's time goes, what bounds it, and what would help.")
@run_options("shards", "cache", "model", "init")
@click.option("--steps", type=click.IntRange(min=1), default=3, help="Steps that are recorded.")
@click.option(
    "--warm-up",
    type=click.IntRange(min=1),
    default=3,
    help="Steps before them: kernels are compiled and tuned, rows read ahead are used up.",
)
@click.option("--padded", is_flag=True, help="The same examples as 2-D padded batches, 4 examples each, instead.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Chrome/Perfetto trace to write, with our phases.  [default: none]",
)
@run_options(
    *("rows_per_step", "micro_rows", "balance", "loss_weighting", "dtype", "activation_checkpointing", "compile"),
    *("reduce", "replicas", "cpu_offload", "kernels", "seed", "tokenizer_check"),
)
@json_option
@config_option
def profile(steps: int, warm_up: int, padded: bool, trace: Path | None, json: bool, **values: object) -> int:
    """Runs some of the trainer's own steps under torch's profiler and says what bounds them, with the options that `run` would take:

    \b
      trainer profile --shards data/packed --rows-per-step 16
      trainer profile --shards data/packed --rows-per-step 16 --padded
      torchrun --nproc-per-node 8 -m trainer profile --shards data/packed --trace step.json

    A device that is busy all the time may do nothing useful. On a CPU, operations count as launches and the CPU is the device. Nothing is saved but the trace.
    """
    config = RunConfig(**values)  # type: ignore[arg-type]  # click has checked each option's type
    hold_shards(config.shards)
    # Before torch is loaded: its profiler writes a line for each of its stages, and warns of memory that is older than itself.
    os.environ.setdefault("KINETO_LOG_LEVEL", "7")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from trainer.profile.command import profile as run_profile

    return run_profile(config, steps=steps, warm_up=warm_up, padded=padded, json=json, trace=trace)
