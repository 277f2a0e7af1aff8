"""Where in the rendered text the assistant's own text lies, proved or refused.

Where a template carries generation tags, their author has said it. The stock templates carry none; for them each assistant text is wrapped in two
private-use characters ("marks") and the conversation rendered a second time. If taking the marks out gives the first text back, they sit exactly
where the template put that text; if not, the conversation is refused and nothing is guessed. (Rendering prefixes of a conversation instead is wrong
for every template that treats its last turn in a way of its own, as those of Qwen3 and gpt-oss do.)

    rendered = render(template, conversation, headers=(), stops=(), literal=None)
    [rendered.text[turn.start : turn.end] for turn in rendered.turns]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packer.calls import before_text, mark_calls
from packer.conversation import Conversation, Json, Message, Rejected
from packer.template import CLOSE, OPEN, ChatTemplate

# Around reasoning, and around text of the data that spells a control token.
_THINK_OPEN, _THINK_CLOSE = "\U00100002", "\U00100003"
_LITERAL_OPEN, _LITERAL_CLOSE = "\U00100004", "\U00100005"
# In the first argument of each tool call, and before what others say.
_CALL, _OTHERS = "\U00100006", "\U00100007"
_ANY = re.compile("[\U00100000-\U00100007]")
_TURN_MARKS = re.compile("[\U00100000-\U00100003\U00100006]")
_TURN = f"(?:{_THINK_OPEN}{_THINK_CLOSE})?{OPEN}{CLOSE}"
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_INLINE_REASONING = re.compile(r"\A(\s*(?:<think>)?\s*)(.*?)(\s*</think>\s*)(.*)\Z", re.DOTALL)
_WHITESPACE_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Characters [start, end) that the assistant wrote in one turn; the terminator behind them is not counted, unless by generation tags."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """text; turns: the assistant's, in order, those to be trained on; literal: places [start, end) of text that only spells a control token."""

    text: str
    turns: tuple[Turn, ...]
    literal: tuple[tuple[int, int], ...] = ()


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
    headers: Sequence[str],
    stops: Sequence[str],
    literal: Callable[[str, str], str] | None,
) -> Rendered:
    """Text, turns and literal places of one conversation.

    headers: what the template writes between the text before and an assistant's, as a probe showed it; needed only for turns that call a tool and
    say nothing. stops: texts of the tokens that end a turn; needed only for conversations that call tools. literal: (text, role) → the text with
    what is to be taken literally put between marks by `literal_marks`; None: nothing is. Raises Rejected with template_refused, private_use,
    marks_refused or no_terminator.
    """
    messages, tools = conversation.messages, conversation.tools
    if template.has_generation_tags and _ANY.search(json.dumps([messages, tools], ensure_ascii=False)):
        raise _private_use()
    plain = template.run(messages, tools=tools)
    if not template.has_generation_tags and _ANY.search(plain):
        raise _private_use()
    marked_messages, marked_tools = list(messages), tools
    if literal is not None:
        marked_messages = [_deep(message, literal, str(message["role"])) for message in messages]  # type: ignore[misc]
        marked_tools = _deep(tools, literal, "tools")
    text = _ANY.sub("", plain)
    if template.has_generation_tags:
        marked = template.run(marked_messages, tools=marked_tools) if literal is not None else plain
        in_order = re.fullmatch(f"(?:{OPEN}{CLOSE})*", "".join(_TURN_MARKS.findall(marked)))
        if _ANY.sub("", marked) != text or not in_order:
            raise _refused("the text, or nests its generation blocks")
        rendered = _read(marked, (), (), ())
        return _from_first_target(template, conversation, rendered)
    places = tuple(place for place, message in enumerate(messages) if message["role"] == "assistant")
    wraps: Mapping[int, _Wrap] = dict.fromkeys(places, _Wrap())
    # A call's answer may stand within the very turn that calls, and a call may end in a way of its own.
    calls = [_count_calls(message, place) for place, message in enumerate(messages)]
    others = frozenset(n for n, message in enumerate(messages) if any(calls) and message["role"] in ("user", "tool"))

    def run(wraps: Mapping[int, _Wrap]) -> str | None:
        """The marked text, or None where it is not the plain text with every turn marked once."""
        wrapped = list(marked_messages)
        for place in wraps:
            wrapped[place] = _wrap(wrapped[place], wraps[place])
        for place in others:
            wrapped[place] = {**wrapped[place], "content": before_text(str(wrapped[place]["content"]), _OTHERS)}
        marked = template.run(wrapped, tools=marked_tools)
        found = "".join(_TURN_MARKS.findall(marked))
        # A template may leave out the calls of a turn, but all of them.
        expected = "".join(f"{_TURN}(?:{_CALL}{{{calls[place]}}})?" for place in sorted(wraps))
        return marked if re.fullmatch(expected, found) and _ANY.sub("", marked) == text else None

    marked_text = run(wraps)
    if marked_text is None:
        wraps = {place: _find_wrap(marked_messages[place], place, run) for place in places}
        marked_text = run(wraps)
    if marked_text is None:
        raise _refused("the assistant's text")
    silent = tuple(not messages[place]["content"] for place in places)
    rendered = _read(marked_text, silent, headers, stops if others else ())
    first = sum(place < conversation.first_target for place in places)
    return Rendered(text=rendered.text, turns=rendered.turns[first:], literal=rendered.literal)


def literal_marks(text: str) -> str:
    """Wraps a text that must be encoded as it is spelled, whatever it spells."""
    return _LITERAL_OPEN + text + _LITERAL_CLOSE


def _private_use() -> Rejected:
    return Rejected(
        "private_use",
        "the text holds a character of U+100000 to U+100007, which mark places while a conversation is rendered",
    )


def _refused(what: str) -> Rejected:
    return Rejected("marks_refused", f"the template changes {what}, so its place in the rendered text cannot be proved")


def _deep(value: Json, literal: Callable[[str, str], str], role: str) -> Json:
    """Every string of a message or of the tools, keys and roles left as they are."""
    if isinstance(value, str):
        return literal(value, role)
    if isinstance(value, list):
        return [_deep(item, literal, role) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "role" else _deep(item, literal, role) for key, item in value.items()}
    return value


def _wrap(message: Message, wrap: _Wrap) -> Message:
    """The message with its text and its calls marked; a turn that only calls tools is marked in its first call."""
    marked = dict(message)
    if calls := mark_calls(message.get("tool_calls"), _CALL, first="" if message["content"] else OPEN + CLOSE):
        marked["tool_calls"] = calls
    for key in _REASONING_KEYS:
        if isinstance(marked.get(key), str) and marked[key]:
            marked[key] = _set_in(str(marked[key]), wrap.reasoning, _THINK_OPEN, _THINK_CLOSE)
    content = str(marked["content"])
    if not content and calls:
        return marked
    if wrap.inline and (parts := _INLINE_REASONING.match(content)):
        lead, reasoning, close, answer = parts.groups()
        marked["content"] = (
            lead + _THINK_OPEN + reasoning + _THINK_CLOSE + close + _set_in(answer, wrap.content, OPEN, CLOSE)
        )
    else:
        marked["content"] = _set_in(content, wrap.content, OPEN, CLOSE)
    return marked


def _set_in(text: str, inset: tuple[int, int], opening: str, closing: str) -> str:
    head, end = inset[0], len(text) - inset[1]
    return text[:head] + opening + text[head:end] + closing + text[end:]


def _count_calls(message: Message, place: int) -> int:
    marked = mark_calls(message.get("tool_calls"), _CALL)
    if marked is None:
        raise Rejected("bad_message", f"message {place}: a tool call has neither a name nor arguments")
    return len(marked)


def _find_wrap(message: Message, place: int, run: Callable[[Mapping[int, _Wrap]], str | None]) -> _Wrap:
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
    raise _refused(f"the text of message {place}")


def _insets(text: str) -> list[tuple[int, int]]:
    """How much of the white space at each edge a template may strip, least first."""
    front = min(len(text) - len(text.lstrip()), _WHITESPACE_STEPS)
    back = min(len(text) - len(text.rstrip()), _WHITESPACE_STEPS)
    return [(head, tail) for head in range(front + 1) for tail in range(back + 1) if head + tail <= len(text)]


def _read(marked: str, silent: Sequence[bool], headers: Sequence[str], stops: Sequence[str]) -> Rendered:
    """Takes the marks out and keeps where they were.

    silent: the turns that only call tools; their text begins behind the header. stops: one of these must end each turn before others speak; none:
    unchecked.
    """
    text = _ANY.sub("", marked)
    turns: list[Turn] = []
    literal: list[tuple[int, int]] = []
    others: list[int] = []
    start, literal_start = -1, 0
    for before, match in enumerate(_ANY.finditer(marked)):
        place, mark = match.start() - before, match.group()
        if mark == _THINK_OPEN:
            start = place
        elif mark == OPEN and start < 0:
            # Where there is reasoning, the turn has begun with it; where a tool is called at once, with what stands before the call.
            calls_at_once = bool(silent) and silent[len(turns)]
            start = _behind_header(text, place, turns[-1].end if turns else 0, headers) if calls_at_once else place
        elif mark == CLOSE:
            turns.append(Turn(start=start, end=place))
            start = -1
        elif mark == _CALL:
            turns[-1] = Turn(start=turns[-1].start, end=place)
        elif mark == _OTHERS:
            others.append(place)
        elif mark == _LITERAL_OPEN:
            literal_start = place
        elif mark == _LITERAL_CLOSE:
            literal.append((literal_start, place))
    if stops:
        _check_ends(text, turns, others, literal, stops)
    return Rendered(text=text, turns=tuple(turns), literal=tuple(literal))


def _check_ends(
    text: str,
    turns: Sequence[Turn],
    others: Sequence[int],
    literal: Sequence[tuple[int, int]],
    stops: Sequence[str],
) -> None:
    """Rejected where somebody else speaks within a turn, or before the token that ends it."""
    stop = re.compile("|".join(map(re.escape, stops)))
    for number, turn in enumerate(turns):
        if any(turn.start <= place < turn.end for place in others):
            raise _refused("the order of a tool call and its answer")
        following = [place for place in others if place >= turn.end] + [one.start for one in turns[number + 1 :]]
        limit = min(following, default=len(text))
        if not any((match.start(), match.end()) not in literal for match in stop.finditer(text, turn.end, limit)):
            raise Rejected(
                "no_terminator", f"the assistant's turn {number} is not closed by the token that ends a turn"
            )


def _behind_header(text: str, call: int, after: int, headers: Sequence[str]) -> int:
    """Where a turn that begins with a tool call begins: behind the nearest header before the call's first argument."""
    ends = [found + len(header) for header in headers if (found := text.rfind(header, after, call)) >= 0]
    if not ends:
        raise _refused("the header of a turn that calls a tool")
    return max(ends)


def _from_first_target(template: ChatTemplate, conversation: Conversation, rendered: Rendered) -> Rendered:
    """Leaves out the tagged turns that belong to a prompt: those that end before the first message to train on begins."""
    if not conversation.first_target:
        return rendered
    messages = list(conversation.messages)
    place = next(p for p in range(conversation.first_target, len(messages)) if messages[p]["role"] == "assistant")
    messages[place] = {**messages[place], "content": _LITERAL_OPEN + str(messages[place]["content"]) + _LITERAL_CLOSE}
    marked = template.run(messages, tools=conversation.tools)
    if _ANY.sub("", marked) != rendered.text or marked.count(_LITERAL_OPEN) != 1:
        raise _refused(f"the text of message {place}")
    start = len(_ANY.sub("", marked[: marked.index(_LITERAL_OPEN)]))
    return Rendered(
        text=rendered.text, turns=tuple(turn for turn in rendered.turns if turn.end > start), literal=rendered.literal
    )
