"""What can be said of a text before it is known: what was made of it, and what was asked of it.

>>> value(Join(("<user>", Strip("strip", None, 0))), [" hi "])
'<user>hi'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Union

Ask = Literal["bool", "contains", "startswith", "endswith", "equals"]


class Strip(NamedTuple):
    """An expression with white space stripped: how is the method of `str`; characters its argument."""

    how: str
    characters: str | None
    of: Expression


class Join(NamedTuple):
    """Parts one behind the other, literal text among them; two literals never stand side by side."""

    parts: tuple[str | Expression, ...]


# int: the text of the message at that place.
Expression = Union[int, "Strip", "Join"]


class Question(NamedTuple):
    """What was asked of an expression's text; argument is empty for "bool"."""

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
    return text == argument


def value(expression: Expression, texts: Sequence[str]) -> str:
    """The text of an expression, given the messages' texts."""
    if type(expression) is int:
        return texts[expression]
    if type(expression) is Strip:
        stripped: str = getattr(value(expression.of, texts), expression.how)(expression.characters)
        return stripped
    return "".join([part if type(part) is str else value(part, texts) for part in expression.parts])  # type: ignore[union-attr, arg-type]


def places(expression: Expression) -> list[int]:
    """The places of the messages whose text is in an expression, once for each time that it is."""
    if type(expression) is int:
        return [expression]
    if type(expression) is Strip:
        return places(expression.of)
    return [place for part in expression.parts if type(part) is not str for place in places(part)]  # type: ignore[union-attr, arg-type]
