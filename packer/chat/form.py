"""One form of a template: the parts that it prints, where the assistant's turns lie among them, and which of the texts it leaves out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from packer.conversation import Message
from packer.expressions import Part, place_of
from packer.turns import CLOSE, OPEN

_AT_TAGS = re.compile(f"([{OPEN}{CLOSE}])")
# The keys of a message with reasoning, under the two names that templates read; one text.
_REASONING = ("reasoning_content", "thinking")


class Span(NamedTuple):
    """A turn of a form: from its part `first` to before its part `last`, begun `before` characters earlier (in the literal text in front), or later.

    place: the assistant's message; -1 where generation tags made the turn.
    """

    first: int
    last: int
    before: int = 0
    place: int = -1


class Form(NamedTuple):
    """parts: literal text and expressions of the texts, none of them ever empty; turns: the assistant's, in order; unprinted: (kind, number of the text,
    place of its message) of what the template leaves out."""

    parts: tuple[str | Part, ...]
    turns: tuple[Span, ...]
    unprinted: tuple[tuple[str, int, int], ...] = ()


class Texts:
    """What of a conversation's messages stands for any text, and what does not.

    texts: contents in order, then reasoning. at: of each message, the number of the text under each key. shape: all else that a template can see. owners:
    (kind, place of the message) of each text.
    """

    __slots__ = ("at", "owners", "shape", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.at: list[dict[str, int]] = []
        self.shape: list[object] = []
        self.owners: list[tuple[str, int]] = []

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Texts | None:
        """None where a message holds more than a role, a text that is not blank, and reasoning."""
        found = cls()
        contents, shape, thinking = found.texts, found.shape, []
        for place, message in enumerate(messages):
            text = message["content"]
            if type(text) is not str or not text or text.isspace():
                return None
            contents.append(text)
            # A template may print the keys, so their order counts.
            shape.append(message["role"])
            shape.append(next(iter(message)))
            if len(message) == 2:
                continue
            reasoning = message.get("reasoning_content")
            if len(message) != 4 or message.get("thinking") != reasoning or message["role"] != "assistant":
                return None
            if type(reasoning) is not str or not reasoning or reasoning.isspace():
                return None
            shape.append(tuple(message))
            thinking.append((place, reasoning))
        for _, reasoning in thinking:
            contents.append(reasoning)
        shape.append(tuple([place for place, _ in thinking]))
        return found

    def number(self, messages: Sequence[Message]) -> None:
        """Fill in `at` and `owners`, which only tracing needs."""
        reasoned = len(messages)
        self.owners = [(f"text of {message['role']}", place) for place, message in enumerate(messages)]
        for place, message in enumerate(messages):
            self.at.append({"content": place})
            if len(message) > 2:
                self.at[-1].update(dict.fromkeys(_REASONING, reasoned))
                self.owners.append(("reasoning", place))
                reasoned += 1


def left_out(parts: tuple[str | Part, ...], found: Texts) -> tuple[tuple[str, int, int], ...]:
    numbers = {place_of(part) for part in parts if not isinstance(part, str)}
    return tuple((kind, n, place) for n, (kind, place) in enumerate(found.owners) if n not in numbers)


def literal_at_end(parts: tuple[str | Part, ...]) -> str:
    return parts[-1] if parts and isinstance(parts[-1], str) else ""


def between_tags(parts: tuple[str | Part, ...]) -> Form | None:
    """Turns between the marks of generation blocks, where none is within another; blocks that touch are one turn, as in `packer.turns.joined`."""
    kept: list[str | Part] = []
    turns: list[Span] = []
    opened: int | None = None
    for part in parts:
        for piece in _AT_TAGS.split(part) if isinstance(part, str) else (part,):
            if piece == OPEN and opened is None:
                opened = len(kept)
            elif piece == CLOSE and opened is not None:
                if turns and turns[-1].last == opened:
                    opened = turns.pop().first
                turns.append(Span(opened, len(kept)))
                opened = None
            elif piece in (OPEN, CLOSE):
                return None
            elif piece != "":
                kept.append(piece)
    return Form(tuple(kept), tuple(turns)) if opened is None else None
