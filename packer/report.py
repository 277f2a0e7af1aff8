"""What a person reads at the end of `packer build`: tables by rich, readable without colour and in a pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from packer.chat.reasoning_policy import CHARACTERS, EVERY_TURN, WHOLE
from packer.console import printable
from packer.manifest import Manifest
from packer.terminal import new_console, new_table

# Of many files; the rest is a number.
_SOURCES_SHOWN = 12


def print_build(manifest: Manifest, place: str | Path) -> None:
    """The ledger, which encoder was used and why, and where the rows lie."""
    console = new_console()
    log: dict[str, Any] = {}
    if (path := Path(place) / "build-log.json").is_file():
        log = json.loads(path.read_text(encoding="utf-8"))
    _print_sources(console, manifest, log.get("not_read"))
    print_ledger(console, manifest)
    if log:
        console.print(Text(f"encoder: {log['encoder']} ({log['encoder_reason']})"))
        for remark in log.get("remarks") or ():
            console.print(Text(printable(str(remark))), soft_wrap=True)
    for name, split in sorted(manifest.splits.items(), reverse=True):
        slots = split.rows * manifest.capacity
        console.print(
            Text(
                f"{name}: {split.rows:,} row{'' if split.rows == 1 else 's'} of {manifest.capacity:,} slots, {split.tokens / max(slots, 1):.2%} full, "
                f"{split.rows - split.lower_bound_rows} above the lower bound of {split.lower_bound_rows:,}"
            )
        )
    console.print(Text(f"{printable(str(place))}: see `packer stats {printable(str(place))}`"))


def _print_sources(console: Console, manifest: Manifest, not_read: object) -> None:
    """Every file, or split of the hub, with the rows that were read of it; and what of folders was not read."""
    table = new_table("Sources", "", "split", "weight", "rows read", "used for")
    for source in manifest.sources[:_SOURCES_SHOWN]:
        name = " ".join(word for word in (source.name, source.config) if word)
        table.add_row(
            printable(name), printable(source.split), source.weight, f"{source.conversations:,}", source.used_for
        )
    console.print(table)
    if rest := manifest.sources[_SOURCES_SHOWN:]:
        console.print(Text(f"and {len(rest):,} more, {sum(source.conversations for source in rest):,} rows"))
    for line in not_read if isinstance(not_read, list) else ():
        console.print(Text(printable(str(line))), soft_wrap=True)
    console.print()


def print_ledger(console: Console, manifest: Manifest) -> None:
    """What was read, and where all of it is: in rows, or left out for a reason."""
    conversations, tokens = manifest.ledger.conversations, manifest.ledger.tokens
    read, encoded = conversations["read"], tokens["encoded"]
    table = new_table("Ledger", "", "conversations", "of read", "tokens", "of encoded")

    def line(label: str, count: int, of_tokens: int) -> None:
        shares = f"{count / read if read else 0:.2%}", f"{of_tokens / encoded if encoded else 0:.2%}"
        table.add_row(label, f"{count:,}", shares[0], f"{of_tokens:,}", shares[1])

    table.add_row("read", f"{read:,}", "", f"{encoded:,}", "")
    line("in rows", conversations["in"], tokens["in_rows"])
    for reason in sorted(set(conversations) | set(tokens)):
        if reason not in ("read", "in", "encoded", "in_rows"):
            line(f"left out: {printable(reason)}", conversations.get(reason, 0), tokens.get(reason, 0))
    console.print(table)
    for reason, count in sorted(manifest.ledger.in_part.items()):
        console.print(
            Text(
                f"{printable(reason)}: {count:,} of the conversations in rows went in without {tokens.get(reason, 0):,} of their tokens"
            )
        )
    for role, spelled in sorted(manifest.ledger.control_tokens.items()):
        found = ", ".join(f"{token} {count:,}" for token, count in sorted(spelled.items()))
        console.print(
            Text(f"control tokens spelled by {role} ({manifest.options['control_tokens']}): {printable(found)}")
        )
    for text in note_lines(manifest.ledger.notes):
        console.print(Text(printable(text)), soft_wrap=True)
    console.print()


def note_lines(notes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line per kind of note: what else happened to the data that went in."""
    lines = []
    for kind, details in sorted(notes.items()):
        if kind == CHARACTERS:
            factor = details[EVERY_TURN] / max(details[WHOLE], 1)
            lines.append(f"an example per assistant turn: {factor:.2f} × the characters of whole conversations")
            continue
        counts = ", ".join(f"{detail} {count:,}" for detail, count in sorted(details.items()))
        lines.append(f"{kind}: {counts}")
    return lines
