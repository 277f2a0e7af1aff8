"""What of a conversation's data the template leaves out of the text, proved by marks and counted in the ledger.

A text is printed where a mark inside it comes through. Assistant turns carry marks anyway; of other messages, tools, and under templates with generation
tags (whose own marks these would be taken for), each is asked by itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from packer.calls import around_text, mark_calls
from packer.conversation import Conversation, Json, Message, Rejected
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer
from packer.turns import CALL, OTHERS, OTHERS_CLOSE, TurnMarks, Unprinted

# The kind of the ledger's notes about it.
NOT_PRINTED = "not printed by the template"
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def reasoning_of(message: Message) -> str:
    """The reasoning that stands in a field of its own; empty where there is none."""
    return next((str(message[key]) for key in REASONING_KEYS if isinstance(message.get(key), str)), "")


def replaced(messages: Sequence[Message], place: int, message: Message) -> list[Message]:
    """The messages with another one at `place`."""
    return [*messages[:place], message, *messages[place + 1 :]]


def refuse_unprinted(template: ChatTemplate, conversation: Conversation, text: str, places: Iterable[int]) -> None:
    """Raise Rejected where the text is the same whatever one of the assistant's messages says."""
    for place in places:
        message = conversation.messages[place]
        content = str(message["content"])
        other: Message = {**message, "content": f"{content}?" if content.strip() else content}
        if calls := mark_calls(message.get("tool_calls"), CALL):
            other["tool_calls"] = calls
        if other != message and _rendered(template, conversation, place, other) == text:
            what = "tool calls" if calls else "text"
            raise Rejected("not_printed", f"message {place}: the template prints nothing of the assistant's {what}")


def unprinted(
    template: ChatTemplate,
    conversation: Conversation,
    turns: Iterable[tuple[int, TurnMarks, str]],
    *,
    others_printed: int,
) -> tuple[Unprinted, ...]:
    """What a template without generation tags leaves out.

    Args:
        turns: Of each assistant message, its place, its marks and its reasoning.
        others_printed: How many of the other messages came through with their marks.
    """
    messages, missing = conversation.messages, []
    for place, marks, reasoning in turns:
        if marks.reasoned < 0 and reasoning.strip():
            # What stands before the tag that opens reasoning is no reasoning.
            kind = "text of assistant" if "<think>" in reasoning else "reasoning"
            missing.append(Unprinted(kind, reasoning, place))
        if marks.answer < 0 and str(messages[place]["content"]).strip():
            missing.append(Unprinted("text of assistant", str(messages[place]["content"]), place))
        missing += _missing_calls(template, conversation, place, printed=marks.calls)
    others = [n for n, m in enumerate(messages) if m["role"] != "assistant" and str(m["content"]).strip()]
    if others_printed < len(others):
        missing += _missing_texts(template, conversation, others)
    return (*missing, *_missing_tools(template, conversation))


def unprinted_under_tags(template: ChatTemplate, conversation: Conversation) -> tuple[Unprinted, ...]:
    """What a template with generation tags leaves out."""
    messages = conversation.messages
    missing = _missing_texts(template, conversation, range(len(messages)))
    for place, message in enumerate(messages):
        reasoning = reasoning_of(message)
        marked: Message = {
            key: around_text(reasoning, OTHERS, OTHERS_CLOSE) if key in REASONING_KEYS else value
            for key, value in message.items()
        }
        if reasoning.strip() and OTHERS not in _rendered(template, conversation, place, marked):
            missing.append(Unprinted("reasoning", reasoning, place))
        missing += _missing_calls(template, conversation, place, printed=0)
    return (*missing, *_missing_tools(template, conversation))


def count_left_out(tokenizer: Tokenizer, left_out: Sequence[tuple[Counter[tuple[str, str]], str, Unprinted]]) -> None:
    """Count messages and tokens of what does not stand in the texts. left_out: of each, the counter, what became of it, and what it is."""
    if not left_out:
        return
    flat = tokenizer.encode([one.text for _, _, one in left_out])
    for (notes, what, one), tokens in zip(left_out, np.diff(flat.offsets).tolist(), strict=True):
        notes[f"{what} (messages)", one.kind] += 1
        notes[f"{what} (tokens)", one.kind] += tokens


def _missing_texts(template: ChatTemplate, conversation: Conversation, places: Iterable[int]) -> list[Unprinted]:
    missing = []
    for place in places:
        message = conversation.messages[place]
        content = str(message["content"])
        marked: Message = {**message, "content": around_text(content, OTHERS, OTHERS_CLOSE)}
        if content.strip() and OTHERS not in _rendered(template, conversation, place, marked):
            missing.append(Unprinted(f"text of {message['role']}", content, place))
    return missing


def _missing_calls(template: ChatTemplate, conversation: Conversation, place: int, *, printed: int) -> list[Unprinted]:
    """The calls of a message that are not printed. printed: how many are known to be."""
    message = conversation.messages[place]
    calls, marked = message.get("tool_calls"), mark_calls(message.get("tool_calls"), CALL)
    if not isinstance(calls, list) or not marked or printed == len(calls):
        return []
    missing = []
    for number, call in enumerate(marked):
        one = [*calls[:number], call, *calls[number + 1 :]]
        if CALL not in _rendered(template, conversation, place, {**message, "tool_calls": one}):
            missing.append(Unprinted("tool calls", _json(calls[number]), place))
    return missing


def _missing_tools(template: ChatTemplate, conversation: Conversation) -> list[Unprinted]:
    if not conversation.tools:
        return []
    arguments = conversation.template_args
    texts = [template.run(conversation.messages, tools=tools, args=arguments) for tools in (conversation.tools, None)]
    return [Unprinted("tools", _json(conversation.tools), -1)] if texts[0] == texts[1] else []


def _rendered(template: ChatTemplate, conversation: Conversation, place: int, message: Message) -> str:
    """The text with another message at `place`; where the template refuses that, it has looked at the message, so it counts as printed."""
    messages = replaced(conversation.messages, place, message)
    try:
        return template.run(messages, tools=conversation.tools, args=conversation.template_args)
    except Rejected:
        return OTHERS + CALL


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
