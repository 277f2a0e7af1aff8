"""Progress of long work: a bar with rate and time left on a terminal, a plain line every few seconds elsewhere, nothing from Python.

with progress.stage("tokenize", unit="conversations") as advance:
    advance(512)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_WORTH_A_LINE = 2.0


class Progress:
    """The silent kind, for use from Python; the others say what this one keeps to itself."""

    Advance: TypeAlias = Callable[[float], None]

    def say(self, line: str) -> None:
        """Something the user should know."""

    def detail(self, line: str) -> None:
        """Something for who asked for more."""

    @contextmanager
    def stage(self, name: str, *, unit: str, total: float | None = None) -> Iterator[Advance]:  # noqa: ARG002
        """One stage of the work; call what it yields with the number of units done since the last call."""
        yield lambda _count: None


class PlainProgress(Progress):
    """Lines on stderr: one every ten seconds, and one at the end of a stage that took more than two; verbose: at the end of every stage, and details."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose

    def say(self, line: str) -> None:
        with suppress(OSError, ValueError):  # nobody need be listening: work of hours does not end for that
            print(line, file=sys.stderr, flush=True)

    def detail(self, line: str) -> None:
        if self._verbose:
            self.say(line)

    @contextmanager
    def stage(self, name: str, *, unit: str, total: float | None = None) -> Iterator[Progress.Advance]:
        started = said = time.monotonic()
        done = 0.0

        def line() -> str:
            rate = done / max(time.monotonic() - started, 1e-9)
            left = f", {(total - done) / rate:.0f} s left" if total and rate and done < total else ""
            return f"{name}: {done:,.0f}{f' of {total:,.0f}' if total else ''} {unit} ({rate:,.1f}/s{left})"

        def advance(count: float) -> None:
            nonlocal done, said
            done += count
            if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                self.say(line())

        yield advance
        if self._verbose or time.monotonic() - started > _SECONDS_WORTH_A_LINE:
            self.say(line())


class TerminalProgress(PlainProgress):
    """A bar on stderr."""

    @contextmanager
    def stage(self, name: str, *, unit: str, total: float | None = None) -> Iterator[Progress.Advance]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description:<11}"),
            BarColumn(),
            TextColumn(
                "{task.completed:,.0f} / {task.total:,.0f} " + unit if total else "{task.completed:,.0f} " + unit
            ),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=total)
            yield lambda count: bar.advance(task, count)
            if total is None:
                bar.update(task, total=bar.tasks[task].completed)


def console_progress(*, quiet: bool, verbose: bool = False) -> Progress:
    """What suits where stderr goes."""
    if quiet or sys.stderr is None:
        return Progress()
    return TerminalProgress(verbose=verbose) if sys.stderr.isatty() else PlainProgress(verbose=verbose)
