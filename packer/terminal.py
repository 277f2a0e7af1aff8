"""The console and the tables of every report: no markup, so that text of the data is text, and no complaint when a reader has seen enough.

console = new_console()
console.print(new_table("Ledger", "", "conversations", "tokens"))
"""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


class _Console(Console):
    """rich's console, for which a reader that has seen enough (head, less) is no failure."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def new_console(*, stderr: bool = False) -> Console:
    """Prints to stdout, or stderr, in colour where that is a terminal and NO_COLOR is not set."""
    return _Console(highlight=False, markup=False, emoji=False, stderr=stderr)


def new_table(title: str, *columns: str) -> Table:
    """A table of words in the first column and numbers in the others."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table
