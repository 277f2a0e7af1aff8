"""From a row to an example: text rendered once, encoded once, targets found by where the text lies.

example = Renderer(tokenizer, ChatTemplate(...), Policies()).examples([{"messages": [...]}])[0]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xxhash

from packer.chat.example import Example as Example
from packer.chat.example import Policies as Policies
from packer.chat.plain_text import add_outer_tokens, render_plain
from packer.chat.prepared_template import PreparedTemplate
from packer.chat.reasoning_policy import (
    CHARACTERS,
    EVERY_TURN,
    WHOLE,
    after_last_turn,
    as_inference_sees,
    one_per_turn,
    without_reasoning,
)
from packer.chat.rendered_row import RenderedRow, said
from packer.chat.targets import cut_points, through_closers, token_weights
from packer.chat.unprinted import NOT_PRINTED, count_left_out
from packer.conversation import Conversation, PlainText, Rejected
from packer.encoders import Flat
from packer.formats import canonical
from packer.marks import render
from packer.sources.groups import group_of, with_group
from packer.sources.message_weights import UNTRAINED
from packer.sources.tool_call_forms import with_text_arguments
from packer.spans import TokenSpans, spans_of, token_spans
from packer.template import ChatTemplate
from packer.thoughts import with_thoughts
from packer.tokenizer import Tokenizer
from packer.turns import Rendered, Unprinted


class Renderer:
    """Renders rows with one template and one tokenizer.

    with_tools: the template for rows that have tools, where the tokenizer has one of its own for them. Making one renders a probe conversation and raises
    UserError where its targets are not what they must be: none at all, the turn's end not among them, the user's text among them, more than one BOS.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        policies: Policies,
        *,
        with_tools: ChatTemplate | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._policies = policies
        self._bundle = PreparedTemplate(tokenizer, template)
        self._tool_bundle = self._bundle if with_tools is None else PreparedTemplate(tokenizer, with_tools)
        self.method = "generation tags" if template.has_generation_tags else "marks"
        bundles = (self._bundle, self._tool_bundle)
        self.stop_ids = tuple(dict.fromkeys(i for bundle in bundles for i in bundle.probe.ends.stop_ids))
        # Text of the template's own, such as a system message or a reasoning effort, that every conversation gets.
        self.written_first = self._bundle.probe.written_first
        self.remarks = tuple(dict.fromkeys(line for bundle in bundles for line in bundle.probe.ends.remarks))

    def examples(self, rows: Sequence[object]) -> list[Example | Rejected]:
        """Each row's example, or why there is none, in order; of a row that becomes several, the first."""
        return [outcome if isinstance(outcome, Rejected) else outcome[0] for outcome in self.all_examples(rows)]

    def all_examples(self, rows: Sequence[object]) -> list[tuple[Example, ...] | Rejected]:
        """Each row's examples in order, one unless every turn becomes one of its own, or why there are none."""
        rejected: dict[int, Rejected] = {}
        ready: list[RenderedRow] = []
        groups: dict[int, str | None] = {}
        layout = self._policies.layout
        for place, row in enumerate(rows):
            try:
                conversation = canonical(row, layout)
                if layout.group_by is not None:
                    groups[place] = group_of(row, conversation, layout.group_by)
                ready += self._ready(place, conversation)
            except Rejected as verdict:
                rejected[place] = verdict
            except RecursionError:
                rejected[place] = Rejected("bad_message", "nested too deeply")
        fast = [item for item in ready if not item.rendered.literal]
        made: dict[int, Example | Rejected] = {}
        for items in ([one for one in fast if one.bundle], [one for one in fast if not one.bundle]):
            texts = [item.rendered.text for item in items]
            flat = self._tokenizer.encode(texts)
            spans = token_spans(self._tokenizer, texts, [item.rendered.turns for item in items], flat)
            made.update(zip(map(id, items), self._examples(items, flat, spans), strict=True))
        count_left_out(self._tokenizer, [(item.notes, what, one) for item in ready for what, one in item.left_out])
        outcomes: list[tuple[Example, ...] | Rejected] = [rejected.get(place, ()) for place in range(len(rows))]
        for item in ready:
            example = made[id(item)] if id(item) in made else self._literal_example(item)
            before = outcomes[item.row]
            if not isinstance(before, Rejected):
                outcomes[item.row] = example if isinstance(example, Rejected) else (*before, example)
        if layout.group_by is not None:
            return [
                one if isinstance(one, Rejected) else with_group(one, groups[place], layout.group_by)
                for place, one in enumerate(outcomes)
            ]
        return outcomes

    def _ready(self, row: int, conversation: Conversation | PlainText) -> list[RenderedRow]:
        """What is to be encoded of a row: its text, or one text per assistant turn."""
        if isinstance(conversation, PlainText):
            plain = render_plain(
                conversation,
                self._tokenizer,
                self._bundle.controls,
                policy=self._policies.control_tokens,
                empty_answers=self._policies.layout.empty_answers,
            )
            return [
                RenderedRow(
                    row=row,
                    rendered=plain.rendered,
                    bundle=None,
                    content_hash=xxhash.xxh3_64_intdigest(
                        json.dumps([conversation.prompt, conversation.completion]).encode()
                    ),
                    control_tokens=Counter(plain.spelled),
                    notes=Counter((*conversation.notes, *plain.notes)),
                )
            ]
        # Before anything is done for the template's sake: equal conversations have equal hashes under any.
        content_hash = xxhash.xxh3_64_intdigest(said(conversation).encode())
        bundle = self._tool_bundle if conversation.tools is not None else self._bundle
        if conversation.template_args:
            bundle.template.check_args(conversation.template_args)
        notes = Counter(conversation.notes)
        notes.update(bundle.unread_keys(conversation.messages))
        if self._policies.train_on == "all":
            for kind, detail in conversation.notes:
                if kind == UNTRAINED:
                    raise Rejected(
                        "bad_weight", f"{detail}: --train-on all trains on every message; leave it out, or the key"
                    )
            # A prompt is trained on as well.
            conversation = replace(conversation, first_target=0)
        given, conversation = conversation, with_thoughts(conversation, bundle.way_with_thoughts)
        if moved := sum(a is not b for a, b in zip(given.messages, conversation.messages, strict=True)):
            notes["reasoning in the text moved to a field of its own", "messages"] += moved
        left_out: list[tuple[str, Unprinted]] = []
        if self._policies.reasoning == "strip":
            conversation, removed = without_reasoning(conversation)
            left_out += [("removed", one) for one in removed]
        spelled = [] if self._policies.control_tokens == "keep" else bundle.controls.found(conversation)
        if spelled and self._policies.control_tokens == "reject":
            role, token = spelled[0]
            raise Rejected("control_token", f"the text of {role} spells {token}")
        turns = [conversation]
        if self._policies.reasoning == "every-turn":
            turns = one_per_turn(conversation, last_only=self._policies.train_on == "last")
            left_out += [("after the last turn trained on", one) for one in after_last_turn(conversation, turns)]
        ready: list[RenderedRow] = []
        for turn in turns:
            rendered = self._rendered(bundle, turn, literal=bool(spelled))
            if self._policies.reasoning == "every-turn":
                rendered = as_inference_sees(bundle.template, turn, rendered, prompt=bundle.probe.facts.prompt)
            # A turn's reasoning that later texts lack has been printed where the turn was the last.
            mine = [one for one in rendered.unprinted if len(turns) == 1 or one.place == len(turn.messages) - 1]
            if turn is turns[-1] and len(turns) > 1:
                roles = [None if one.place < 0 else turn.messages[one.place]["role"] for one in rendered.unprinted]
                mine += [one for one, role in zip(rendered.unprinted, roles, strict=True) if role != "assistant"]
            left_out += [(NOT_PRINTED, one) for one in mine]
            first = not ready
            ready.append(
                RenderedRow(
                    row=row,
                    rendered=rendered,
                    bundle=bundle,
                    content_hash=content_hash,
                    control_tokens=Counter(spelled if first else ()),
                    notes=notes if first else Counter(),
                    left_out=tuple(left_out),
                )
            )
            left_out = []
        if self._policies.reasoning == "every-turn":
            sizes = [len(item.rendered.text) for item in ready]
            notes[CHARACTERS, EVERY_TURN], notes[CHARACTERS, WHOLE] = sum(sizes), sizes[-1]
        return ready

    def _rendered(self, bundle: PreparedTemplate, conversation: Conversation, *, literal: bool) -> Rendered:
        train_reasoning = self._policies.reasoning != "context"
        # Where there is a form, all that is printed has been looked through: the texts by `canonical`, the rest when the form was made.
        found = None if literal or not train_reasoning else bundle.forms.rendered(conversation)
        if found is not None:
            return found
        try:
            rendered = self._marked(bundle, conversation, literal=literal, train_reasoning=train_reasoning)
        except Rejected as rejected:
            if rejected.reason != "template_refused" or not any("tool_calls" in one for one in conversation.messages):
                raise
            # Some templates want the arguments of a call as the JSON text that OpenAI's wire format has.
            as_text = replace(conversation, messages=with_text_arguments(conversation.messages))
            try:
                rendered = self._marked(bundle, as_text, literal=literal, train_reasoning=train_reasoning)
            except Rejected:
                raise rejected from None
        try:
            # Surrogates can hide where no check of ours looks: in an argument of a tool, say.
            rendered.text.encode()
        except UnicodeEncodeError as error:
            raise Rejected(
                "bad_content", f"half a surrogate pair at character {error.start} of the rendered text"
            ) from None
        return rendered

    @staticmethod
    def _marked(
        bundle: PreparedTemplate, conversation: Conversation, *, literal: bool, train_reasoning: bool
    ) -> Rendered:
        return render(
            bundle.template,
            conversation,
            facts=bundle.probe.facts,
            literal=bundle.controls.wrap if literal else None,
            train_reasoning=train_reasoning,
        )

    def _literal_example(self, item: RenderedRow) -> Example | Rejected:
        """The example of a text in which some control tokens are only spelled: rare, so one at a time."""
        encoded = self._tokenizer.encode_literally(item.rendered.text, item.rendered.literal)
        if encoded is None:
            role, token = next(iter(item.control_tokens), ("the text", "a control token"))
            return Rejected("control_token", f"{role} spells {token}, which this tokenizer cannot encode as text")
        flat = Flat(ids=encoded.ids, offsets=np.array([0, len(encoded.ids)]))
        return self._examples([item], flat, spans_of(self._tokenizer, encoded, item.rendered.turns))[0]

    def _examples(self, items: Sequence[RenderedRow], flat: Flat, spans: TokenSpans) -> list[Example | Rejected]:
        """The examples of some encoded texts, all of chats or none, masks made for all of them at once."""
        if items and items[0].bundle is None:
            flat, spans = add_outer_tokens(flat, spans, self._tokenizer.outer)
        starts, ends = flat.offsets[:-1], flat.offsets[1:]
        weights = np.array([turn.weight for item in items for turn in item.rendered.turns])
        # Plain text closes itself, and turns of generation tags are as their author set them.
        bundles = {id(b): b for item in items if (b := item.bundle) and not b.template.has_generation_tags}
        closers = [
            (np.array([item.bundle is bundle for item in items], dtype=bool), bundle.closer_ids)
            for bundle in bundles.values()
        ]
        last, unclosed = through_closers(flat, spans, closers)
        chosen = weights > 0
        if self._policies.train_on == "last":
            chosen[:-1] &= spans.text[1:] != spans.text[:-1]
        fractional = bool(((weights != 0) & (weights != 1)).any())
        places = len(flat.ids) + 1
        edges = np.bincount(spans.first[chosen], minlength=places) - np.bincount(last[chosen], minlength=places)
        mask = np.cumsum(edges[:-1]) > 0
        if self._policies.train_on == "all":
            without = weights == 0
            edges = np.bincount(spans.first[without], minlength=places) - np.bincount(last[without], minlength=places)
            mask = np.cumsum(edges[:-1]) == 0
        # Nothing stands before the first token, so nothing can predict it.
        mask[starts[starts < ends]] = False
        turns_of = np.searchsorted(spans.text, np.arange(len(items) + 1))
        outcomes: list[Example | Rejected] = []
        for number, item in enumerate(items):
            start, end = int(starts[number]), int(ends[number])
            mine = slice(int(turns_of[number]), int(turns_of[number + 1]))
            if (unclosed[mine] & chosen[mine]).any():
                turn = int((unclosed[mine] & chosen[mine]).argmax())
                outcomes.append(
                    Rejected("no_terminator", f"the assistant's turn {turn} is not closed by a token that ends a turn")
                )
                continue
            if not mask[start:end].any():
                outcomes.append(Rejected("no_target", "no token of this conversation is a target"))
                continue
            if across := int((spans.across[mine] & chosen[mine]).sum()):
                item.notes["tokens across the seam", "prompt and answer"] += across
            outcomes.append(
                Example(
                    ids=flat.ids[start:end],
                    loss_mask=mask[start:end],
                    turn_ends=cut_points(
                        item.rendered, last[mine] - start, length=end - start, is_chat=item.bundle is not None
                    ),
                    content_hash=item.content_hash,
                    control_tokens=item.control_tokens,
                    notes=item.notes,
                    loss_weights=token_weights(
                        mask[start:end], weights[mine], spans.first[mine] - start, last[mine] - start
                    )
                    if fractional
                    else None,
                )
            )
        return outcomes
