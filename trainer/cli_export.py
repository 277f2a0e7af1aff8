"""`trainer export` on the command line."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path

import click

from packer.completion import folders
from packer.console import json_option, printable
from trainer.cli_options import hold_run


@click.command(short_help="A checkpoint as a folder that transformers loads.")
@click.argument("run", type=click.Path(path_type=Path), shell_complete=folders)
@click.option("--step", type=int, help="The checkpoint to export.  [default: the newest]")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=folders,
    help="Folder to write; it must be new or empty.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    help="Of the weights; auto: what the base model's config says, else fp32.",
)
@click.option(
    "--like-base",
    is_flag=True,
    help="The base model's own files, with what was trained replaced and all else (a vision tower) as it was.",
)
@json_option
def export(run: Path, step: int | None, out: Path, dtype: str, like_base: bool, json: bool) -> None:
    """Writes weights, config, tokenizer, chat template and generation config of a run, for AutoModelForCausalLM and AutoTokenizer:

    \b
      trainer export runs/first -o models/first
      trainer export runs/first --step 100 --dtype bf16 -o models/first-100
    """
    hold_run(run)
    from trainer.export import export as write

    done = write(run, out, step=step, dtype=dtype, like_base=like_base)
    if json:
        click.echo(dumps({**asdict(done), "folder": str(done.folder)}))
        return
    kept = f", {done.copied:,} of them as in the base model" if done.copied else ""
    click.echo(
        printable(
            f"done    {done.folder}: {run} after step {done.step:,}, {done.tensors:,} tensors{kept} "
            f"in {done.dtype or 'the dtypes of the base model'}, {done.nbytes / 1e6:,.1f} MB in {done.files:,} file{'s' if done.files > 1 else ''}"
        )
    )
