"""What a template does, learnt from a conversation whose targets are known; a template that cannot be trained with stops the build here.

facts = probe(tokenizer, template)
facts.stop_ids           # the tokens that end an assistant's turn
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.conversation import Conversation, Message, Rejected
from packer.errors import UserError
from packer.marks import render
from packer.spans import spans_of
from packer.template import ChatTemplate
from packer.tokenizer import Encoded, Tokenizer
from packer.turns import Facts, Rendered

_USER = ("What is the tallest tree?", "And the widest?")
_ANSWER = ("The coast redwood.", "A Montezuma cypress.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """stop_ids: the ids that end an assistant's turn. delimiters: texts of the control tokens that the template writes, with BOS and EOS, but for
    those of reasoning. facts: what else marking needs to know.
    """

    stop_ids: tuple[int, ...]
    delimiters: frozenset[str]
    facts: Facts


def messages() -> list[Message]:
    """The probe conversation: two questions and two answers."""
    said: list[Message] = []
    for question, answer in zip(_USER, _ANSWER, strict=True):
        said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return said


def probe(tokenizer: Tokenizer, template: ChatTemplate) -> Probe:
    """Renders two questions and two answers; raises UserError where nothing is a target, a turn's end is none, the user's text is one, or there is
    more than one BOS.
    """
    name, mend = f"the chat template of {tokenizer.name}", "give a template that fits with --chat-template FILE"
    try:
        rendered = render(template, Conversation(messages=tuple(messages())), facts=Facts(), literal=None)
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
    stops = [tokenizer.added_tokens[i] for i in stop_ids]
    facts = Facts(headers=_headers(rendered, stops), stops=stops, prompt=_generation_prompt(template))
    return Probe(stop_ids=stop_ids, delimiters=_delimiters(tokenizer, encoded), facts=facts)


def _stop_ids(
    tokenizer: Tokenizer, template: ChatTemplate, rendered: Rendered, encoded: Encoded, name: str, mend: str
) -> tuple[int, ...]:
    spans = spans_of(encoded, rendered.turns)
    added = np.flatnonzero(np.isin(encoded.ids, list(tokenizer.added_tokens)))
    runs: list[list[int]] = []
    for answer in _ANSWER:
        turn = next(n for n, one in enumerate(rendered.turns) if answer in rendered.text[one.start : one.end])
        start, end = spans[turn]
        next_start = spans[turn + 1][0] if turn + 1 < len(spans) else len(encoded.ids)
        asked = rendered.text.find(_USER[1], rendered.turns[turn].end)
        if asked >= 0:
            # A token behind the next question ends the question.
            next_start = min(next_start, int(np.searchsorted(encoded.starts, asked, side="left")))
        if template.has_generation_tags:
            # Taken as their author set them: the terminator may stand in the block, or in a block of its own right behind it.
            limit = spans[turn + 1][1] if turn + 1 < len(spans) and next_start == end else end
            ending = added[(added >= start) & (added < limit)][-1:]
            why = "leaves the token that ends a turn out of its generation tags"
        else:
            ending = added[(added >= end) & (added < next_start)]
            # Those that stand side by side, from the first on.
            ending = ending[: 1 + np.flatnonzero(np.diff(ending, append=np.iinfo(np.int64).max) > 1)[:1].sum()]
            why = "does not end the assistant's turns with a token of its own"
        if not len(ending):
            raise UserError(f"{name} {why}: the model would never learn to stop", mend)
        runs.append(encoded.ids[ending].tolist())
    # A turn may end with several tokens (END_RESPONSE, END_OF_TURN); what opens the next turn follows only the first answer.
    first, last = runs
    common = 0
    while common < min(len(first), len(last)) and first[common] == last[common]:
        common += 1
    return (first[common - 1],) if common else tuple(sorted({first[0], last[0]}))


def _delimiters(tokenizer: Tokenizer, encoded: Encoded) -> frozenset[str]:
    """The control tokens that the template wrote, with BOS and EOS; reasoning and tool calls are an assistant's own to write."""
    ids = {int(i) for i in encoded.ids if int(i) in tokenizer.added_tokens} | {tokenizer.bos_id, tokenizer.eos_id}
    texts = {tokenizer.added_tokens[i] for i in ids if i in tokenizer.added_tokens}
    return frozenset(text for text in texts if not _is_reasoning(text))


def _headers(rendered: Rendered, stops: list[str]) -> tuple[str, ...]:
    """What stands between each question, with the token that ends it, and its answer."""
    headers = set()
    for question, turn in zip(_USER, rendered.turns, strict=False):
        before = rendered.text[: turn.start]
        asked = before.rfind(question)
        if asked >= 0:
            asked += len(question)
            ends = [found + len(stop) for stop in stops if (found := before.rfind(stop, asked)) >= 0]
            headers.add(before[max(ends, default=asked) :].lstrip())
    return tuple(sorted(headers - {""}, key=len, reverse=True))


def _generation_prompt(template: ChatTemplate) -> str:
    """What the template appends to a question for a model to go on from; empty where it appends nothing, or changes more."""
    question: list[Message] = [{"role": "user", "content": _USER[0]}]
    try:
        asked, prompted = (
            template.run(question, tools=None),
            template.run(question, tools=None, add_generation_prompt=True),
        )
    except Rejected:
        return ""
    return prompted[len(asked) :] if prompted.startswith(asked) else ""


def _is_reasoning(token: str) -> bool:
    return any(word in token.lower() for word in ("think", "reason", "tool"))
