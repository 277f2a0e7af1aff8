"""`packer repack` on the command line."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli_values import choice, segments, share
from packer.completion import folders
from packer.console import config_option, voice_options
from packer.words import Overlong, Strategy


@click.command(short_help="Rows of another capacity, without tokenizing again.")
@click.argument("path", type=click.Path(path_type=Path), shell_complete=folders)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, shell_complete=folders, help="Folder to write."
)
@click.option("--capacity", type=int, required=True, help="Slots (tokens) a row: a multiple of 64.")
@click.option(
    "--max-segments", help="Most segments a row: auto, a number, or 0 for no cap.  [default: as PATH was built]"
)
@click.option(
    "--align",
    type=int,
    help="Begin every example at a multiple of so many slots (a divisor of the capacity).  [default: as PATH was built]",
)
@click.option(
    "--strategy", type=choice(Strategy), help="optimal, bfd, ffd or sequential.  [default: as PATH was built]"
)
@click.option(
    "--overlong",
    type=choice(Overlong),
    help="What is longer than a row: drop, truncate, split, error, or auto.  [default: as PATH was built]",
)
@click.option("--seed", type=int, help="Seed of the order of rows, and of weights.  [default: as PATH was built]")
@click.option("--max-loss", default="1%", help="Fail if more than this share of conversations or tokens is left out.")
@click.option("--shard-rows", type=int, default=0, help="Rows a shard, a multiple of 16; 0: about 256 MB a shard.")
@click.option("--workers", type=int, default=0, help="Processes that write shards; 0: one a core.")
@click.option(
    "--token-store/--no-token-store",
    default=True,
    help="Have the tokenized conversations in the new folder too (as links where the file system can).",
)
@click.option("--force", is_flag=True, help="Replace another build in the folder.")
@voice_options
@config_option
def repack(path: Path, quiet: bool, verbose: bool, max_loss: str, max_segments: str | None, **options: object) -> None:
    """Rows of another capacity from the token store of PATH, without tokenizing: what `packer build` would write.

    \b
    packer repack data/packed --capacity 16384 -o data/packed-16k
    """
    from packer.progress import console_progress
    from packer.repacking import RepackConfig
    from packer.repacking import repack as run_repack
    from packer.report import print_build

    wanted = None if max_segments is None else segments(max_segments)
    config = RepackConfig(
        source=path,
        max_loss=share(max_loss, "--max-loss"),
        max_segments="auto" if max_segments is not None and wanted is None else wanted,
        **options,  # type: ignore[arg-type]  # click has converted each to the field's type
    )
    manifest = run_repack(config, console_progress(quiet=quiet, verbose=verbose))
    if not quiet:
        print_build(manifest, config.out)
