"""Texts that stand for any text: a template runs on them, and what it asks of them and where it prints them is written down.

A `Said` holds one message's text and is used like it. It answers as the text does, and each answer that the text decides ("does it contain
`</think>`?") is recorded; what it is joined into is kept as parts. So one run tells what the template does with *every* conversation whose texts
answer alike: concolic execution (Sen, Marinov and Agha, 2005). What it does not model (its characters, how many there are) it refuses to tell, and
says so in `Asked.lost`; it is no `str`, so nothing can read the text behind its back.

    >>> asked = Asked([" hi "])
    >>> said = Said(asked, 0)
    >>> "</think>" in said, parts_of(join(["<user>", said.strip()]))
    (False, ('<user>', Strip(steps=(('strip', None),), place=0)))
    >>> asked.questions
    [Question(ask='contains', of=0, argument='</think>')]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from packer.expressions import Ask, Asked, Expression, Join, Part, Question, answered, stripped, value


class UnknowableError(TypeError):
    """A template wants to know something of a text that a form cannot depend on."""


class _Call:
    """A method of a text, bound to it. To compare two of them, as Python's own are compared, would tell which texts are one object."""

    __slots__ = ("_name", "_said")

    def __init__(self, said: Said, name: str) -> None:
        self._said = said
        self._name = name

    def __call__(self, *arguments: object) -> object:
        if self._name in ("startswith", "endswith"):
            return self._said._answer(self._name, *arguments)  # type: ignore[arg-type]  # both are an Ask
        if self._name == "split":
            return self._said._split(*arguments)
        return self._said._replace(*arguments) if self._name == "replace" else self._said._strip(self._name, *arguments)

    def _lose(self, *_: object) -> NoReturn:
        self._said._lose()

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = _lose


class _Method:
    """The methods of text that a template may call."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, said: Said, owner: type) -> _Call:
        return _Call(said, self._name)


class Said:
    """The text of one message, or what became of it. The environment's own code tells it by `type(x) is Said`; to a template it is text."""

    __slots__ = ("_asked", "_expression")

    def __init__(self, asked: Asked, expression: Expression) -> None:
        self._asked = asked
        self._expression = expression

    # `x is string` asks isinstance, which asks this.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str

    startswith = _Method()
    endswith = _Method()
    strip = _Method()
    lstrip = _Method()
    rstrip = _Method()
    split = _Method()
    replace = _Method()

    def __bool__(self) -> bool:
        return self._answer("bool", "")

    def __contains__(self, argument: object) -> bool:
        return self._answer("contains", argument)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Said:
            self._lose()
        # What is no text equals none, whatever this one says.
        return self._answer("equals", other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def _split(self, *arguments: object) -> list[str | Said]:
        if len(arguments) != 1 or type(arguments[0]) is not str or not arguments[0]:
            self._lose()
        at = arguments[0]
        pieces: list[list[str | Said]] = [[]]
        parts = parts_of(self)
        for number, part in enumerate(parts):
            if isinstance(part, str):
                # Where it could begin or end in a text beside this one, or run through it, the pieces depend on that.
                before, after = number > 0, number + 1 < len(parts)
                within = before and after and part in at
                over = any(
                    (before and part.startswith(at[n:])) or (after and part.endswith(at[:n])) for n in range(1, len(at))
                )
                if within or over:
                    self._lose()
                first, *others = part.split(at)
                pieces[-1].append(first)
                pieces += [[piece] for piece in others]
            else:
                beside = number > 0 and type(parts[number - 1]) is not str
                said = Said(self._asked, part)
                if beside or said._answer("contains", at):
                    self._lose()
                pieces[-1].append(said)
        return [join(piece) for piece in pieces]

    def _replace(self, *arguments: object) -> Said:
        # Of a text that contains what is to be replaced, nothing can be told.
        if len(arguments) != 2 or type(arguments[1]) is not str or self._answer("contains", arguments[0]):
            self._lose()
        return self

    def __add__(self, other: object) -> str | Said:
        return join([self, other]) if type(other) in (str, Said) else NotImplemented  # type: ignore[list-item]

    def __radd__(self, other: object) -> str | Said:
        return join([other, self]) if type(other) is str else NotImplemented

    def _answer(self, ask: Ask, *arguments: object) -> bool:
        if len(arguments) != 1 or type(arguments[0]) is not str:
            self._lose()
        question = Question(ask, self._expression, arguments[0])
        answer = answered(ask, value(self._expression, self._asked.texts), question.argument)
        self._asked.questions.append(question)
        self._asked.answers.append(answer)
        return answer

    def _strip(self, how: str, *arguments: object) -> str | Said:
        characters = arguments[0] if arguments else None
        # White space alone: a text that is not blank stays so, and a part of a form is never empty.
        if len(arguments) > 1 or not (characters is None or (type(characters) is str and not characters.strip())):
            self._lose()
        parts = list(parts_of(self))
        if len(parts) == 1:
            return Said(self._asked, stripped(parts[0], how, characters))  # type: ignore[arg-type]  # no literal alone
        for edge, method in ((0, "lstrip"), (-1, "rstrip")):
            while how in ("strip", method):
                part = parts[edge]
                # Only literal text can vanish; what stands behind it is at the edge then.
                parts[edge] = (
                    getattr(part, method)(characters) if isinstance(part, str) else stripped(part, method, characters)
                )
                if parts[edge]:
                    break
                del parts[edge]
        return join([part if isinstance(part, str) else Said(self._asked, part) for part in parts])

    def _lose(self, *_: object, **__: object) -> NoReturn:
        self._asked.lost = True
        raise UnknowableError("a form cannot depend on that")

    def __getattr__(self, name: str) -> NoReturn:
        self._asked.lost = True
        raise AttributeError(name)

    # All that Python can ask an object besides: each would tell what no question here asks.
    __hash__ = _lose
    __str__ = __repr__ = __format__ = __bytes__ = __dir__ = _lose
    __len__ = __length_hint__ = __iter__ = __reversed__ = __getitem__ = _lose
    __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __rmod__ = __mul__ = __rmul__ = _lose
    __int__ = __float__ = __complex__ = __index__ = __trunc__ = _lose
    __reduce__ = __reduce_ex__ = _lose


class Length:
    """How long a text is, which tells no more than whether it is empty. To a template it is a number."""

    __slots__ = ("_of",)

    def __init__(self, of: Said) -> None:
        self._of = of

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __bool__(self) -> bool:
        return bool(self._of)

    def __gt__(self, other: object) -> bool:
        return bool(self._of) if type(other) is int and other == 0 else self._lose()

    def __ge__(self, other: object) -> bool:
        return bool(self._of) if type(other) is int and other == 1 else self._lose()

    def __eq__(self, other: object) -> bool:
        return not self._of if type(other) is int and other == 0 else self._lose()

    def __le__(self, other: object) -> bool:
        return not self > other

    def __lt__(self, other: object) -> bool:
        return not self >= other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _lose(self, *_: object, **__: object) -> NoReturn:
        self._of._lose()

    def __getattr__(self, name: str) -> NoReturn:
        self._of._asked.lost = True
        raise AttributeError(name)

    __hash__ = _lose
    __str__ = __repr__ = __format__ = __bytes__ = __dir__ = _lose
    __int__ = __float__ = __complex__ = __index__ = __trunc__ = __round__ = __floor__ = __ceil__ = _lose
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _lose
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _lose
    __neg__ = __pos__ = __abs__ = __invert__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _lose
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __reduce__ = __reduce_ex__ = _lose


def parts_of(said: object) -> tuple[str | Part, ...]:
    """What a text is made of, in order; raises TypeError for what is no text. (A template could see an attribute.)"""
    if type(said) is not Said:
        lose(said)
        if not isinstance(said, str):
            raise TypeError(f"expected text, not {type(said).__name__}")
        return (str(said),) if said else ()  # of a subclass too, such as jinja's Markup
    expression = said._expression
    return expression.parts if isinstance(expression, Join) else (expression,)


def lose(*values: object) -> None:
    """For what an environment can see and a stand-in cannot: raises UnknowableError where one of the values is one."""
    for one in values:
        if type(one) in (Said, Length):
            one._lose()  # type: ignore[attr-defined]


def join(parts: Iterable[str | Said]) -> str | Said:
    """Parts as one text: a Said where one of them is."""
    kept: list[str | Part] = []
    asked: Asked | None = None
    for part in parts:
        if type(part) is Said:
            asked = part._asked
        for piece in parts_of(part):
            if kept and type(piece) is str and type(kept[-1]) is str:
                kept[-1] += piece
            else:
                kept.append(piece)
    if asked is None:
        return "".join(kept)  # type: ignore[arg-type]  # literals all
    return Said(asked, kept[0] if len(kept) == 1 else Join(tuple(kept)))  # type: ignore[arg-type]  # no literal alone
