"""`trainer plan` on the command line."""

from __future__ import annotations

from typing import get_args

import click

from packer.completion import folders
from packer.console import config_option
from trainer import config as options
from trainer.cli_options import DEFAULTS


class Bytes(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """An amount of memory: 80GB."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ARG002
        from trainer.memory.config import read_bytes

        return value if isinstance(value, int) else read_bytes(str(value))


@click.command(short_help="Memory a rank by part, the fewest ranks that fit, steps and hours.")
@click.option(
    "--shards",
    shell_complete=folders,
    help="Folder that `packer build` wrote, or its address.  [default: none: give --capacity and --rows]",
)
@click.option(
    "--cache",
    shell_complete=folders,
    envvar="PACKER_CACHE",
    show_envvar=True,
    help="Folder for what is fetched from an address.  [default: ~/.cache/packer]",
)
@click.option(
    "--model",
    shell_complete=folders,
    help="Hub name or folder; its config.json is all that is read.  [default: the one whose tokenizer made the shards]",
)
@click.option("--capacity", type=int, help="Slots of a row, where there are no shards.  [default: that of the shards]")
@click.option("--rows", type=int, help="Rows to train on, where there are no shards.  [default: those of the shards]")
@click.option("--ranks", type=int, default=1, help="GPUs over all machines.")
@click.option("--replicas", type=int, default=DEFAULTS["replicas"], help="Whole copies of the model (HSDP).")
@click.option(
    "--memory",
    type=Bytes(),
    help="Of one GPU, 80GB say: does it fit, and the fewest ranks that would.  [default: none]",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    help="What the run would be on. This machine needs no GPU.",
)
@click.option(
    "--dtype",
    type=click.Choice(get_args(options.Dtype)),
    default=DEFAULTS["dtype"],
    help="auto: bf16 for cuda, fp32 for cpu.",
)
@click.option(
    "--kernels",
    type=click.Choice(get_args(options.Kernels)),
    default=DEFAULTS["kernels"],
    help="auto: fused for cuda, reference for cpu.",
)
@click.option(
    "--activation-checkpointing",
    type=click.Choice(get_args(options.Checkpointing)),
    default=DEFAULTS["activation_checkpointing"],
    help="As of `run`.",
)
@click.option(
    "--rows-per-step", type=int, default=DEFAULTS["rows_per_step"], help="Rows of an optimiser step, over all ranks."
)
@click.option("--micro-rows", type=int, default=DEFAULTS["micro_rows"], help="Rows a rank computes in one pass.")
@click.option("--steps", type=int, help="Optimiser steps.  [default: those of --epochs]")
@click.option("--epochs", type=int, help="Times through the rows.  [default: 1, unless --steps]")
@click.option("--reduce", type=click.Choice(get_args(options.Reduce)), default=DEFAULTS["reduce"], help="As of `run`.")
@click.option(
    "--loss-weighting",
    type=click.Choice(get_args(options.LossWeighting)),
    default=DEFAULTS["loss_weighting"],
    help="As of `run`.",
)
@click.option("--cpu-offload/--no-cpu-offload", default=DEFAULTS["cpu_offload"], help="As of `run`.")
@click.option(
    "--tokens-per-s", type=float, help="Useful tokens a second, all ranks together: gives the hours.  [default: none]"
)
@click.option("--run", shell_complete=folders, help="A run's folder to take that rate from.  [default: none]")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@config_option
def plan(as_json: bool, **values: object) -> int:
    """Says what a run would need, from the model's config alone: no weight is read, no GPU used.

    \b
      trainer plan --shards data/packed --ranks 8 --memory 80GB
      trainer plan --model Qwen/Qwen3-8B --capacity 8192 --ranks 8 --activation-checkpointing full

    The peak is counted by part: one pass of the model is traced with tensors that have no memory, and what FSDP2 gathers and reduces is laid over it.
    Status 1 where --memory is given and the ranks do not fit.
    """
    from trainer.memory.command import plan as make

    return make(values, as_json=as_json)
