"""What becomes of reasoning in the data before a template sees it: removed, or every turn made an example of its own.

Templates of reasoning models print the reasoning of the last turn and leave out that of earlier ones, as inference does. So that each turn's reasoning is
trained on, `one_per_turn` gives one conversation per assistant turn, which ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packer.answers import split_thoughts
from packer.chat.unprinted import REASONING_KEYS, reasoning_of
from packer.conversation import Conversation, Message, Rejected
from packer.template import ChatTemplate
from packer.turns import Rendered, Turn, Unprinted

# The note that says how much longer conversations are as an example per turn.
CHARACTERS, EVERY_TURN, WHOLE = "characters rendered", "every turn", "whole conversations"


def without_reasoning(conversation: Conversation) -> tuple[Conversation, tuple[Unprinted, ...]]:
    """Return the conversation without reasoning, in fields of its own or at the start of an answer, and what was removed."""
    messages, removed = list(conversation.messages), []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        kept: Message = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        reasoning = reasoning_of(message)
        if (split := split_thoughts(str(message["content"]))) is not None:
            reasoning = reasoning or split[0]
            kept["content"] = split[1].lstrip("\n")
        if reasoning.strip():
            removed.append(Unprinted("reasoning", reasoning, place))
        messages[place] = kept
    return replace(conversation, messages=tuple(messages)), tuple(removed)


def one_per_turn(conversation: Conversation, *, last_only: bool = False) -> list[Conversation]:
    """Return one conversation per assistant message that is trained on: the messages through it, of which it alone is trained on.

    Args:
        last_only: Keep the last of them alone.

    Raises:
        Rejected: No message is trained on.
    """
    turns = [
        replace(conversation, messages=conversation.messages[: place + 1], first_target=place)
        for place, message in enumerate(conversation.messages)
        if message["role"] == "assistant" and place >= conversation.first_target and place not in conversation.masked
    ]
    if not turns:
        raise Rejected("no_target", "no message of this conversation is trained on")
    return turns[-1:] if last_only else turns


def as_inference_sees(
    template: ChatTemplate, conversation: Conversation, rendered: Rendered, *, prompt: str
) -> Rendered:
    """Return the text of a conversation's last turn behind the very prompt that inference would give.

    Templates may print what comes before a turn in another way once the turn is there (gpt-oss leaves out the reasoning of a call that has been answered).

    Args:
        prompt: What the template appends for a model to go on from.
    """
    if template.has_generation_tags or rendered.literal or not prompt:
        return rendered
    try:
        given = template.run(
            conversation.messages[:-1],
            tools=conversation.tools,
            add_generation_prompt=True,
            args=conversation.template_args,
        )
    except Rejected:
        return rendered
    turn = rendered.turns[-1]
    before = rendered.text[: turn.start]
    if before.startswith(given) or not (given.endswith(prompt) and before.endswith(prompt)):
        return rendered
    shift = len(given) - turn.start
    return replace(
        rendered,
        text=given + rendered.text[turn.start :],
        turns=(Turn(len(given), turn.end + shift, turn.weight),),
    )


def after_last_turn(conversation: Conversation, turns: Sequence[Conversation]) -> list[Unprinted]:
    """Return what is said after the last turn that is trained on, which is in no turn's example."""
    last = len(turns[-1].messages)
    return [
        Unprinted(f"text of {message['role']}", str(message["content"]), last + number)
        for number, message in enumerate(conversation.messages[last:])
    ]
