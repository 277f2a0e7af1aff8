"""What a template makes of a conversation, worked out once for all conversations of its kind: literal text, and which message's text stands where.

The template is run on texts that stand for any text (`packer.symbolic`). What it asks of them makes a decision tree for each order of roles, and each
leaf a form. The next conversation of that order answers the questions itself and is put together from its form: the template is not run. Where an
assistant's text lies follows from the form, so no marks are needed either.

A conversation whose texts lead to no form (the template takes one apart, or prints it twice, or asks how long it is) is left to `packer.marks`. Which of
the two it is depends on that conversation alone, never on those seen before.

    forms = Forms(template, prompt="<|im_start|>assistant\\n")
    forms.rendered(conversation)          # as `packer.marks.render` would give it, or None
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from packer.conversation import Conversation, Rejected
from packer.errors import UserError
from packer.expressions import Asked, Join, Part, Question, answered, place_of, value
from packer.template import ChatTemplate
from packer.turns import CLOSE, OPEN, Rendered, Turn, opens_thoughts

# A form is held against the template itself on every so many-th conversation that is made from one.
_CHECK_EVERY = 64
# Parts and questions kept, of about 100 bytes. Beyond them (ever new orders of roles, or a template that asks of each of hundreds of messages)
# conversations are traced one by one, to the same result.
_KEPT = 500_000
# What the marks of `packer.turns` are in UTF-8: they begin so, and hardly anything else does.
_MARKS = b"\xf4\x80\x80"
# What stands before a text, and may be the end of a tag that opens thoughts, begun in a text before it.
_MAY_OPEN_THOUGHTS = re.compile(r"(?:.*<think>|[<think>]*)\s*", re.DOTALL)
_AT_TAGS = re.compile(f"([{OPEN}{CLOSE}])")


class _Span(NamedTuple):
    """A turn of a form: from its part `first` to before its part `last`, begun `before` characters earlier (in the literal text in front), or later."""

    first: int
    last: int
    before: int = 0


class _Form(NamedTuple):
    """parts: literal text and expressions of the messages' texts, none of them ever empty; turns: the assistant's, in order."""

    parts: tuple[str | Part, ...]
    turns: tuple[_Span, ...]


class _Fork:
    """A question, and by its answer what is next: another, a form, None (marks must be used), or nothing yet."""

    __slots__ = ("argument", "ask", "next", "of")

    def __init__(self, question: Question) -> None:
        self.ask, self.of, self.argument = question
        self.next: dict[bool, _Fork | _Form | None] = {}


_UNSEEN = _Form((), ())


class Forms:
    """The forms of one template. prompt: what it appends for a model to go on from, as the probe found it."""

    def __init__(self, template: ChatTemplate, *, prompt: str) -> None:
        self._template = template
        self._prompt = prompt
        self._known: dict[object, _Fork | _Form | None] = {}
        self._kept = 0
        self._made = 0

    def rendered(self, conversation: Conversation) -> Rendered | None:
        """Text and turns of a conversation whose messages are a role and a text that is not blank; None for all others, and where there is no form.

        Raises UserError where a form is caught giving another text than the template.
        """
        messages, first_target = conversation.messages, conversation.first_target
        if conversation.tools is not None or conversation.masked:
            return None
        if first_target and self._template.has_generation_tags:
            return None
        texts: list[str] = []
        roles: list[str] = []
        orders = set()
        for message in messages:
            text = message["content"]
            if len(message) != 2 or type(text) is not str or not text or text.isspace():
                return None
            texts.append(text)
            roles.append(message["role"])  # type: ignore[arg-type]
            # A template may print the keys.
            orders.add(next(iter(message)))
        if len(orders) != 1:
            return None
        key = (first_target, orders.pop(), *roles)
        form = self._form(key, conversation, texts)
        if form is None:
            return None
        pieces = [
            part if isinstance(part, str) else texts[part] if isinstance(part, int) else value(part, texts)
            for part in form.parts
        ]
        text = "".join(pieces)
        if not text.isascii() and _MARKS in text.encode():
            return None
        at = list(accumulate(map(len, pieces), initial=0))
        turns = tuple([Turn(at[first] - before, at[last]) for first, last, before in form.turns])
        self._made += 1
        if self._made % _CHECK_EVERY == 0:
            self._check(conversation, text)
        return Rendered(text=text, turns=turns)

    def _form(self, key: object, conversation: Conversation, texts: Sequence[str]) -> _Form | None:
        known = self._known.get(key, _UNSEEN)
        while type(known) is _Fork:
            known = known.next.get(answered(known.ask, value(known.of, texts), known.argument), _UNSEEN)
        if known is not _UNSEEN:
            return known  # type: ignore[return-value]  # forks are behind
        asked = Asked(texts)
        form = self._traced(conversation, asked)
        if self._kept < _KEPT:
            self._keep(key, asked, form)
        return form

    def _keep(self, key: object, asked: Asked, form: _Form | None) -> None:
        """Lays the path of questions and answers down to the form."""
        nodes: dict[object, _Fork | _Form | None]
        nodes, branch = self._known, key
        self._kept += len(asked.texts) + (0 if form is None else len(form.parts))
        for question, answer in zip(asked.questions, asked.answers, strict=True):
            fork = nodes.get(branch)
            if fork is None:
                fork = nodes[branch] = _Fork(question)
                self._kept += len(question.of.parts) if isinstance(question.of, Join) else 1
            if not isinstance(fork, _Fork):
                return  # no template asks otherwise after the same answers, unless it throws dice
            nodes, branch = fork.next, answer  # type: ignore[assignment]
        nodes[branch] = form

    def _traced(self, conversation: Conversation, asked: Asked) -> _Form | None:
        try:
            parts = self._template.trace(conversation.messages, asked)
        except Rejected:
            return None
        return None if asked.lost else self._form_of(parts, conversation, asked)

    def _form_of(self, parts: tuple[str | Part, ...], conversation: Conversation, asked: Asked) -> _Form | None:
        """The form of what was printed, where the template itself agrees and every turn has its place."""
        printed = "".join([part if isinstance(part, str) else value(part, asked.texts) for part in parts])
        try:
            printed.encode()
            if printed != self._template.run(conversation.messages, tools=None):
                return None
        except (UnicodeEncodeError, Rejected):
            return None
        if self._template.has_generation_tags:
            return _between_tags(parts)
        if any(isinstance(part, str) and _MARKS in part.encode() for part in parts):
            return None
        return self._by_place(parts, conversation, asked)

    def _by_place(self, parts: tuple[str | Part, ...], conversation: Conversation, asked: Asked) -> _Form | None:
        """Turns where the assistant's texts stand: each once, by itself, in the order in which they were said."""
        said = [place for place, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        at = [(n, place_of(part)) for n, part in enumerate(parts) if not isinstance(part, str)]
        theirs = [(n, place) for n, place in at if place in set(said)]
        if [place for _, place in theirs] != said:
            return None
        turns = []
        for number, place in theirs:
            before = self._before(parts, number, asked)
            if before is None:
                return None
            if place >= conversation.first_target:
                turns.append(_Span(number, number + 1, before))
        return _Form(parts, tuple(turns))

    def _before(self, parts: tuple[str | Part, ...], number: int, asked: Asked) -> int | None:
        """How many characters in front of a text are the assistant's too: a tag that opens thoughts, behind the generation prompt. Below 0: the text
        begins with so many that the prompt has supplied. None: a text in front may be part of the prompt.
        """
        prompt, literal = self._prompt, parts[number - 1] if number else ""
        if not prompt:
            return 0
        if not isinstance(literal, str) or (literal in prompt and not prompt.startswith(literal)):
            return None
        found = literal.rfind(prompt)
        if found < 0 and _MAY_OPEN_THOUGHTS.fullmatch(literal):
            return None
        if found >= 0 and opens_thoughts(literal, found + len(prompt), len(literal)):
            return len(literal) - found - len(prompt)
        for size in range(len(prompt) - 1, 0, -1):
            if literal.endswith(prompt[:size]):
                question = Question("startswith", parts[number], prompt[size:])  # type: ignore[arg-type]  # no literal
                answer = answered(question.ask, value(question.of, asked.texts), question.argument)
                asked.questions.append(question)
                asked.answers.append(answer)
                if answer:
                    return size - len(prompt)
        return 0

    def _check(self, conversation: Conversation, text: str) -> None:
        own = self._template.run(conversation.messages, tools=None).replace(OPEN, "").replace(CLOSE, "")
        if own != text:
            place = next(
                (n for n, (a, b) in enumerate(zip(own, text, strict=False)) if a != b), min(len(own), len(text))
            )
            raise UserError(
                f"the chat template renders {own[place : place + 40]!r} where its form says {text[place : place + 40]!r}",
                "this is a fault of packer; please report it with the template",
            )


def _between_tags(parts: tuple[str | Part, ...]) -> _Form | None:
    """Turns between the marks of generation blocks, where none is within another; blocks that touch are one turn, as in `packer.turns.joined`."""
    kept: list[str | Part] = []
    turns: list[_Span] = []
    opened: int | None = None
    for part in parts:
        for piece in _AT_TAGS.split(part) if isinstance(part, str) else (part,):
            if piece == OPEN and opened is None:
                opened = len(kept)
            elif piece == CLOSE and opened is not None:
                if turns and turns[-1].last == opened:
                    opened = turns.pop().first
                turns.append(_Span(opened, len(kept)))
                opened = None
            elif piece in (OPEN, CLOSE):
                return None
            elif piece != "":
                kept.append(piece)
    return _Form(tuple(kept), tuple(turns)) if opened is None else None
