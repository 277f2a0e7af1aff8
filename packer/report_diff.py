"""What a person reads from `packer diff`: the verdict, the causes, what they did to the counts, and the first of the examples that changed."""

from __future__ import annotations

import itertools
from pathlib import Path

from rich.text import Text

from packer.console import printable
from packer.diff import Difference, ExampleChanges
from packer.terminal import new_console

_WIDEST, _LONGEST = 48, 60
_STYLES = {"same bytes": "green", "same rows in another order": "yellow", "different": "bold red"}


def print_diff(difference: Difference, a: Path, b: Path) -> None:
    """Verdict, changes by subject, template lines, examples."""
    console = new_console()
    console.print(Text(f"a  {printable(str(a))}\nb  {printable(str(b))}"), soft_wrap=True)
    console.print(Text(difference.verdict, style=_STYLES[difference.verdict]))
    for subject, changes in itertools.groupby(difference.changes, key=lambda change: change.subject):
        console.print(Text(f"\n{subject.capitalize()}", style="bold"))
        listed = list(changes)
        width = min(max(len(printable(change.what)) for change in listed), _WIDEST)
        for change in listed:
            what = printable(change.what).ljust(width)
            console.print(Text(f"  {what}  {_short(change.a)} → {_short(change.b)}"), soft_wrap=True)
    if difference.template:
        console.print(Text("\nTemplate, first lines that differ", style="bold"))
        for line in difference.template:
            style = {"-": "red", "+": "green"}.get(line[:1], "dim")
            console.print(Text(f"  {printable(line)}", style=style), soft_wrap=True)
    if difference.examples is not None:
        console.print(_examples(difference.examples), soft_wrap=True)


def _short(value: str) -> str:
    text = printable(value)
    return (text if len(text) <= _LONGEST else text[:_LONGEST] + "…") or "-"


def _examples(changes: ExampleChanges) -> Text:
    counts = {
        "removed": changes.removed,
        "added": changes.added,
        "ids changed": changes.ids_changed,
        "mask changed": changes.mask_changed,
        "weights changed": changes.weights_changed,
    }
    text = Text.assemble(("\nExamples", "bold"))
    text.append(f"\n  {changes.same:,} the same")
    if changes.moved:
        text.append(f"\n  {changes.moved:,} moved to the other split")
    for pair in changes.other_source:
        noun, now, before = ("example", "is", "was") if pair.examples == 1 else ("examples", "are", "were")
        text.append(f"\n  {pair.examples:,} {noun} {now} in {printable(pair.b)} that {before} in {printable(pair.a)}")
    for kind, count in counts.items():
        if not count:
            continue
        text.append(f"\n  {count:,} {kind}")
        named = [one for one in changes.named if one.kind == kind]
        for one in named:
            numbers = " → ".join(str(number) for number in (one.a, one.b) if number is not None)
            text.append(f"\n    {printable(one.origin)} (example {numbers}): {one.detail}")
        if count > len(named):
            text.append(f"\n    … and {count - len(named):,} more", style="dim")
    return text
