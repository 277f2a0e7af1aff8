"""From a row to an example: text rendered once, encoded once, targets found by where the text lies.

What is a target (`--train-on assistant`): the text the assistant wrote and the token that ends its turn. Not a target: role headers, the newline
behind a turn, whatever the template writes by itself (an empty think block, say), and everything that others say.

    renderer = Renderer(tokenizer, ChatTemplate(...), Policies())
    example = renderer.examples([{"messages": [...]}])[0]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from packer.answers import says_nothing
from packer.controls import Controls
from packer.conversation import Conversation, PlainText, Rejected
from packer.encoders import Flat
from packer.formats import Layout, canonical
from packer.forms import Forms
from packer.marks import render
from packer.probe import Probe, probe
from packer.spans import TokenSpans, spans_of, token_spans
from packer.template import ChatTemplate
from packer.thoughts import way_with_thoughts, with_thoughts
from packer.tokenizer import Tokenizer
from packer.turns import Rendered, Turn
from packer.types import BoolArray, Float32Array, Int32Array, Int64Array
from packer.words import Policy, TrainOn


@dataclass(frozen=True, kw_only=True, slots=True)
class Policies:
    """What is read from a row, what is trained on, and what becomes of text that spells a control token."""

    layout: Layout = field(default_factory=Layout)
    train_on: TrainOn = "assistant"
    control_tokens: Policy = "split"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One conversation as tokens.

    ids int32 [n]. loss_mask bool [n]: true where the token is a target, never on the first. turn_ends int32 [turns]: where the conversation may be
    cut, behind the token that ends an assistant's turn. content_hash: 64 bits of what was said and by whom, whatever the tokenizer and template.
    control_tokens: (role, token) → how often the text spelled it. notes: (kind, detail) → count, for the ledger. loss_weights float32 [n]: of each
    target; None where all are 1.
    """

    ids: Int32Array
    loss_mask: BoolArray
    turn_ends: Int32Array
    content_hash: int
    control_tokens: Counter[tuple[str, str]]
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)
    loss_weights: Float32Array | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ready:
    """A row that has been rendered and waits for its tokens."""

    place: int
    rendered: Rendered
    is_chat: bool
    content_hash: int
    control_tokens: Counter[tuple[str, str]]
    notes: Counter[tuple[str, str]]


class Renderer:
    """Renders rows with one template and one tokenizer.

    Making one renders a probe conversation and raises UserError where its targets are not what they must be: none at all, the turn's end not
    among them, the user's text among them, more than one BOS.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, policies: Policies) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._policies = policies
        self._probe: Probe = probe(tokenizer, template)
        self._way_with_thoughts = way_with_thoughts(template)
        self._controls = Controls(tokenizer.added_tokens.values(), delimiters=self._probe.delimiters)
        self._forms = Forms(template, prompt=self._probe.facts.prompt)
        self.method = "generation tags" if template.has_generation_tags else "marks"
        self.stop_ids = self._probe.stop_ids

    def examples(self, rows: Sequence[object]) -> list[Example | Rejected]:
        """Each row's example, or why there is none, in order."""
        outcomes: dict[int, Example | Rejected] = {}
        ready: list[_Ready] = []
        for place, row in enumerate(rows):
            try:
                ready.append(self._ready(place, canonical(row, self._policies.layout)))
            except Rejected as rejected:
                outcomes[place] = rejected
            except RecursionError:
                outcomes[place] = Rejected("bad_message", "nested too deeply")
        fast = [item for item in ready if not item.rendered.literal]
        texts = [item.rendered.text for item in fast]
        flat = self._tokenizer.encode(texts)
        spans = token_spans(self._tokenizer, texts, [item.rendered.turns for item in fast], flat)
        outcomes.update(zip((item.place for item in fast), self._examples(fast, flat, spans), strict=True))
        for item in ready:
            if item.rendered.literal:
                outcomes[item.place] = self._literal_example(item)
        return [outcomes[place] for place in range(len(rows))]

    def _ready(self, place: int, conversation: Conversation | PlainText) -> _Ready:
        if isinstance(conversation, PlainText):
            said = json.dumps([conversation.prompt, conversation.completion])
            rendered, spelled = self._plain(conversation)
        else:
            # Before anything is done for the template's sake: equal conversations have equal hashes under any.
            said = _said(conversation)
            conversation = with_thoughts(conversation, self._way_with_thoughts)
            spelled = [] if self._policies.control_tokens == "keep" else self._controls.found(conversation)
            if spelled and self._policies.control_tokens == "reject":
                role, token = spelled[0]
                raise Rejected("control_token", f"the text of {role} spells {token}")
            # Where there is a form, all that is printed has been looked through: the texts by `canonical`, the rest when the form was made.
            found = None if spelled else self._forms.rendered(conversation)
            rendered = found or self._marked(conversation, literal=bool(spelled))
        return _Ready(
            place=place,
            rendered=rendered,
            is_chat=isinstance(conversation, Conversation),
            content_hash=xxhash.xxh3_64_intdigest(said.encode()),
            control_tokens=Counter(spelled),
            notes=Counter(conversation.notes),
        )

    def _marked(self, conversation: Conversation, *, literal: bool) -> Rendered:
        rendered = render(
            self._template, conversation, facts=self._probe.facts, literal=self._controls.wrap if literal else None
        )
        try:
            # Surrogates can hide where no check of ours looks: in an argument of a tool, say.
            rendered.text.encode()
        except UnicodeEncodeError as error:
            raise Rejected(
                "bad_content", f"half a surrogate pair at character {error.start} of the rendered text"
            ) from None
        return rendered

    def _plain(self, text: PlainText) -> tuple[Rendered, list[tuple[str, str]]]:
        """Prompt, completion and one EOS, and the control tokens that they spell; the completion and the EOS are trained on."""
        eos = self._tokenizer.eos_text
        if eos is None:
            raise Rejected("no_terminator", "the tokenizer has no EOS token to close the text with")
        completion = text.completion.removesuffix(eos)
        if self._policies.layout.empty_answers != "keep" and says_nothing(completion):
            raise Rejected("empty_answer", "the completion is empty but for the token that ends it")
        literal: list[tuple[int, int]] = []
        spelled: list[tuple[str, str]] = []
        if self._policies.control_tokens != "keep":
            # A prompt is somebody's words; a completion is the model's own, thoughts and calls included.
            for part, role, shift in ((text.prompt, "prompt", 0), (completion, "assistant", len(text.prompt))):
                for start, end in self._controls.places(part, role):
                    literal.append((shift + start, shift + end))
                    spelled.append(("completion" if shift else role, part[start:end]))
        if spelled and self._policies.control_tokens == "reject":
            raise Rejected("control_token", f"the {spelled[0][0]} spells {spelled[0][1]}")
        whole = text.prompt + completion + eos
        turn = Turn(start=len(text.prompt), end=len(whole))
        return Rendered(text=whole, turns=(turn,), literal=tuple(literal)), spelled

    def _literal_example(self, item: _Ready) -> Example | Rejected:
        """The example of a text in which some control tokens are only spelled: rare, so one at a time."""
        encoded = self._tokenizer.encode_literally(item.rendered.text, item.rendered.literal)
        if encoded is None:
            role, token = next(iter(item.control_tokens), ("the text", "a control token"))
            return Rejected("control_token", f"{role} spells {token}, which this tokenizer cannot encode as text")
        places = spans_of(encoded, item.rendered.turns)
        flat = Flat(ids=encoded.ids, offsets=np.array([0, len(encoded.ids)]))
        spans = TokenSpans(text=np.zeros(len(places), dtype=np.int64), first=places[:, 0], last=places[:, 1])
        return self._examples([item], flat, spans)[0]

    def _examples(self, items: Sequence[_Ready], flat: Flat, spans: TokenSpans) -> list[Example | Rejected]:
        """The examples of some encoded texts, masks made for all of them at once."""
        starts, ends = flat.offsets[:-1], flat.offsets[1:]
        last, unclosed = spans.last, np.zeros(len(spans.last), dtype=bool)
        if not self._template.has_generation_tags:
            last, unclosed = self._with_terminators(items, flat, spans)
        chosen = np.ones(len(last), dtype=bool)
        if self._policies.train_on == "last":
            chosen[:-1] = spans.text[1:] != spans.text[:-1]
        places = len(flat.ids) + 1
        edges = np.bincount(spans.first[chosen], minlength=places) - np.bincount(last[chosen], minlength=places)
        mask = np.cumsum(edges[:-1]) > 0
        if self._policies.train_on == "all":
            mask[:] = True
        # Nothing stands before the first token, so nothing can predict it.
        mask[starts[starts < ends]] = False
        turns_of = np.searchsorted(spans.text, np.arange(len(items) + 1))
        outcomes: list[Example | Rejected] = []
        for number, item in enumerate(items):
            start, end = int(starts[number]), int(ends[number])
            mine = slice(int(turns_of[number]), int(turns_of[number + 1]))
            if unclosed[mine].any():
                turn = int(unclosed[mine].argmax())
                outcomes.append(
                    Rejected(
                        "no_terminator", f"the assistant's turn {turn} is not closed by the token that ends a turn"
                    )
                )
            elif not mask[start:end].any():
                outcomes.append(Rejected("no_target", "no token of this conversation is a target"))
            else:
                outcomes.append(
                    Example(
                        ids=flat.ids[start:end],
                        loss_mask=mask[start:end],
                        turn_ends=(last[mine] - start).astype(np.int32),
                        content_hash=item.content_hash,
                        control_tokens=item.control_tokens,
                        notes=item.notes,
                    )
                )
        return outcomes

    def _with_terminators(self, items: Sequence[_Ready], flat: Flat, spans: TokenSpans) -> tuple[Int64Array, BoolArray]:
        """Each turn stretched through the first terminator behind it, with what the model writes before that (tool calls); and which have none.

        Plain text closes itself and is left as it is.
        """
        stops = np.append(np.flatnonzero(np.isin(flat.ids, self.stop_ids)), len(flat.ids))
        closing = stops[np.searchsorted(stops, spans.last)]
        # The next turn of the same text, or the text's end, is as far as a turn can reach.
        limit = flat.offsets[1:][spans.text] if len(spans.text) else np.zeros(0, dtype=np.int64)
        same = spans.text[1:] == spans.text[:-1]
        limit[:-1] = np.where(same, spans.first[1:], limit[:-1])
        chat = (
            np.array([item.is_chat for item in items], dtype=bool)[spans.text]
            if len(items)
            else np.zeros(0, dtype=bool)
        )
        unclosed = chat & (closing >= limit)
        return np.where(chat & ~unclosed, closing + 1, spans.last), unclosed


def _said(conversation: Conversation) -> str:
    """Who said what, as `json.dumps` writes a list of [role, content]; by its parts, which is twice as fast."""
    quoted = json.encoder.encode_basestring_ascii
    return "[" + ", ".join([f'["{m["role"]}", {quoted(str(m["content"]))}]' for m in conversation.messages]) + "]"
