"""What a template does, learnt from a conversation whose targets are known; a template that cannot be trained with stops the build here.

facts = probe(tokenizer, template)
facts.ends.stop_ids      # the tokens that end an assistant's turn
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from packer.chat.turn_end import TurnEnds, find_turn_ends
from packer.chat.turn_start import before_tag, common_length, empty_block
from packer.conversation import Conversation, Message, Rejected
from packer.errors import UserError
from packer.marks import render
from packer.spans import spans_of
from packer.template import ChatTemplate
from packer.tokenizer import Encoded, Tokenizer
from packer.turns import ANY, LITERAL_OPEN, Facts, Rendered

_USER = ("What is the tallest tree?", "And the widest?")
# Longer than any header: text that a person should know of.
_MOST_HEADER = 60
_ANSWER = ("The coast redwood.", "A Montezuma cypress.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """ends: the tokens that end an assistant's turn. delimiters: texts of the control tokens that the template writes, with BOS and EOS, but for those of
    reasoning. facts: what else marking needs to know.
    written_first: what the template writes before the first message, less control tokens.
    """

    ends: TurnEnds
    written_first: str
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
    prompt, block = _generation_prompt(template)
    ends = find_turn_ends(tokenizer, template, prompt=prompt, name=name, hint=mend)
    if template.has_generation_tags:
        ends = _tagged_ends(tokenizer, rendered, encoded, ends, name, mend)
    bos = encoded.ids == tokenizer.bos_id if tokenizer.bos_id is not None else np.zeros(0, dtype=bool)
    # One before each exchange is how Llama 2 and Mistral were trained; one after another comes of a template that is given text with BOS.
    if tokenizer.bos_id not in ends.stop_ids and (bos.sum() > len(_USER) or (bos[1:] & bos[:-1]).any()):
        raise UserError(f"{name} writes {bos.sum()} BOS tokens into one conversation", mend)
    facts = Facts(
        closers=ends.closers,
        prompt=prompt or _header(rendered, ends.closers),
        appended=ends.appended,
        appended_to_call=ends.appended_to_call,
        block=block,
    )
    first = rendered.text[: rendered.text.find(_USER[0])]
    for text in sorted(tokenizer.added_tokens.values(), key=len, reverse=True) if len(first) > _MOST_HEADER else ():
        first = first.replace(text, " ")
    return Probe(
        ends=ends,
        written_first=" ".join(first.split()) if len(first) > _MOST_HEADER else "",
        delimiters=_delimiters(tokenizer, encoded, ends.closers),
        facts=facts,
    )


def _tagged_ends(
    tokenizer: Tokenizer, rendered: Rendered, encoded: Encoded, ends: TurnEnds, name: str, mend: str
) -> TurnEnds:
    """The ends of turns whose extent the template's author has set: one of the closers must lie in each, and nothing is appended."""
    spans = spans_of(tokenizer, encoded, rendered.turns)
    closer_ids = {tokenizer.token_id(text) for text in ends.closers}
    for answer in _ANSWER:
        turn = next(n for n, one in enumerate(rendered.turns) if answer in rendered.text[one.start : one.end])
        if not closer_ids & set(encoded.ids[spans.first[turn] : spans.last[turn]].tolist()):
            raise UserError(
                f"{name} leaves the token that ends a turn out of its generation tags: the model would never learn to stop",
                mend,
            )
    return replace(ends, appended="")


def _delimiters(tokenizer: Tokenizer, encoded: Encoded, closers: Sequence[str]) -> frozenset[str]:
    """The control tokens that the template wrote, with BOS and EOS; reasoning and tool calls are an assistant's own to write."""
    ids = {int(i) for i in encoded.ids if int(i) in tokenizer.added_tokens} | {tokenizer.bos_id, tokenizer.eos_id}
    texts = {tokenizer.added_tokens[i] for i in ids if i in tokenizer.added_tokens} | set(closers)
    return frozenset(text for text in texts if text.strip(" \t\n\r\u2581") and not _is_reasoning(text))


def _header(rendered: Rendered, closers: Sequence[str]) -> str:
    """What stands between a question, with the token that ends it, and its answer; empty where the questions' differ."""
    headers = set()
    for question, turn in zip(_USER, rendered.turns, strict=False):
        before = rendered.text[: turn.start]
        asked = before.rfind(question) + len(question)
        ends = [found + len(closer) for closer in closers if (found := before.rfind(closer, asked)) >= 0]
        headers.add(before[max(ends, default=asked) :].lstrip())
    return headers.pop() if len(headers) == 1 else ""


def _generation_prompt(template: ChatTemplate) -> tuple[str, str]:
    """What the template appends to a question for a model to go on from, and the empty reasoning block that it writes behind it before an answer.

    Empty where it appends nothing, or changes more.
    """
    question, answer = messages()[:2]
    try:
        asked, prompted, said = (
            template.run([question], tools=None),
            template.run([question], tools=None, add_generation_prompt=True),
            template.run([question, {**answer, "content": LITERAL_OPEN + _ANSWER[0]}], tools=None),
        )
    except Rejected:
        return "", ""
    text, content = ANY.sub("", said), len(ANY.sub("", said.partition(LITERAL_OPEN)[0]))
    common = before_tag(text, prompted, min(common_length(prompted, text), content))
    block = text[common : common + empty_block(text[:common], text[common:content], "")]
    return prompted[len(asked) :] if prompted.startswith(asked) else "", block


def _is_reasoning(token: str) -> bool:
    return any(word in token.lower() for word in ("think", "reason", "tool"))
