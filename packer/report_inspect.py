"""What a person sees of a row: its segments one below the other, targets and control tokens told apart by colour, or without colour by marks.

On a terminal, targets are green and control tokens bold. Elsewhere (a pipe, NO_COLOR) targets stand between ⟦ and ⟧. In both, text of the data that
only spells a control token or one of these marks has a backslash before it, and control characters are written as escapes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from packer.console import printable
from packer.show import Piece, Segment, Shown, ShownRow
from packer.terminal import new_console

OPEN, CLOSE = "⟦", "⟧"
_TARGET, _CONTROL, _FAINT = "green", "blue", "dim"


def print_inspect(shown: Shown, *, only_targets: bool) -> None:
    """Every row of `shown`; only_targets: nothing but what the model learns to say."""
    console = new_console()
    plain = _is_plain(console)
    spelled = _pattern(shown.controls, plain)
    console.print(_legend(plain, only_targets), soft_wrap=True)
    for row in shown.rows:
        console.print()
        console.print(_title(row), soft_wrap=True)
        for segment in row.segments:
            _heading(console, segment, plain)
            if segment.example is None:
                continue
            body = _learnt(segment, spelled, plain) if only_targets else [_whole(segment.pieces, spelled, plain)]
            for text in body:
                _print(console, text)


def print_example(console: Console, pieces: Sequence[Piece], controls: frozenset[str]) -> None:
    """One example alone, with the legend above it."""
    plain = _is_plain(console)
    console.print(_legend(plain, False), soft_wrap=True)
    _print(console, _whole(pieces, _pattern(controls, plain), plain))


def _is_plain(console: Console) -> bool:
    return not console.is_terminal or console.no_color


def _print(console: Console, text: Text) -> None:
    if console.is_terminal:
        console.print(text)
    else:
        # A pipe gets lines and tabs as they are in the data; a terminal's lines are wrapped at words.
        console.file.write(text.plain + "\n")


def _legend(plain: bool, only_targets: bool) -> Text:
    if only_targets:
        return Text("what the model learns to say, one stretch below the other", style=_FAINT)
    if plain:
        return Text(
            f"{OPEN}target{CLOSE}, anything else is only read; \\ stands before text that spells a mark or a control token"
        )
    return Text.assemble(
        ("target", _TARGET), ", ", ("control token", f"bold {_CONTROL}"), "; \\ stands before text that only spells one"
    )


def _title(row: ShownRow) -> Text:
    return Text(
        f"{row.split} row {row.row:,} ({printable(row.shard)}, row {row.shard_row:,}): {row.capacity:,} slots, "
        f"{row.num_examples} examples{', a pad tail' if row.num_segments > row.num_examples else ''}, {row.num_supervised:,} targets",
        style="bold",
    )


def _heading(console: Console, segment: Segment, plain: bool) -> None:
    slots, padding = f"slots {segment.start:,} to {segment.end - 1:,}", segment.end - segment.start - segment.tokens
    if segment.example is None:
        title, facts = f"pad × {padding:,}", slots
    else:
        title = f"example {segment.example:,}{f' · {printable(segment.origin)}' if segment.origin else ''}"
        filling = f", {padding:,} slots of alignment padding" if padding else ""
        weights = f" (weights {segment.loss_weights})" if segment.loss_weights else ""
        facts = f"{slots} · {segment.tokens:,} tokens, {segment.targets:,} targets{weights}{filling}"
    console.print()
    if plain:
        console.print(Text(f"── {title} · {facts} ──"), soft_wrap=True)
    else:
        console.print(Rule(Text(title, style="bold"), align="left", style=_FAINT))
        console.print(Text(facts, style=_FAINT))


def _whole(pieces: Sequence[Piece], spelled: re.Pattern[str], plain: bool) -> Text:
    text = Text()
    inside = False
    for piece in pieces:
        if plain and piece.is_target != inside:
            text.append(OPEN if piece.is_target else CLOSE)
        inside = piece.is_target
        text.append(_shown(piece, spelled), style=_style(piece))
    if plain and inside:
        text.append(CLOSE)
    return text


def _learnt(segment: Segment, spelled: re.Pattern[str], plain: bool) -> Iterator[Text]:
    """Each stretch of targets."""
    opening, closing = (OPEN, CLOSE) if plain else ("", "")
    for is_target, run in itertools.groupby(segment.pieces, key=lambda piece: piece.is_target):
        if is_target:
            yield Text.assemble(opening, *((_shown(piece, spelled), _style(piece)) for piece in run), closing)


def _style(piece: Piece) -> str:
    if piece.is_control:
        return f"bold {_TARGET if piece.is_target else _CONTROL}"
    return _TARGET if piece.is_target else ""


def _pattern(controls: frozenset[str], plain: bool) -> re.Pattern[str]:
    """What gets a backslash: spelled control tokens (longest first) and, where marks are used, the marks; also the end of a piece, for its backslashes."""
    words = sorted(controls, key=len, reverse=True) + ([OPEN, CLOSE] if plain else [])
    return re.compile(rf"(\\*)({'|'.join([*map(re.escape, words), chr(92) + 'Z'])})")


def _shown(piece: Piece, spelled: re.Pattern[str]) -> str:
    text = piece.text
    if not piece.is_control:
        # Backslashes of the data are doubled where one of ours could follow: what is shown can be read in one way only.
        text = spelled.sub(lambda match: match.group(1) * 2 + ("\\" + match.group(2) if match.group(2) else ""), text)
    # Line ends and tabs are what they are; everything else that a terminal would obey is written as an escape.
    return "".join(part if part in "\n\t" else printable(part) for part in re.split(r"([\n\t])", text))
