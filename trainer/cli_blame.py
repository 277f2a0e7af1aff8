"""`trainer blame` on the command line."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from packer.completion import folders
from packer.console import json_option
from trainer.cli_options import hold_run

# Where nobody's terminal says how wide it is.
_WIDTH = 160


@click.command(short_help="The examples of a step, with their own losses and sources.")
@click.argument("run", type=click.Path(path_type=Path), shell_complete=folders)
@click.option("--step", type=int, required=True, help="The step to take apart, as metrics.jsonl numbers it: from 1.")
@click.option(
    "--model",
    shell_complete=folders,
    help="Compute with these weights, a hub name or folder.  [default: the run's checkpoint nearest to what the step saw]",
)
@click.option("--shards", shell_complete=folders, help="Where the shards lie now.  [default: where the run found them]")
@click.option(
    "--gradients",
    is_flag=True,
    help="The gradient of each row too. It is computed anyway where the step's was not finite: then the layer where that begins is named.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=10, help="Examples shown, worst first; 0: all. --json has all."
)
@json_option
def blame(run: Path, step: int, model: str | None, shards: str | None, gradients: bool, limit: int, json: bool) -> None:
    """Takes a step of a run apart: rows, examples, their sources and what they teach, each with its own loss, worst first; and says how to go on
    without the worst.

    \b
      trainer blame runs/first --step 1204
      torchrun --nproc-per-node 8 -m trainer blame runs/first --step 1204 --json
    """
    hold_run(run)
    from trainer.blame.command import blame as take_apart
    from trainer.blame.report import json_of, text

    found = take_apart(run, step=step, model=model, shards=shards, gradients=gradients)
    if os.environ.get("RANK", "0") != "0":
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    click.echo(json_of(found) if json else text(found, limit=limit, width=width), nl=not json)
