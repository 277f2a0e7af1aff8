"""`trainer profile` on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import click

from packer.completion import folders
from packer.console import config_option
from trainer import config as options
from trainer.cli_options import DEFAULTS, choice, hold_shards, option, tokenizer_check
from trainer.config import RunConfig


@click.command(short_help="Where a step's time goes, what bounds it, and what would help.")
@click.option(
    "--shards",
    required=True,
    shell_complete=folders,
    help="Folder that `packer build` wrote, or its address: s3://bucket/packed.",
)
@option(
    "cache",
    str,
    "Folder for what is fetched from an address.  [default: ~/.cache/packer]",
    shell_complete=folders,
    envvar="PACKER_CACHE",
    show_envvar=True,
)
@option(
    "model",
    str,
    "Hub name or folder of the model.  [default: the one whose tokenizer made the shards]",
    shell_complete=folders,
)
@option("init", choice(options.Init), "Its weights, or random ones made with --seed.")
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
@option("rows_per_step", int, "Rows of an optimiser step, over all ranks.")
@option("micro_rows", int, "Rows a rank computes in one pass.")
@option("balance", choice(options.Balance), "As `run` deals rows to ranks.")
@option("loss_weighting", choice(options.LossWeighting), "What a step minimises.")
@option("dtype", choice(options.Dtype), "Of the computation; auto: bf16 on a GPU, fp32 on CPU.")
@option("activation_checkpointing", choice(options.Checkpointing), "What is computed again in backward.")
@click.option(
    "--compile/--no-compile",
    "compile",
    default=DEFAULTS["compile"],
    show_default=True,
    help="Compile each block (torch.compile).",
)
@option("reduce", choice(options.Reduce), "Sum gradients over ranks after each pass, or once a step.")
@option("replicas", int, "Whole copies of the model (HSDP).")
@click.option(
    "--cpu-offload/--no-cpu-offload",
    "cpu_offload",
    default=DEFAULTS["cpu_offload"],
    show_default=True,
    help="Master weights and optimiser in the host's memory.",
)
@option("kernels", choice(options.Kernels), "auto: fused on a GPU, reference on CPU.")
@option("seed", int, "Of the order of rows and of random weights.")
@tokenizer_check
@click.option(
    "--json", "as_json", is_flag=True, help="The report as JSON on standard output, all else on standard error."
)
@config_option
def profile(steps: int, warm_up: int, padded: bool, trace: Path | None, as_json: bool, **values: object) -> int:
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

    return run_profile(config, steps=steps, warm_up=warm_up, padded=padded, json=as_json, trace=trace)
