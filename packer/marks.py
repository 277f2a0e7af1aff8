"""Where in the rendered text the assistant's own text lies, proved or refused.

Where a template carries generation tags, their author has said it. The stock templates carry none; for them each assistant text is wrapped in two
private-use characters ("marks") and the conversation rendered a second time. If taking the marks out gives the first text back, they sit exactly
where the template put that text; if not, the conversation is refused and nothing is guessed. (Rendering prefixes of a conversation instead is wrong
for every template that treats its last turn in a way of its own, as those of Qwen3 and gpt-oss do.)

    rendered = render(template, conversation, facts=Facts(), literal=None)
    [rendered.text[turn.start : turn.end] for turn in rendered.turns]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from packer.calls import before_text, mark_calls
from packer.conversation import Conversation, Json, Message, Rejected
from packer.template import ChatTemplate
from packer.turns import (
    ANY,
    CALL,
    CLOSE,
    LITERAL_CLOSE,
    LITERAL_OPEN,
    OPEN,
    OTHERS,
    THINK_CLOSE,
    THINK_OPEN,
    TURN,
    Facts,
    Marked,
    Rendered,
    joined,
    read_marks,
    refused,
    take_apart,
)

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_INLINE_REASONING = re.compile(r"\A(\s*(?:<think>)?\s*)(.*?)(\s*</think>\s*)(.*)\Z", re.DOTALL)
_WHITESPACE_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wrap:
    """How one assistant message is marked: set in by so many characters of white space, which the template strips."""

    content: tuple[int, int] = (0, 0)
    reasoning: tuple[int, int] = (0, 0)
    inline: bool = False


def render(
    template: ChatTemplate,
    conversation: Conversation,
    *,
    facts: Facts,
    literal: Callable[[str, str], str] | None,
) -> Rendered:
    """Text, turns and literal places of one conversation.

    facts: what a probe showed of the template. literal: (text, role) → the text with what is to be taken literally put between marks by
    `literal_marks`; None: nothing is. Raises Rejected with template_refused, private_use, marks_refused or no_terminator.
    """
    messages, tools = conversation.messages, conversation.tools
    if template.has_generation_tags and conversation.masked:
        raise Rejected(
            "empty_answer", "the assistant once says nothing, and the template's tags do not say which turn that is"
        )
    if template.has_generation_tags and ANY.search(json.dumps([messages, tools], ensure_ascii=False)):
        raise _private_use()
    plain = template.run(messages, tools=tools)
    if not template.has_generation_tags and not plain.isascii() and ANY.search(plain):
        raise _private_use()
    marked_messages, marked_tools = list(messages), tools
    if literal is not None:
        marked_messages = [_literal(message, literal) for message in messages]
        marked_tools = _deep(tools, literal, "tools")
    apart = take_apart(plain) if template.has_generation_tags else Marked(plain, (), ())
    text = apart.text
    if template.has_generation_tags:
        if literal is not None:
            apart = take_apart(template.run(marked_messages, tools=marked_tools))
        if apart.text != text or not re.fullmatch(f"(?:{OPEN}{CLOSE})*", apart.turn_marks):
            raise refused("the text, or nests its generation blocks")
        rendered = joined(read_marks(apart, (), Facts()))
        return _from_first_target(template, conversation, rendered)
    places = tuple(place for place, message in enumerate(messages) if message["role"] == "assistant")
    wraps: Mapping[int, _Wrap] = dict.fromkeys(places, _Wrap())
    # A call's answer may stand within the very turn that calls, and a call may end in a way of its own.
    calls = [_count_calls(message, place) for place, message in enumerate(messages)]
    others = frozenset(n for n, message in enumerate(messages) if any(calls) and message["role"] in ("user", "tool"))

    def run(wraps: Mapping[int, _Wrap]) -> Marked | None:
        """The marked text taken apart, or None where it is not the plain text with every turn marked once."""
        wrapped = list(marked_messages)
        for place in wraps:
            wrapped[place] = _wrap(wrapped[place], wraps[place])
        for place in others:
            wrapped[place] = {**wrapped[place], "content": before_text(str(wrapped[place]["content"]), OTHERS)}
        marked = take_apart(template.run(wrapped, tools=marked_tools))
        if marked.text != text:
            return None
        found = marked.turn_marks
        if found == (OPEN + CLOSE) * len(wraps):
            return marked
        # A template may leave out the calls of a turn, but all of them.
        expected = "".join(f"{TURN}(?:{CALL}{{{calls[place]}}})?" for place in sorted(wraps))
        return marked if re.fullmatch(expected, found) else None

    marked_text = run(wraps)
    if marked_text is None:
        wraps = {place: _find_wrap(marked_messages[place], place, run) for place in places}
        marked_text = run(wraps)
    if marked_text is None:
        raise refused("the assistant's text")
    silent = tuple(not messages[place]["content"] for place in places)
    rendered = read_marks(marked_text, silent, facts if others else replace(facts, stops=()))
    trained = [place >= conversation.first_target and place not in conversation.masked for place in places]
    turns = tuple(turn for turn, its in zip(rendered.turns, trained, strict=True) if its)
    return Rendered(text=rendered.text, turns=turns, literal=rendered.literal)


def _private_use() -> Rejected:
    return Rejected(
        "private_use",
        "the text holds a character of U+100000 to U+100007, which mark places while a conversation is rendered",
    )


def _literal(message: Message, literal: Callable[[str, str], str]) -> Message:
    """Every text of a message but its role."""
    role = str(message["role"])
    return {
        literal(key, role): value if key == "role" else _deep(value, literal, role) for key, value in message.items()
    }


def _deep(value: Json, literal: Callable[[str, str], str], role: str) -> Json:
    """Every text at every depth, keys too: a template may print them."""
    if isinstance(value, str):
        return literal(value, role)
    if isinstance(value, list):
        return [_deep(item, literal, role) for item in value]
    if isinstance(value, dict):
        return {literal(key, role): _deep(item, literal, role) for key, item in value.items()}
    return value


def _wrap(message: Message, wrap: _Wrap) -> Message:
    """The message with its text and its calls marked; a turn that only calls tools is marked in its first call."""
    marked = dict(message)
    if calls := mark_calls(message.get("tool_calls"), CALL, first="" if message["content"] else OPEN + CLOSE):
        marked["tool_calls"] = calls
    for key in _REASONING_KEYS:
        if isinstance(marked.get(key), str) and marked[key]:
            marked[key] = _set_in(str(marked[key]), wrap.reasoning, THINK_OPEN, THINK_CLOSE)
    content = str(marked["content"])
    if not content and calls:
        return marked
    if wrap.inline and (parts := _INLINE_REASONING.match(content)):
        lead, reasoning, close, answer = parts.groups()
        marked["content"] = (
            lead + THINK_OPEN + reasoning + THINK_CLOSE + close + _set_in(answer, wrap.content, OPEN, CLOSE)
        )
    else:
        marked["content"] = _set_in(content, wrap.content, OPEN, CLOSE)
    return marked


def _set_in(text: str, inset: tuple[int, int], opening: str, closing: str) -> str:
    head, end = inset[0], len(text) - inset[1]
    return text[:head] + opening + text[head:end] + closing + text[end:]


def _count_calls(message: Message, place: int) -> int:
    marked = mark_calls(message.get("tool_calls"), CALL)
    if marked is None:
        raise Rejected("bad_message", f"message {place}: a tool call has neither a name nor arguments")
    return len(marked)


def _find_wrap(message: Message, place: int, run: Callable[[Mapping[int, _Wrap]], Marked | None]) -> _Wrap:
    """The wrap of one message under which its marks come through: how much white space the template strips, and where reasoning ends."""
    content = str(message["content"])
    reasoning = next((str(message[key]) for key in _REASONING_KEYS if isinstance(message.get(key), str)), "")
    for inline in (False, True):
        inner = content
        if inline:
            if not (parts := _INLINE_REASONING.match(content)):
                continue
            inner = parts.group(4)
        for thought in _insets(reasoning):
            for said in _insets(inner):
                wrap = _Wrap(content=said, reasoning=thought, inline=inline)
                if run({place: wrap}) is not None:
                    return wrap
    raise refused(f"the text of message {place}")


def _insets(text: str) -> list[tuple[int, int]]:
    """How much of the white space at each edge a template may strip, least first."""
    front = min(len(text) - len(text.lstrip()), _WHITESPACE_STEPS)
    back = min(len(text) - len(text.rstrip()), _WHITESPACE_STEPS)
    near = [(head, tail) for head in range(front + 1) for tail in range(back + 1) if head + tail <= len(text)]
    # Of more than a few, a template strips all, or all line ends.
    lead, trail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
    lines = len(text) - len(text.lstrip("\n")), len(text) - len(text.rstrip("\n"))
    far = [(lines[0], lines[1]), (lines[0], 0), (0, lines[1]), (lead, 0), (0, trail), (lead, trail)]
    return near + [inset for inset in far if inset not in near and sum(inset) <= len(text)]


def _from_first_target(template: ChatTemplate, conversation: Conversation, rendered: Rendered) -> Rendered:
    """Leaves out the tagged turns that belong to a prompt: those that end before the first message to train on begins."""
    if not conversation.first_target:
        return rendered
    messages = list(conversation.messages)
    place = next(p for p in range(conversation.first_target, len(messages)) if messages[p]["role"] == "assistant")
    messages[place] = {**messages[place], "content": LITERAL_OPEN + str(messages[place]["content"]) + LITERAL_CLOSE}
    marked = template.run(messages, tools=conversation.tools)
    if ANY.sub("", marked) != rendered.text or marked.count(LITERAL_OPEN) != 1:
        raise refused(f"the text of message {place}")
    start = len(ANY.sub("", marked[: marked.index(LITERAL_OPEN)]))
    return Rendered(
        text=rendered.text, turns=tuple(turn for turn in rendered.turns if turn.end > start), literal=rendered.literal
    )
