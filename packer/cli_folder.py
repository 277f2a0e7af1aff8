"""The commands that read a folder of packed shards: options → one library call → rendering. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from packer.errors import GateError, UserError

_PATH = click.argument("path", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def _echo_json(document: object) -> None:
    click.echo(json.dumps(document, indent=1, sort_keys=True))


@click.command()
@_PATH
@_JSON
def stats(path: Path, as_json: bool) -> None:
    """Density, lower bound, segments a row, and the padding saved.

    \b
    packer stats data/packed
    """
    from packer.report import print_stats
    from packer.stats import measure

    measured = measure(path)
    if as_json:
        _echo_json(measured.to_json())
    else:
        print_stats(measured)


@click.command()
@_PATH
@click.option(
    "--deep",
    is_flag=True,
    help="Compare every token with the token store as well, and tokenize a sample of the conversations again from their source.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=1000,
    help="Conversations to tokenize again with --deep; of a source that has changed since, all are.",
)
@_JSON
def verify(path: Path, deep: bool, sample: int, as_json: bool) -> None:
    """Hold a folder against every rule of the format; status 1 where one is broken.

    Checks the manifest and its sums, every digest, every row, and that rows, examples/, the token store, the tokenizer and
    rejects.jsonl agree. Each broken rule is named with shard and row.

    \b
    packer verify data/packed
    packer verify data/packed --deep
    """
    from packer.progress import console_progress
    from packer.report_verify import print_verify
    from packer.verify import verify as run_verify

    report = run_verify(path, deep=deep, sample=sample, progress=console_progress(quiet=False))
    if as_json:
        _echo_json(report.to_json())
    else:
        print_verify(report, path)
    if report.broken:
        raise GateError(
            f"{path}: {report.broken} broken", "restore what is named from a copy, or build the folder again"
        )
    missing = report.deep.source.missing if report.deep and report.deep.source else ()
    if missing:
        raise UserError(
            f"{missing[0].source}: not compared ({missing[0].why})",
            "verify where the sources still lie as build-log.json has them; the rest of the folder is fine",
        )


FOLDER_COMMANDS = (stats, verify)
