"""The command line of the trainer: options → `RunConfig` → one call. Only click is imported, so that --help answers at once."""

from __future__ import annotations

import os

import click

from packer.completion import folders
from packer.console import config_option, context_settings, json_option, printable, to_toml, voice_options
from trainer.cli_blame import blame
from trainer.cli_compare import compare
from trainer.cli_export import export
from trainer.cli_options import DEFAULTS, hold_shards, run_options
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
@run_options(*DEFAULTS)
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
@run_options(
    *("shards", "cache", "model", "init", "dtype", "kernels", "seed", "tokenizer_check"),
    seed="Of random weights.",
    tokenizer_check="Fail where the model's tokenizer.json is not the one that made the shards.",
)
@click.option("--as-is", is_flag=True, help="Measure the model as transformers alone runs it, from position ids.")
@click.option(
    "--out",
    shell_complete=folders,
    help="A run's folder to leave check.json in: `run` then need not prove it again.  [default: none]",
)
@json_option
@config_option
@voice_options
def check(as_is: bool, out: str | None, json: bool, quiet: bool, verbose: bool, **values: object) -> int:
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
    return prove(config, as_is=as_is, json=json, out=out, quiet=quiet)


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
