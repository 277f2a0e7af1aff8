"""Messages with marks in them: around what the assistant says, reasons and calls, and around text that is to be taken literally."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from packer.calls import mark_calls
from packer.chat.unprinted import REASONING_KEYS, reasoning_of
from packer.conversation import Json, Message
from packer.turns import CALL, CLOSE, OPEN, THINK_CLOSE, THINK_OPEN

# White space behind the closing tag is the answer's: templates differ in whether they strip it.
INLINE_REASONING = re.compile(r"\A(\s*(?:<think>)?\s*)(.*?)(\s*</think>)(.*)\Z", re.DOTALL)
_WHITESPACE_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrap:
    """How one assistant message is marked: set in by so many characters of white space, which the template strips."""

    content: tuple[int, int] = (0, 0)
    reasoning: tuple[int, int] = (0, 0)
    inline: bool = False


def taken_literally(message: Message, literal: Callable[[str, str], str]) -> Message:
    """Every text of a message but its role."""
    role = str(message["role"])
    return {
        literal(key, role): value if key == "role" else deeply_literal(value, literal, role)
        for key, value in message.items()
    }


def deeply_literal(value: Json, literal: Callable[[str, str], str], role: str) -> Json:
    """Every text at every depth, keys too: a template may print them."""
    if isinstance(value, str):
        return literal(value, role)
    if isinstance(value, list):
        return [deeply_literal(item, literal, role) for item in value]
    if isinstance(value, dict):
        return {literal(key, role): deeply_literal(item, literal, role) for key, item in value.items()}
    return value


def wrap_message(message: Message, wrap: Wrap) -> Message:
    """The message with its text and its calls marked; a turn that only calls tools is marked in its first call."""
    marked = dict(message)
    if calls := mark_calls(message.get("tool_calls"), CALL, first="" if message["content"] else OPEN + CLOSE):
        marked["tool_calls"] = calls
    for key in REASONING_KEYS:
        if str(marked.get(key) or "").strip():
            marked[key] = _set_in(str(marked[key]), wrap.reasoning, THINK_OPEN, THINK_CLOSE)
    content = str(marked["content"])
    if not content and calls:
        return marked
    if wrap.inline and (parts := INLINE_REASONING.match(content)):
        lead, reasoning, close, answer = parts.groups()
        if reasoning.strip():
            reasoning = THINK_OPEN + reasoning + THINK_CLOSE
        marked["content"] = lead + reasoning + close + _set_in(answer, wrap.content, OPEN, CLOSE)
    else:
        marked["content"] = _set_in(content, wrap.content, OPEN, CLOSE)
    return marked


def _set_in(text: str, inset: tuple[int, int], opening: str, closing: str) -> str:
    head, end = inset[0], len(text) - inset[1]
    return text[:head] + opening + text[head:end] + closing + text[end:]


def wrapped_reasoning(message: Message, wrap: Wrap) -> str:
    if wrap.inline and (parts := INLINE_REASONING.match(str(message["content"]))):
        return parts.group(2)
    return reasoning_of(message)


def insets(text: str) -> list[tuple[int, int]]:
    """How much of the white space at each edge a template may strip, least first."""
    front = min(len(text) - len(text.lstrip()), _WHITESPACE_STEPS)
    back = min(len(text) - len(text.rstrip()), _WHITESPACE_STEPS)
    near = [(head, tail) for head in range(front + 1) for tail in range(back + 1) if head + tail <= len(text)]
    # Of more than a few, a template strips all, or all line ends.
    lead, trail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
    lines = len(text) - len(text.lstrip("\n")), len(text) - len(text.rstrip("\n"))
    far = [(lines[0], lines[1]), (lines[0], 0), (0, lines[1]), (lead, 0), (0, trail), (lead, trail)]
    return near + [inset for inset in far if inset not in near and sum(inset) <= len(text)]
