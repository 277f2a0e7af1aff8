"""Thoughts that stand in an answer's text, for templates that write a block of thought of their own and do not look for one there.

What a model has written itself reads `r\\n</think>\\n\\na` where the generation prompt opens the block. Qwen3's template finds the block in the text.
Qwen3.8's takes `reasoning_content` alone, and would put an empty block before the one that is there: the model would learn to close its thoughts twice.

    way = way_with_thoughts(template)                 # once, of a probe
    conversation = with_thoughts(conversation, way)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from packer.answers import split_thoughts
from packer.conversation import Conversation, Json, Message, Rejected
from packer.template import ChatTemplate

# Left in the text; moved to where the template reads them; or there is nowhere to move them to.
Way = Literal["as they stand", "apart", "refused"]

_QUESTION, _THOUGHT, _ANSWER = "What is the tallest tree?", "Redwoods grow tall.", "The coast redwood."
_CLOSES = "</think>"


def way_with_thoughts(template: ChatTemplate) -> Way:
    """What is to be done with thoughts in an answer's text: nothing, unless the template closes a block of its own before them."""
    if not _wraps_again(template, {"content": f"{_THOUGHT}\n{_CLOSES}\n\n{_ANSWER}"}):
        return "as they stand"
    apart: Message = {"content": _ANSWER, "reasoning_content": _THOUGHT, "thinking": _THOUGHT}
    return "apart" if _wraps_again(template, apart) is False else "refused"


def with_thoughts(conversation: Conversation, way: Way) -> Conversation:
    """The conversation with the thoughts that its answers begin with dealt with; raises Rejected where they have no place."""
    if way == "as they stand":
        return conversation
    messages = list(conversation.messages)
    for place, message in enumerate(messages):
        found = _thoughts(message) if message["role"] == "assistant" else None
        if found is None:
            continue
        if way == "refused":
            raise Rejected(
                "bad_content",
                f"message {place}: thoughts stand in its text, before which the template puts an empty block of thought",
            )
        thoughts, answer = found
        reasoning: dict[str, Json] = {"reasoning_content": thoughts, "thinking": thoughts} if thoughts else {}
        messages[place] = {**message, "content": answer, **reasoning}
    return replace(conversation, messages=tuple(messages))


def _wraps_again(template: ChatTemplate, said: Message) -> bool | None:
    """Whether the template closes a block of thought between a question and these thoughts; None where it does not write them."""
    try:
        text = template.run([{"role": "user", "content": _QUESTION}, {"role": "assistant", **said}], tools=None)
    except Rejected:
        return None
    _, _, rest = text.partition(_QUESTION)
    before, written, _ = rest.partition(_THOUGHT)
    return _CLOSES in before if written else None


def _thoughts(message: Message) -> tuple[str, str] | None:
    """The thoughts that a text begins with, and what stands behind them; None where there are none, or they have a field of their own."""
    split = None if message.get("reasoning_content") else split_thoughts(str(message["content"]))
    return None if split is None else (split[0].strip("\n"), split[1].lstrip("\n"))
