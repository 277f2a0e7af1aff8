"""The commands that read a folder of packed shards: options → one library call → rendering. Nothing heavy is imported before a command runs."""

from __future__ import annotations

from json import dumps
from pathlib import Path

import click

from packer.completion import folders
from packer.console import cache_option, json_option, voice_options
from packer.errors import GateError, UserError
from packer.unheard import cut_short

_PATH = click.argument("path", type=click.Path(path_type=Path), shell_complete=folders)
_SUPERVISED_EXAMPLES = 8


def _echo_json(document: object) -> None:
    click.echo(dumps(document, indent=1, sort_keys=True))


@click.command(short_help="How full the rows are, and the padding that packing saved.")
@click.argument("path", shell_complete=folders)
@json_option
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a page with charts and decoded rows: one file that fetches nothing.  [default: no page]",
)
@click.option("--ranks", type=int, default=8, help="Ranks of the run whose waiting is simulated.")
@click.option("--rows-per-step", type=int, help="Rows of its steps, over all ranks.  [default: one a rank]")
@cache_option
def stats(path: str, json: bool, html: Path | None, ranks: int, rows_per_step: int | None, cache: Path | None) -> None:
    """The ledger, lengths, how full rows are, the padding saved, and what ranks would wait for each other. PATH is a folder or an address.

    \b
    packer stats data/packed
    packer stats data/packed --html stats.html
    packer stats s3://bucket/packed
    """
    from packer.report_stats import print_stats
    from packer.stats import measure

    measured = measure(path, ranks=ranks, rows_per_step=rows_per_step, cache=cache)
    if html is not None:  # first: whoever reads standard output may close it early
        from packer.excerpt import take
        from packer.html.page import write_page
        from packer.shards import open_corpus
        from packer.stats_page import stats_page

        write_page(html, stats_page(measured, take(open_corpus(path, cache=cache)), name=path), option="--html")
    if json:
        _echo_json(measured.to_json())
    else:
        print_stats(measured)


@click.command(short_help="Hold a folder against its digests and every rule of the format.")
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
@json_option
@voice_options
def verify(path: Path, deep: bool, sample: int, json: bool, quiet: bool, verbose: bool) -> None:
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

    report = run_verify(path, deep=deep, sample=sample, progress=console_progress(quiet=quiet, verbose=verbose))
    with cut_short():
        if json:
            _echo_json(report.to_json())
        elif not quiet:
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


@click.command(name="inspect", short_help="A row or an example, decoded: boundaries, targets, origin.")
@_PATH
@click.option("--row", type=int, help="Row N of the split, from 0.  [default: 0]")
@click.option("--example", type=int, help="Example N (its example_id), wherever it lies.  [default: a row]")
@click.option(
    "--supervised",
    is_flag=True,
    help="Only what the model learns to say; without --row and --example of the first rows.",
)
@click.option(
    "--split", type=click.Choice(["train", "eval"]), help="Split to look in.  [default: train, or the example's own]"
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Show the first N examples of the split.  [default: 8 with --supervised]",
)
@json_option
def inspect_(
    path: Path,
    row: int | None,
    example: int | None,
    supervised: bool,
    split: str | None,
    limit: int | None,
    json: bool,
) -> None:
    """One row or example decoded: boundaries, targets, pad, and where each example came from (without a choice: row 0).

    \b
    packer inspect data/packed --row 12
    packer inspect data/packed --example 812
    packer inspect data/packed --supervised | less
    """
    from packer.report_inspect import print_inspect
    from packer.show import show

    chosen = [name for name, value in (("--row", row), ("--example", example), ("--limit", limit)) if value is not None]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} were both given", f"give {chosen[0]} alone")
    if supervised and not chosen:
        limit = _SUPERVISED_EXAMPLES
    shown = show(path, split=split, row=row, example=example, limit=limit)
    if json:
        _echo_json({"rows": [one.to_json(only_targets=supervised) for one in shown.rows]})
    else:
        print_inspect(shown, only_targets=supervised)


@click.command(short_help="What differs between two builds, and why.")
@click.argument("a", type=click.Path(path_type=Path), shell_complete=folders)
@click.argument("b", type=click.Path(path_type=Path), shell_complete=folders)
@json_option
@voice_options
def diff(a: Path, b: Path, json: bool, quiet: bool, verbose: bool) -> int:
    """What differs between two builds, and why; status 1 where their rows differ.

    Says whether the shards are the same bytes, the same rows in another order, or different; then options, sources, tokenizer,
    template and versions that differ, and which examples changed.

    \b
    packer diff data/packed data/packed-new
    """
    from packer.console import EXIT_NO
    from packer.diff import diff as run_diff
    from packer.progress import console_progress
    from packer.report_diff import print_diff

    difference = run_diff(a, b, console_progress(quiet=quiet, verbose=verbose))
    with cut_short():
        if json:
            _echo_json(difference.to_json())
        elif not quiet:
            print_diff(difference, a, b)
    return 0 if difference.equal else EXIT_NO


FOLDER_COMMANDS = (stats, verify, inspect_, diff)
