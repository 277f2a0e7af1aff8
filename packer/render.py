"""From messages to an example: text rendered once, encoded once, targets found by where the text lies.

What is a target (`--train-on assistant`): the text the assistant wrote and the token that ends its turn. Not a target: role headers, the newline
behind a turn, whatever the template writes by itself (an empty think block, say), and everything that others say.

    renderer = Renderer(tokenizer, ChatTemplate(...), train_on="assistant", column="messages")
    example = renderer.examples([{"messages": [...]}])[0]
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

from packer.conversation import Json, Message, Rejected, canonical
from packer.errors import UserError
from packer.template import ChatTemplate, Rendered
from packer.tokenizer import Encoded, Tokenizer
from packer.types import BoolArray, Int32Array, Int64Array

TrainOn = Literal["assistant", "last", "all"]
_PROBE_USER, _PROBE_ANSWER = (
    ("What is the tallest tree?", "And the widest?"),
    ("The coast redwood.", "A Montezuma cypress."),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One conversation as tokens: ids int32 [n], loss_mask bool [n] (true where the token is a target; never on the first).

    content_hash: 64 bits of what was said and by whom, whatever the tokenizer and the template.
    """

    ids: Int32Array
    loss_mask: BoolArray
    content_hash: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ready:
    """A conversation that has been rendered and waits for its tokens."""

    place: int
    rendered: Rendered
    content_hash: int


class Renderer:
    """Renders conversations with one template and one tokenizer.

    Making one renders a probe conversation and raises UserError where its targets are not what they must be: none at all, the turn's end not
    among them, the user's text among them, more than one BOS.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, *, train_on: TrainOn, column: str) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._train_on = train_on
        self._column = column
        special = [
            re.escape(token) for token_id, token in tokenizer.added_tokens.items() if token_id in tokenizer.special_ids
        ]
        added = [re.escape(token) for token in tokenizer.added_tokens.values()]
        self._special = _any_of(special)
        self._added = _any_of(added)
        self.method = "generation tags" if template.has_generation_tags else "marks"
        self.stop_ids: tuple[int, ...] = ()
        self.stop_ids = self._probe()

    def examples(self, rows: Sequence[object]) -> list[Example | Rejected]:
        """Each row's example, or why there is none, in order."""
        outcomes: list[Example | Rejected | None] = [None] * len(rows)
        ready: list[_Ready] = []
        for place, row in enumerate(rows):
            try:
                messages = canonical(row, column=self._column)
                self._refuse_control_tokens(messages)
                tools = row.get("tools") if isinstance(row, dict) else None
                rendered = self._template.render(messages, tools=_tools(tools))
                ready.append(_Ready(place=place, rendered=rendered, content_hash=_content_hash(messages)))
            except Rejected as rejected:
                outcomes[place] = rejected
        for item, encoded in zip(ready, self._tokenizer.encode([item.rendered.text for item in ready]), strict=True):
            try:
                outcomes[item.place] = self._example(item.rendered, encoded, item.content_hash)
            except Rejected as rejected:
                outcomes[item.place] = rejected
        return [outcome for outcome in outcomes if outcome is not None]

    def _example(self, rendered: Rendered, encoded: Encoded, content_hash: int) -> Example:
        mask = np.zeros(len(encoded.ids), dtype=bool)
        if self._train_on == "all":
            mask[:] = True
        else:
            spans = _token_spans(rendered, encoded)
            if not self._template.has_generation_tags:
                spans = self._with_terminators(spans, encoded)
            for start, end in spans[-1:] if self._train_on == "last" else spans:
                mask[start:end] = True
        # Nothing stands before the first token, so nothing can predict it.
        mask[:1] = False
        if not mask.any():
            raise Rejected("no_target", "no token of this conversation is a target")
        return Example(ids=encoded.ids, loss_mask=mask, content_hash=content_hash)

    def _with_terminators(self, spans: Int64Array, encoded: Encoded) -> Int64Array:
        """Each span stretched to the end of its turn: through the first terminator behind it, with what the model writes before that (tool calls)."""
        ends = np.flatnonzero(np.isin(encoded.ids, self.stop_ids))
        stretched = spans.copy()
        for turn, (_, end) in enumerate(spans):
            behind = ends[np.searchsorted(ends, end) :]
            limit = spans[turn + 1][0] if turn + 1 < len(spans) else len(encoded.ids)
            if not len(behind) or behind[0] >= limit:
                raise Rejected(
                    "no_terminator", f"the assistant's turn {turn} is not closed by the token that ends a turn"
                )
            stretched[turn, 1] = behind[0] + 1
        return stretched

    def _refuse_control_tokens(self, messages: Sequence[Message]) -> None:
        for place, message in enumerate(messages):
            # An assistant's <think> and <tool_call> are its own; a turn delimiter in anybody's text would forge a turn.
            pattern = self._special if message["role"] == "assistant" else self._added
            if found := pattern.search(str(message["content"])):
                raise Rejected("control_token", f"message {place} ({message['role']}) spells {found.group()}")

    def _probe(self) -> tuple[int, ...]:
        """Holds the template against a conversation whose targets are known; the ids that end an assistant's turn."""
        messages: list[Message] = []
        for question, answer in zip(_PROBE_USER, _PROBE_ANSWER, strict=True):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        name, mend = (
            f"the chat template of {self._tokenizer.name}",
            "give a template that fits with --chat-template FILE",
        )
        try:
            rendered = self._template.render(messages, tools=None)
        except Rejected as rejected:
            raise UserError(f"{name} cannot render a plain conversation ({rejected.detail})", mend) from None
        encoded = self._tokenizer.encode([rendered.text])[0]
        if not rendered.spans:
            raise UserError(
                f"{name} marks nothing as written by the assistant: there would be nothing to train on", mend
            )
        spans = _token_spans(rendered, encoded)
        added = np.flatnonzero(np.isin(encoded.ids, list(self._tokenizer.added_tokens)))
        stops = []
        for turn, (start, end) in enumerate(spans):
            if self._template.has_generation_tags:
                # Taken as their author set them; they may close behind the terminator, but not before it.
                ending = added[(added >= start) & (added < end)][-1:]
                why = "leaves the token that ends a turn out of its generation tags"
            else:
                limit = spans[turn + 1][0] if turn + 1 < len(spans) else len(encoded.ids)
                ending = added[(added >= end) & (added < limit)][:1]
                why = "does not end the assistant's turns with a token of its own"
            if not len(ending):
                raise UserError(f"{name} {why}: the model would never learn to stop", mend)
            stops.append(int(encoded.ids[ending[0]]))
        self.stop_ids = tuple(sorted(set(stops)))
        example = self._example(rendered, encoded, 0)
        if self._train_on != "all":
            targets = self._tokenizer.decode(example.ids[example.loss_mask].tolist())
            if any(question in targets for question in _PROBE_USER):
                raise UserError(f"{name} counts the user's text as the assistant's", mend)
        bos = self._tokenizer.bos_id
        count = int((encoded.ids == bos).sum()) if bos is not None else 0
        # Where BOS and the end of a turn are one token (GPT-2's way), there is one a turn.
        if count > 1 and bos not in self.stop_ids:
            raise UserError(f"{name} writes {count} BOS tokens into one conversation", mend)
        return self.stop_ids


def _any_of(alternatives: Sequence[str]) -> re.Pattern[str]:
    """Matches the longest of the (escaped) alternatives; matches nothing where there are none."""
    return re.compile("|".join(sorted(alternatives, key=len, reverse=True)) or r"(?!)")


def _content_hash(messages: Sequence[Message]) -> int:
    return xxhash.xxh3_64_intdigest(
        json.dumps([(message["role"], message["content"]) for message in messages]).encode()
    )


def _tools(tools: object) -> Json:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError as error:
            raise Rejected("bad_message", f"tools is text, but not JSON: {error.msg}") from None
    if not tools:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_message", "tools is not a list")
    return tools


def _token_spans(rendered: Rendered, encoded: Encoded) -> Int64Array:
    """Spans of characters → spans of tokens, int64 [spans, 2]: the tokens that lie wholly inside.

    A token that begins before the span holds text that the model is given, not text that it writes, so it is left out.
    """
    bounds = np.array(rendered.spans, dtype=np.int64).reshape(-1, 2)
    if encoded.unit == "byte" and not rendered.text.isascii():
        bounds = np.array(
            [[len(rendered.text[:at].encode()) for at in span] for span in rendered.spans], dtype=np.int64
        ).reshape(-1, 2)
    first = np.searchsorted(encoded.starts, bounds[:, 0], side="left")
    last = np.searchsorted(encoded.ends, bounds[:, 1], side="right")
    return np.stack([first, np.maximum(first, last)], axis=1)
