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
from collections.abc import Callable, Mapping, Sequence

from packer.calls import around_text, mark_calls
from packer.chat.marking import (
    INLINE_REASONING,
    Wrap,
    deeply_literal,
    insets,
    taken_literally,
    wrap_message,
    wrapped_reasoning,
)
from packer.chat.turn_start import empty_block, start_after_header, turn_start
from packer.chat.unprinted import (
    reasoning_of,
    refuse_unprinted,
    replaced,
    unprinted,
    unprinted_under_tags,
)
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
    OTHERS_CLOSE,
    Facts,
    Marked,
    Rendered,
    Turn,
    TurnMarks,
    check_ends,
    joined,
    last_end,
    literal_marks,
    pairs,
    read_turns,
    refused,
    take_apart,
)


def render(
    template: ChatTemplate,
    conversation: Conversation,
    *,
    facts: Facts,
    literal: Callable[[str, str], str] | None,
    train_reasoning: bool = True,
) -> Rendered:
    """Text, turns and literal places of one conversation.

    facts: what a probe showed of the template. literal: (text, role) → the text with what is to be taken literally put between marks by
    `literal_marks`; None: nothing is. train_reasoning: whether reasoning that the template prints is the turn's. Raises Rejected with template_refused,
    private_use, marks_refused or no_terminator.
    """
    messages, tools, args = conversation.messages, conversation.tools, conversation.template_args
    tagged = template.has_generation_tags
    if tagged and ANY.search(json.dumps([messages, tools], ensure_ascii=False)):
        raise _private_use()
    plain = template.run(messages, tools=tools, args=args)
    if not tagged and not plain.isascii() and ANY.search(plain):
        raise _private_use()
    marked_messages, marked_tools = list(messages), tools
    if literal is not None:
        marked_messages = [taken_literally(message, literal) for message in messages]
        marked_tools = deeply_literal(tools, literal, "tools")
    if tagged:
        apart = take_apart(plain)
        text = apart.text
        if literal is not None:
            apart = take_apart(template.run(marked_messages, tools=marked_tools, args=args))
        if apart.text != text or not re.fullmatch(f"(?:{OPEN}{CLOSE})*", apart.turn_marks):
            raise refused("the text, or nests its generation blocks")
        tagged_turns = joined([Turn(start, end) for start, end in pairs(apart, OPEN, CLOSE)])
        return Rendered(
            text=text,
            turns=tuple(_weighted_by_tags(template, conversation, text, tagged_turns)),
            literal=tuple(pairs(apart, LITERAL_OPEN, LITERAL_CLOSE)),
            unprinted=unprinted_under_tags(template, conversation),
        )
    places = tuple(place for place, message in enumerate(messages) if message["role"] == "assistant")
    calls = [_count_calls(messages[place], place) for place in places]
    around = {
        place: {**message, "content": around_text(str(message["content"]), OTHERS, OTHERS_CLOSE)}
        for place, message in enumerate(marked_messages)
        if message["role"] != "assistant"
    }

    def wrapped(wraps: Mapping[int, Wrap], others: Mapping[int, Message]) -> list[Message]:
        whole = list(marked_messages)
        for place in wraps:
            whole[place] = wrap_message(whole[place], wraps[place])
        for place, message in others.items():
            whole[place] = message
        return whole

    def run(wraps: Mapping[int, Wrap], others: Mapping[int, Message]) -> tuple[Marked, list[TurnMarks]] | None:
        """The marked text taken apart and its turns, or None where it is not the plain text with every turn marked once."""
        marked = take_apart(template.run(wrapped(wraps, others), tools=marked_tools, args=args))
        if marked.text != plain:
            return None
        found = read_turns(marked, [calls[places.index(place)] for place in sorted(wraps)])
        return None if found is None else (marked, found)

    wraps: Mapping[int, Wrap] = {
        # Reasoning in the text is marked separately where it is not to be trained on, even though the template prints all of it.
        place: Wrap(inline=not train_reasoning and INLINE_REASONING.match(str(messages[place]["content"])) is not None)
        for place in places
    }
    found = run(wraps, around) or run(wraps, {})
    if found is None:
        refuse_unprinted(template, conversation, plain, places)
        wraps = {
            place: _find_wrap(marked_messages[place], place, lambda wraps: run(wraps, {}) is not None)
            for place in places
        }
        found = run(wraps, around) or run(wraps, {})
    if found is None:
        raise refused("the assistant's text")
    marked, turn_marks = found
    complete = wrapped(wraps, around if OTHERS in marked.marks else {})
    turns: list[Turn] = []
    for place, marks in zip(places, turn_marks, strict=True):
        weight = weight_of(conversation, place)
        start = marks.first
        if weight:
            if marks.reasoned >= 0 and not train_reasoning:
                start = marks.reasoned + empty_block("<think>", plain[marks.reasoned :], "")
            else:
                start = _start(template, conversation, complete[:place], marked_tools, plain, marks, facts)
        turns.append(Turn(start, max(marks.end, start), weight))
    others = [place for mark, place in zip(marked.marks, marked.places, strict=True) if mark == OTHERS]
    literals = tuple(pairs(marked, LITERAL_OPEN, LITERAL_CLOSE))
    text = plain
    if messages[-1]["role"] == "assistant":
        text += facts.appended_to_call if messages[-1].get("tool_calls") else facts.appended
    if facts.closers:
        check_ends(text, turns, others, literals, facts.closers)
    return Rendered(
        text=text,
        turns=tuple(turns),
        literal=literals,
        unprinted=unprinted(
            template,
            conversation,
            [(p, marks, wrapped_reasoning(messages[p], wraps[p])) for p, marks in zip(places, turn_marks, strict=True)],
            others_printed=len(others),
        ),
    )


def weight_of(conversation: Conversation, place: int) -> float:
    """The loss weight of the assistant's message at `place`; 0: not trained on."""
    if place < conversation.first_target or place in conversation.masked:
        return 0.0
    return conversation.weights.get(place, 1.0)


def _start(
    template: ChatTemplate,
    conversation: Conversation,
    before: Sequence[Message],
    tools: Json,
    text: str,
    marks: TurnMarks,
    facts: Facts,
) -> int:
    """Where a turn begins: behind the generation prompt that the messages before it lead to."""
    rest, content = text[marks.before :], marks.first - marks.before
    try:
        asked = take_apart(
            template.run(before, tools=tools, add_generation_prompt=True, args=conversation.template_args)
        )
        start = turn_start(asked.text[last_end(asked) :], rest, content=content, block=facts.block)
    except Rejected:
        start = None
    if start is None:
        # No prompt can be rendered here (no message comes before, say), or the turn has another one.
        start = start_after_header(rest, facts.prompt, content=content, block=facts.block)
    if start is None:
        raise Rejected(
            "prompt_differs",
            f"message {len(before)}: the template does not write before it what it gives a model to go on from",
        )
    return marks.before + start


def _private_use() -> Rejected:
    return Rejected(
        "private_use",
        "the text holds a character of U+100000 to U+100008, which mark places while a conversation is rendered",
    )


def _count_calls(message: Message, place: int) -> int:
    marked = mark_calls(message.get("tool_calls"), CALL)
    if marked is None:
        raise Rejected("bad_message", f"message {place}: a tool call has neither a name nor arguments")
    return len(marked)


def _find_wrap(message: Message, place: int, comes_through: Callable[[Mapping[int, Wrap]], bool]) -> Wrap:
    """The wrap of one message under which its marks come through: how much white space the template strips, and where reasoning ends."""
    content = str(message["content"])
    reasoning = reasoning_of(message)
    for inline in (False, True):
        inner = content
        if inline:
            if not (parts := INLINE_REASONING.match(content)):
                continue
            inner = parts.group(4)
        for thought in insets(reasoning):
            for said in insets(inner):
                wrap = Wrap(content=said, reasoning=thought, inline=inline)
                if comes_through({place: wrap}):
                    return wrap
    raise refused(f"the text of message {place}")


def _weighted_by_tags(template: ChatTemplate, conversation: Conversation, text: str, turns: list[Turn]) -> list[Turn]:
    """Give each tagged turn the weight of its message, where not all of them are trained on alike.

    A mark around each message's text shows which tagged turn it is in.
    """
    messages = conversation.messages
    weights = {p: weight_of(conversation, p) for p, message in enumerate(messages) if message["role"] == "assistant"}
    for place, weight in weights.items():
        if weight == 1:
            continue
        content = str(messages[place]["content"])
        around = around_text(content, LITERAL_OPEN, LITERAL_CLOSE) if content.strip() else literal_marks(content)
        marked = replaced(messages, place, {**messages[place], "content": around})
        apart = take_apart(template.run(marked, tools=conversation.tools, args=conversation.template_args))
        spans = pairs(apart, LITERAL_OPEN, LITERAL_CLOSE)
        mine = [n for n, turn in enumerate(turns) if spans and turn.start <= spans[0][0] and spans[0][1] <= turn.end]
        if apart.text != text or len(spans) != 1 or len(mine) != 1:
            raise refused(f"the text of message {place}")
        turns[mine[0]] = turns[mine[0]]._replace(weight=weight)
    return turns
