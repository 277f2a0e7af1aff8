"""What a template does, learnt from a conversation whose targets are known; a template that cannot be trained with stops the build here.

facts = probe(tokenizer, template)
facts.stop_ids           # the tokens that end an assistant's turn
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.conversation import Conversation, Message, Rejected
from packer.errors import UserError
from packer.marks import Rendered, render
from packer.spans import spans_of
from packer.template import ChatTemplate
from packer.tokenizer import Encoded, Tokenizer

_USER = ("What is the tallest tree?", "And the widest?")
_ANSWER = ("The coast redwood.", "A Montezuma cypress.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """stop_ids: the ids that end an assistant's turn. delimiters: texts of the control tokens that the template writes, with BOS and EOS, but for
    those of reasoning. headers: what stands between a turn's last delimiter and the assistant's text.
    """

    stop_ids: tuple[int, ...]
    delimiters: frozenset[str]
    headers: tuple[str, ...]


def probe(tokenizer: Tokenizer, template: ChatTemplate) -> Probe:
    """Renders two questions and two answers; raises UserError where nothing is a target, a turn's end is none, the user's text is one, or there is
    more than one BOS.
    """
    name, mend = f"the chat template of {tokenizer.name}", "give a template that fits with --chat-template FILE"
    messages: list[Message] = []
    for question, answer in zip(_USER, _ANSWER, strict=True):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    try:
        rendered = render(template, Conversation(messages=tuple(messages)), headers=(), literal=None)
    except Rejected as rejected:
        raise UserError(f"{name} cannot render a plain conversation ({rejected.detail})", mend) from None
    if not rendered.turns:
        raise UserError(f"{name} marks nothing as written by the assistant: there would be nothing to train on", mend)
    encoded = tokenizer.place(rendered.text)
    written = [rendered.text[turn.start : turn.end] for turn in rendered.turns]
    if any(question in text for text in written for question in _USER):
        raise UserError(f"{name} counts the user's text as the assistant's", mend)
    if not all(any(answer in text for text in written) for answer in _ANSWER):
        raise UserError(f"{name} does not count the assistant's text as its own", mend)
    stop_ids = _stop_ids(tokenizer, template, rendered, encoded, name, mend)
    count = int((encoded.ids == tokenizer.bos_id).sum()) if tokenizer.bos_id is not None else 0
    # Where BOS and the end of a turn are one token (GPT-2's way), there is one a turn.
    if count > 1 and tokenizer.bos_id not in stop_ids:
        raise UserError(f"{name} writes {count} BOS tokens into one conversation", mend)
    return Probe(stop_ids=stop_ids, delimiters=_delimiters(tokenizer, encoded), headers=_headers(tokenizer, rendered))


def _stop_ids(
    tokenizer: Tokenizer, template: ChatTemplate, rendered: Rendered, encoded: Encoded, name: str, mend: str
) -> tuple[int, ...]:
    spans = spans_of(encoded, rendered.turns)
    added = np.flatnonzero(np.isin(encoded.ids, list(tokenizer.added_tokens)))
    stops: list[int] = []
    for answer in _ANSWER:
        turn = next(n for n, one in enumerate(rendered.turns) if answer in rendered.text[one.start : one.end])
        start, end = spans[turn]
        next_start = spans[turn + 1][0] if turn + 1 < len(spans) else len(encoded.ids)
        if template.has_generation_tags:
            # Taken as their author set them: the terminator may stand in the block, or in a block of its own right behind it.
            limit = spans[turn + 1][1] if turn + 1 < len(spans) and next_start == end else end
            inside = added[(added >= start) & (added < limit)]
            ending = inside[-1:]
            why = "leaves the token that ends a turn out of its generation tags"
        else:
            ending = added[(added >= end) & (added < next_start)][:1]
            why = "does not end the assistant's turns with a token of its own"
        if not len(ending):
            raise UserError(f"{name} {why}: the model would never learn to stop", mend)
        stops.append(int(encoded.ids[ending[0]]))
    return tuple(sorted(set(stops)))


def _delimiters(tokenizer: Tokenizer, encoded: Encoded) -> frozenset[str]:
    """The control tokens that the template wrote, with BOS and EOS; reasoning and tool calls are an assistant's own to write."""
    ids = {int(i) for i in encoded.ids if int(i) in tokenizer.added_tokens} | {tokenizer.bos_id, tokenizer.eos_id}
    texts = {tokenizer.added_tokens[i] for i in ids if i in tokenizer.added_tokens}
    return frozenset(text for text in texts if not _is_reasoning(text))


def _headers(tokenizer: Tokenizer, rendered: Rendered) -> tuple[str, ...]:
    """What stands before each answer, from the delimiter that opens its turn on."""
    headers = []
    for turn in rendered.turns:
        before = rendered.text[: turn.start]
        opened = max(
            (before.rfind(token) for token in tokenizer.added_tokens.values() if not _is_reasoning(token)), default=-1
        )
        if opened >= 0:
            headers.append(before[opened:])
    return tuple(sorted(set(headers), key=len, reverse=True))


def _is_reasoning(token: str) -> bool:
    return any(word in token.lower() for word in ("think", "reason", "tool"))
