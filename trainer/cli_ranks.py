"""The trainer's commands under a launcher: who tells of an error that every rank meets.

@click.group(cls=RankCommands)
def main() -> None: ...
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import click

from packer.console import EXIT_INTERRUPTED, EXIT_WRONG_USE, Commands, printable
from packer.errors import UserError
from packer.hub import hush
from packer.wrong_use import told

_RANK_0_SPEAKS_S = 10


class RankCommands(Commands):
    """`Commands` under a launcher: an error that every rank meets is told by rank 0 alone."""

    def main(  # type: ignore[override]  # click overloads on the value of standalone_mode
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: object,
    ) -> object:
        """Runs the command line, as `Commands` does."""
        rank = os.environ.get("RANK", "0")
        if not standalone_mode or rank == "0":
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        hush()
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except (UserError, click.ClickException) as error:
            # Rank 0 is meeting the same error and tells it; the launcher ends us when rank 0 leaves. If we left first, rank 0 would be ended
            # before it has spoken. If it does not leave, the error is ours alone and we tell it.
            time.sleep(_RANK_0_SPEAKS_S)
            said = (
                (error.message, error.hint)
                if isinstance(error, UserError)
                else told(error)
                if isinstance(error, click.UsageError)
                else (error.format_message(), "see --help")
            )
            click.echo(f"error: rank {rank}: {printable(said[0])}\nhint: {printable(said[1])}", err=True)
            sys.exit(EXIT_WRONG_USE)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(EXIT_INTERRUPTED)
        sys.exit(status if isinstance(status, int) else 0)
