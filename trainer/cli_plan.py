"""`trainer plan` on the command line."""

from __future__ import annotations

import click

from packer.completion import folders
from packer.console import config_option, json_option
from trainer.cli_options import run_options


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
@run_options(
    *("cache", "model"),
    model="Hub name or folder; its config.json is all that is read.  [default: the one whose tokenizer made the shards]",
)
@click.option("--capacity", type=int, help="Slots of a row, where there are no shards.  [default: that of the shards]")
@click.option("--rows", type=int, help="Rows to train on, where there are no shards.  [default: those of the shards]")
@click.option("--ranks", type=int, default=1, help="GPUs over all machines.")
@run_options("replicas")
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
@run_options(
    *("dtype", "kernels", "activation_checkpointing", "rows_per_step", "micro_rows", "steps", "epochs", "reduce"),
    *("loss_weighting", "cpu_offload"),
    dtype="auto: bf16 for cuda, fp32 for cpu.",
    kernels="auto: fused for cuda, reference for cpu.",
)
@click.option(
    "--tokens-per-s", type=float, help="Useful tokens a second, all ranks together: gives the hours.  [default: none]"
)
@click.option("--run", shell_complete=folders, help="A run's folder to take that rate from.  [default: none]")
@json_option
@config_option
def plan(json: bool, **values: object) -> int:
    """Says what a run would need, from the model's config alone: no weight is read, no GPU used.

    \b
      trainer plan --shards data/packed --ranks 8 --memory 80GB
      trainer plan --model Qwen/Qwen3-8B --capacity 8192 --ranks 8 --activation-checkpointing full

    The peak is counted by part: one pass of the model is traced with tensors that have no memory, and what FSDP2 gathers and reduces is laid over it.
    Status 1 where --memory is given and the ranks do not fit.
    """
    from trainer.memory.command import plan as make
    from trainer.memory.config import PlanConfig

    config = PlanConfig(**values)  # type: ignore[arg-type]  # click has checked each option's type
    return make(config, as_json=json)
