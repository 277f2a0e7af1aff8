"""What can be said of a text before it is known: what was made of it, and what was asked of it.

>>> value(Join(("<user>", Strip((("strip", None),), 0))), [" hi "])
'<user>hi'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Ask = Literal["bool", "contains", "startswith", "endswith", "equals", "begins"]


class Strip(NamedTuple):
    """The text of this number with white space stripped: one (method of `str`, its argument) after the other."""

    steps: tuple[tuple[str, str | None], ...]
    place: int


# int: the text of that number.
Part = int | Strip


class Join(NamedTuple):
    """Parts one behind the other, literal text among them; two literals never stand side by side."""

    parts: tuple[str | Part, ...]


Expression = Part | Join


class Question(NamedTuple):
    """What was asked of an expression's text; argument is empty for "bool". "begins": whether the argument begins with the text."""

    ask: Ask
    of: Expression
    argument: str


@dataclass(slots=True)
class Asked:
    """Every question of one run and its answer, in order. texts: the messages', which answer; none of them is blank. lost: something was asked that has no question here."""

    texts: Sequence[str]
    questions: list[Question] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    lost: bool = False


def answered(ask: Ask, text: str, argument: str) -> bool:
    """The answer of a text to a question."""
    if ask == "contains":
        return argument in text
    if ask == "bool":
        return bool(text)
    if ask == "startswith":
        return text.startswith(argument)
    if ask == "endswith":
        return text.endswith(argument)
    if ask == "begins":
        return argument.startswith(text)
    return text == argument


def value(expression: Expression, texts: Sequence[str]) -> str:
    """The text of an expression, given the messages' texts."""
    if isinstance(expression, int):
        return texts[expression]
    if isinstance(expression, Strip):
        text = texts[expression.place]
        for how, characters in expression.steps:
            text = getattr(text, how)(characters)
        return text
    return "".join([part if isinstance(part, str) else value(part, texts) for part in expression.parts])


def place_of(part: Part) -> int:
    """The number of the text that a part is."""
    return part if isinstance(part, int) else part.place


def stripped(part: Part, how: str, characters: str | None) -> Strip:
    """A part with white space stripped; once more is nothing more."""
    steps = () if isinstance(part, int) else part.steps
    return Strip(steps if steps[-1:] == ((how, characters),) else (*steps, (how, characters)), place_of(part))
