"""The command line of the trainer: options → `RunConfig` → one call. Only click is imported, so that --help answers at once."""

from __future__ import annotations

import os

import click

from packer.completion import folders
from packer.console import config_option, context_settings, printable, to_toml, voice_options
from trainer import config as options
from trainer.cli_blame import blame
from trainer.cli_compare import compare
from trainer.cli_export import export
from trainer.cli_options import DEFAULTS, Numbers, hold_shards, tokenizer_check
from trainer.cli_options import choice as _choice
from trainer.cli_options import option as _option
from trainer.cli_plan import plan
from trainer.cli_profile import profile
from trainer.cli_ranks import RankCommands
from trainer.cli_refused import refuses_what_is_not_there
from trainer.config import RunConfig


@click.group(cls=RankCommands, context_settings=context_settings("TRAINER"))
@click.version_option(package_name="packer-trainer", prog_name="trainer")
def main() -> None:
    """Fine-tunes a causal language model on packed rows.

    \b
    Example:
      packer build chats.jsonl --tokenizer Qwen/Qwen3.5-0.8B -o data/packed
      trainer run --shards data/packed --steps 100 --lr 2e-5
    """


@main.command(short_help="Train on a folder of packed shards, alone or under torchrun.")
@click.option(
    "--shards",
    required=True,
    shell_complete=folders,
    help="Folder that `packer build` wrote, or its address: s3://bucket/packed.",
)
@_option(
    "eval_shards",
    str,
    "Folder with rows to evaluate on.  [default: the eval split of --shards, if it has one]",
    shell_complete=folders,
)
@_option(
    "cache",
    str,
    "Folder for what is fetched from an address.  [default: ~/.cache/packer]",
    envvar="PACKER_CACHE",
    show_envvar=True,
    shell_complete=folders,
)
@_option(
    "model",
    str,
    "Hub name or folder of the model.  [default: the one whose tokenizer made the shards]",
    shell_complete=folders,
)
@_option("init", _choice(options.Init), "Start from its weights, or from random ones made with --seed.")
@_option("steps", int, "Optimiser steps.  [default: as many as --epochs takes]")
@_option("epochs", int, "Times through the rows.  [default: 1, unless --steps]")
@_option("rows_per_step", int, "Rows of an optimiser step, over all ranks.")
@_option("micro_rows", int, "Rows a rank computes in one pass.")
@_option(
    "balance",
    _choice(options.Balance),
    "batch: sort a step's rows by attention cost, so that ranks work on like rows; window: make each step of like rows, out of 16 steps; off: stream order.",
)
@_option(
    "skip_rows",
    Numbers(int),
    "Rows that keep their place but are neither trained on nor computed: 17,1204.  [default: none]",
)
@_option(
    "loss_weighting",
    _choice(options.LossWeighting),
    "What a step minimises. token: the sum of cross-entropy over its targets ÷ their number. example: the mean over its examples of the mean over "
    "each one's targets, so that a long answer weighs no more than a short one.",
)
@_option(
    "router_aux_loss",
    float,
    "Of a mixture of experts: this coefficient times how unevenly its tokens (no pads) are spread over the experts is minimised too; 0: not.",
)
@_option("lr", float, "Peak learning rate. The default suits a pretrained model; random weights want 1e-3 or so.")
@_option("warmup", str, "Steps of linear warm-up (100), or a share of the run (0.03).")
@_option(
    "schedule",
    _choice(options.Schedule),
    "After warm-up, down to 0 at the end; wsd: constant, then linear over the last fifth.",
)
@_option("weight_decay", float, "Of matrices; biases, norms, gates and short convolutions have none.")
@_option("betas", Numbers(float), "AdamW's two.")
@_option("clip", float, "Largest norm of the whole gradient; 0: no clipping.")
@_option(
    "non_finite",
    _choice(options.NonFinite),
    "After a step whose gradient is not finite, which updates nothing. stop: the run ends at the next line of metrics, naming step and rows; skip: "
    "it goes on, counting them.",
)
@_option(
    "dtype",
    _choice(options.Dtype),
    "Of the computation; auto: bf16 on a GPU, fp32 on CPU. Master weights and optimiser are fp32, always, but with fp64, which is for checks: all "
    "is float64 then.",
)
@_option(
    "activation_checkpointing",
    _choice(options.Checkpointing),
    "Recompute in backward: nothing, all but matrix products and attention, or all. With --compile none is selective: the compiler sees to it.",
)
@click.option(
    "--compile/--no-compile",
    "compile",
    default=DEFAULTS["compile"],
    show_default=True,
    help="Compile each block (torch.compile), all but its kernels: minutes at the start, faster steps.",
)
@_option(
    "reduce",
    _choice(options.Reduce),
    "Sum gradients over ranks after each pass, or once a step (holds 4 bytes for every parameter on every rank).",
)
@_option("replicas", int, "Whole copies of the model (HSDP): each is sharded over ranks ÷ N neighbours.")
@click.option(
    "--cpu-offload/--no-cpu-offload",
    "cpu_offload",
    default=DEFAULTS["cpu_offload"],
    show_default=True,
    help="Keep master weights and optimiser in the host's memory, and update there: less of the GPU's memory, slower steps.",
)
@_option("kernels", _choice(options.Kernels), "auto: fused on a GPU (a missing package is an error), reference on CPU.")
@_option(
    "check",
    _choice(options.Check),
    "Before the first step: prove what `trainer check` does, isolation alone, or nothing. A stored proof that still holds is taken.",
)
@_option(
    "eval_every",
    int,
    "Evaluate every N steps and at the end; 0: never.  [default: at the end, where there are eval rows]",
)
@_option("save_every", int, "Checkpoint every N steps, besides at the end and on Ctrl-C; 0: only then.")
@_option("keep", int, "Keep the newest N checkpoints; 0: all.")
@_option("log_every", int, "A line of metrics every N steps.")
@_option("out", str, "The run's folder.  [default: runs/NAME, the name of the shards' folder]", shell_complete=folders)
@_option(
    "tracker",
    _choice(options.Tracker),
    "Also tell this tracker the numbers of metrics.jsonl (repeatable): tensorboard writes into the run's folder. One that fails does not end the run.",
    multiple=True,
)
@_option("tracker_project", str, "The project of trackio and wandb.  [default: trainer for trackio; wandb's own]")
@_option(
    "resume",
    str,
    "auto: go on from the run folder's newest checkpoint; never; or a run's or checkpoint's folder.",
    metavar="auto|never|DIR",
    shell_complete=folders,
)
@_option("seed", int, "Of the order of rows and of random weights.")
@tokenizer_check
@refuses_what_is_not_there
@config_option
@click.option("--dry-run", is_flag=True, help="Print the resolved options as TOML and what would be done, and stop.")
@voice_options
def run(dry_run: bool, quiet: bool, verbose: bool, **values: object) -> int:
    """Trains on packed rows. One process, or every rank of a torchrun:

    \b
      trainer run --shards data/packed --steps 100 --lr 2e-5 --out runs/first
      torchrun --nproc-per-node 8 -m trainer run --shards data/packed --epochs 2 --out runs/second

    The same command goes on where an earlier one stopped. Ctrl-C, SIGTERM or a closed terminal saves a checkpoint first and ends with
    status 130, 143 or 129; under torchrun that must be done within its 30 seconds.
    """
    config = RunConfig(**values)  # type: ignore[arg-type]  # click has checked each option's type
    if dry_run:
        return _dry_run(config)
    hold_shards(config.shards)
    from trainer.loop import run as run_loop
    from trainer.say import let_libraries_speak

    if verbose:
        let_libraries_speak()
    return run_loop(config, quiet=quiet)


@main.command(short_help="Prove on this model and these shards that packing changes nothing.")
@click.option("--shards", required=True, shell_complete=folders, help="Folder that `packer build` wrote.")
@_option(
    "model",
    str,
    "Hub name or folder of the model.  [default: the one whose tokenizer made the shards]",
    shell_complete=folders,
)
@_option("init", _choice(options.Init), "Its weights, or random ones made with --seed.")
@_option("dtype", _choice(options.Dtype), "Of the computation; auto: bf16 on a GPU, fp32 on CPU.")
@_option("kernels", _choice(options.Kernels), "As `run` would take them: auto, fused or reference.")
@_option("seed", int, "Of random weights.")
@click.option(
    "--tokenizer-check/--no-tokenizer-check",
    "tokenizer_check",
    default=DEFAULTS["tokenizer_check"],
    help="Fail where the model's tokenizer.json is not the one that made the shards.",
)
@click.option("--as-is", is_flag=True, help="Measure the model as transformers alone runs it, from position ids.")
@click.option(
    "--out",
    shell_complete=folders,
    help="A run's folder to leave check.json in: `run` then need not prove it again.  [default: none]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="The report as JSON on standard output, all else on standard error."
)
@config_option
@voice_options
def check(as_is: bool, out: str | None, as_json: bool, quiet: bool, verbose: bool, **values: object) -> int:
    """Proves that no example sees another in its row and that each computes what it computes alone; status 1 names the layer that leaks.

    \b
      trainer check --shards data/packed --model Qwen/Qwen3.5-0.8B
      torchrun --nproc-per-node 8 -m trainer check --shards data/packed --out runs/first

    In order, ending at the first that fails: contract, isolation, equality, normalisation, labels. The rows it computes on are small ones, cut from
    the real ones.
    """
    config = RunConfig(**values, steps=1, eval_every=0)  # type: ignore[arg-type]  # click has checked each option's type
    hold_shards(config.shards)
    from trainer.check.command import check as prove
    from trainer.say import let_libraries_speak

    if verbose:
        let_libraries_speak()
    return prove(config, as_is=as_is, json=as_json, out=out, quiet=quiet)


main.add_command(compare)
main.add_command(export)
main.add_command(plan)
main.add_command(blame)
main.add_command(profile)


def _dry_run(config: RunConfig) -> int:
    from trainer.dry_run import foresee
    from trainer.prepare import prepare

    world = int(os.environ.get("WORLD_SIZE", config.replicas))
    prepared = prepare(config, world=world)
    # Comments, so that the whole output is a file that --config reads.
    said = [f"# {label}: {printable(text)}" for label, text in foresee(prepared, world=world)]
    if os.environ.get("RANK", "0") == "0":
        click.echo("\n".join([to_toml(prepared.config.options()).rstrip("\n"), *said]))
    return 0
