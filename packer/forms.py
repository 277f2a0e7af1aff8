"""What a template makes of a conversation, worked out once for all conversations of its kind: literal text, and which message's text stands where.

The template is run on texts that stand for any text (`packer.symbolic`). What it asks of them makes a decision tree for each order of roles, and each
leaf a form. The next conversation of that order answers the questions itself and is put together from its form: the template is not run. Where an
assistant's text lies follows from the form, so no marks are needed either.

A conversation whose texts lead to no form (the template takes one apart, or prints it twice, or asks how long it is) is left to `packer.marks`. Which of
the two it is depends on that conversation alone, never on those seen before.

    forms = Forms(template, Facts(prompt="<|im_start|>assistant\\n"))
    forms.rendered(conversation)          # as `packer.marks.render` would give it, or None
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate

from packer.chat.form import Form, Span, Texts, between_tags, left_out, literal_at_end
from packer.chat.turn_start import before_tag, closed_before_reasoning, common_length, empty_block, only_reasoning
from packer.conversation import Conversation, Message, Rejected
from packer.errors import UserError
from packer.expressions import Ask, Asked, Join, Part, Question, answered, place_of, value
from packer.marks import weight_of
from packer.template import ChatTemplate
from packer.turns import CLOSE, OPEN, Facts, Rendered, Turn, Unprinted

# A form is held against the template itself on every so many-th conversation that is made from one.
_CHECK_EVERY = 64
# Parts and questions kept, of about 100 bytes. Beyond them (ever new orders of roles, or a template that asks of each of hundreds of messages)
# conversations are traced one by one, to the same result.
_KEPT = 500_000
# What the marks of `packer.turns` are in UTF-8: they begin so, and hardly anything else does.
_MARKS = b"\xf4\x80\x80"
_REPLY = "text of assistant"


class _Fork:
    """A question, and by its answer what is next: another, a form, None (marks must be used), or nothing yet."""

    __slots__ = ("argument", "ask", "next", "of")

    def __init__(self, question: Question) -> None:
        self.ask, self.of, self.argument = question
        self.next: dict[bool, _Fork | Form | None] = {}


_UNSEEN = Form((), ())


class Forms:
    """The forms of one template. facts: what a probe showed of it."""

    def __init__(self, template: ChatTemplate, facts: Facts) -> None:
        self._template = template
        self._facts = facts
        self._closer = re.compile("|".join(map(re.escape, facts.closers)))
        self._known: dict[object, _Fork | Form | None] = {}
        self._kept = 0
        self._made = 0

    def rendered(self, conversation: Conversation) -> Rendered | None:
        """Text and turns of a conversation whose messages are a role and a text that is not blank, some with reasoning; None for all others, and where
        there is no form.

        Raises UserError where a form is caught giving another text than the template.
        """
        messages = conversation.messages
        if conversation.tools is not None:
            return None
        plain_weights = not (conversation.first_target or conversation.masked or conversation.weights)
        if self._template.has_generation_tags and not plain_weights:
            return None
        found = Texts.of(messages)
        if found is None:
            return None
        if conversation.template_args:
            found.shape.append(json.dumps(conversation.template_args))
        form = self._form((*found.shape,), conversation, found)
        if form is None:
            return None
        texts = found.texts
        pieces = [
            part if isinstance(part, str) else texts[part] if isinstance(part, int) else value(part, texts)
            for part in form.parts
        ]
        text = "".join(pieces)
        if not text.isascii() and _MARKS in text.encode():
            return None
        at = list(accumulate(map(len, pieces), initial=0))
        if plain_weights:
            turns = tuple([Turn(at[first] - before, at[last]) for first, last, before, _ in form.turns])
        else:
            turns = tuple(
                [
                    # As with marks, one that is not trained on begins with its text: no prompt is looked for.
                    Turn(at[first] - before if weight else at[first], at[last], weight)
                    for first, last, before, place in form.turns
                    for weight in (weight_of(conversation, place),)
                ]
            )
        self._made += 1
        if self._made % _CHECK_EVERY == 0:
            self._check(conversation, text)
        return Rendered(
            text=text,
            turns=turns,
            unprinted=tuple([Unprinted(kind, texts[number], place) for kind, number, place in form.unprinted]),
        )

    def _form(self, key: object, conversation: Conversation, found: Texts) -> Form | None:
        texts = found.texts
        known = self._known.get(key, _UNSEEN)
        while type(known) is _Fork:
            known = known.next.get(answered(known.ask, value(known.of, texts), known.argument), _UNSEEN)
        if known is not _UNSEEN:
            return known  # type: ignore[return-value]  # forks are behind
        asked = Asked(texts)
        found.number(conversation.messages)
        form = self._traced(conversation, found, asked)
        if self._kept < _KEPT:
            self._keep(key, asked, form)
        return form

    def _keep(self, key: object, asked: Asked, form: Form | None) -> None:
        """Lays the path of questions and answers down to the form."""
        nodes: dict[object, _Fork | Form | None]
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

    def _traced(self, conversation: Conversation, found: Texts, asked: Asked) -> Form | None:
        try:
            parts = self._template.trace(conversation.messages, asked, texts=found.at, args=conversation.template_args)
        except Rejected:
            return None
        return None if asked.lost else self._form_of(parts, conversation, found, asked)

    def _form_of(
        self, parts: tuple[str | Part, ...], conversation: Conversation, found: Texts, asked: Asked
    ) -> Form | None:
        """The form of what was printed, where the template itself agrees and every turn has its place."""
        printed = "".join([part if isinstance(part, str) else value(part, asked.texts) for part in parts])
        try:
            printed.encode()
            if printed != self._template.run(conversation.messages, tools=None, args=conversation.template_args):
                return None
        except (UnicodeEncodeError, Rejected):
            return None
        if self._template.has_generation_tags:
            form = between_tags(parts)
            return form and form._replace(unprinted=left_out(parts, found))
        if any(isinstance(part, str) and _MARKS in part.encode() for part in parts):
            return None
        return self._by_place(self._closed(parts, conversation.messages), conversation, found, asked)

    def _closed(self, parts: tuple[str | Part, ...], messages: Sequence[Message]) -> tuple[str | Part, ...]:
        """The parts with what closes a last turn that the template leaves open."""
        if not self._facts.appended or messages[-1]["role"] != "assistant":
            return parts
        if parts and isinstance(parts[-1], str):
            return (*parts[:-1], parts[-1] + self._facts.appended)
        return (*parts, self._facts.appended)

    def _by_place(
        self, parts: tuple[str | Part, ...], conversation: Conversation, found: Texts, asked: Asked
    ) -> Form | None:
        """Turns where the assistant's texts stand: each once, by itself, in the order in which they were said, and closed before the next text."""
        owners = [(n, *found.owners[place_of(part)]) for n, part in enumerate(parts) if not isinstance(part, str)]
        replies = [(n, place) for n, kind, place in owners if kind == _REPLY]
        if [place for _, place in replies] != [
            p for p, m in enumerate(conversation.messages) if m["role"] == "assistant"
        ]:
            return None
        turns = []
        for number, place in replies:
            closing = parts[number + 1] if number + 1 < len(parts) else ""
            if not isinstance(closing, str) or not self._closer.search(closing):
                return None
            thinking = [n for n, kind, its in owners if (kind, its) == ("reasoning", place)]
            if len(thinking) > 1 or (thinking and self._next_text(parts, thinking[0]) != number):
                return None
            first = thinking[0] if thinking else number
            before = self._before(parts, first, place, conversation, found, asked)
            if before is None:
                return None
            turns.append(Span(first, number + 1, before, place))
        return Form(parts, tuple(turns), left_out(parts, found))

    @staticmethod
    def _next_text(parts: tuple[str | Part, ...], number: int) -> int:
        return next((n for n in range(number + 1, len(parts)) if not isinstance(parts[n], str)), -1)

    def _before(
        self,
        parts: tuple[str | Part, ...],
        number: int,
        place: int,
        conversation: Conversation,
        found: Texts,
        asked: Asked,
    ) -> int | None:
        """How many characters in front of a turn's first text are the assistant's too: what stands behind the generation prompt. Below 0: the text begins
        with so many that the prompt has supplied. None: where the prompt ends cannot be said for all texts alike.
        """
        try:
            prompted = self._template.trace(
                conversation.messages[:place],
                asked,
                texts=found.at,
                add_generation_prompt=True,
                args=conversation.template_args,
            )
        except Rejected:
            return None
        literal, tail = literal_at_end(parts[:number]), literal_at_end(prompted)
        texts_before = [part for part in parts[:number] if not isinstance(part, str)]
        # Both are laid against one another behind the last text before the turn, which must be the same one.
        if asked.lost or texts_before[-1:] != [part for part in prompted if not isinstance(part, str)][-1:]:
            return None
        common = common_length(literal, tail)
        if common == len(literal) < len(tail):
            rest, text = tail[common:], parts[number]
            if self._ask("begins", text, rest, asked):
                return None
            if self._ask("startswith", text, rest, asked):
                return -len(rest)
        common = before_tag(literal, tail, common)
        rest, supplied, written = tail[common:], literal[:common], literal[common:]
        if not only_reasoning(rest) or closed_before_reasoning(rest, supplied, written):
            return None
        return len(literal) - common - empty_block(literal[:common], literal[common:], self._facts.block)

    @staticmethod
    def _ask(ask: Ask, text: str | Part, argument: str, asked: Asked) -> bool:
        question = Question(ask, text, argument)  # type: ignore[arg-type]  # no literal
        answer = answered(ask, value(question.of, asked.texts), argument)
        asked.questions.append(question)
        asked.answers.append(answer)
        return answer

    def _check(self, conversation: Conversation, text: str) -> None:
        own = self._template.run(conversation.messages, tools=None, args=conversation.template_args)
        own = own.replace(OPEN, "").replace(CLOSE, "")
        if self._facts.appended and conversation.messages[-1]["role"] == "assistant":
            own += self._facts.appended
        if own != text:
            place = next(
                (n for n, (a, b) in enumerate(zip(own, text, strict=False)) if a != b), min(len(own), len(text))
            )
            raise UserError(
                f"the chat template renders {own[place : place + 40]!r} where its form says {text[place : place + 40]!r}",
                "this is a fault of packer; please report it with the template",
            )
