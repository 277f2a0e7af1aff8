"""What a person reads from `packer verify`: what was checked, and every broken rule with the places it was seen in."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from packer.console import printable
from packer.terminal import new_console
from packer.verify import Deep, Report


def print_verify(report: Report, folder: Path) -> None:
    """One line of what was checked; then that it is fine, or rule by rule where it is not."""
    console = new_console()

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    rate = report.bytes / 1e6 / max(report.seconds, 1e-3)
    line(
        f"{printable(str(folder))}: {report.shards:,} shards, {report.bytes / 1e6:,.1f} MB, {report.rows:,} rows, {report.examples:,} examples, "
        f"in {report.seconds:.1f} s ({rate:,.0f} MB/s)"
    )
    if report.deep:
        _deep(console, report.deep)
    if not report.broken:
        line(f"fine: every digest, every rule of every row, and all sums{_with_store(report)}", "green")
        return
    for rule, count in report.rules.items():
        line(f"{rule}{f' ({count:,} times)' if count > 1 else ''}", "bold red")
        kept = [finding for finding in report.findings if finding.rule == rule]
        for finding in kept:
            line(f"  {printable(finding.where)}{f': {printable(finding.detail)}' if finding.detail else ''}")
        if count > len(kept):
            line(f"  … and {count - len(kept):,} more")


def _with_store(report: Report) -> str:
    return ", the token store's too" if report.token_store else " (there is no token store)"


def _deep(console: Console, deep: Deep) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    if deep.source is None:
        line("not compared with the token store and the source: what is named below comes first", "yellow")
        return
    if deep.stored is not None:
        line(f"token store: {deep.stored:,} examples compared, token by token")
    source = deep.source
    line(f"source: {source.conversations:,} conversations tokenized again, {source.examples:,} examples compared")
    for name in source.changed:
        line(
            f"source: {printable(name)} is not the file that was packed (its digest differs): all of it compared",
            "yellow",
        )
    for one in source.missing:
        line(f"source: {printable(one.source)} not compared: {printable(one.why)}", "yellow")
