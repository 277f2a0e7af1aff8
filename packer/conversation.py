"""Messages in one canonical form, or a named reason why not: whatever wire format they came in, a template sees the same.

>>> conversation([{"role": "User ", "content": "hi"}, {"role": "assistant", "content": "ho", "tool_calls": None}]).messages
({'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packer.answers import says_nothing_but_thoughts, thinks
from packer.sources.content_parts import read_parts, split_tool_results
from packer.sources.json_values import Json, Message, from_json_text, kind_of, plain, whole_characters
from packer.sources.message_weights import hold_other_role, take_weight
from packer.sources.rejected import Rejected
from packer.sources.roles import CANONICAL_ROLES, canonical_role, plain_role
from packer.sources.tool_call_forms import calls_of, spelled_calls, tools_of, unread_call_keys
from packer.sources.unsupported_data import MEDIA_COLUMNS
from packer.words import EmptyAnswers

__all__ = ["Conversation", "Json", "Message", "PlainText", "Rejected", "conversation", "kind_of", "text_of"]

# Turns of the assistant whose text is the JSON of its calls, as LLaMA-Factory and ms-swift have them.
_CALLING = ("function_call", "tool_call")

# Of a message, under the names that ShareGPT has for them.
_ALIASES = (("from", "role"), ("value", "content"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """What goes to the chat template.

    Messages before `first_target` are never trained on (the prompt of a prompt and completion), nor are those in `masked` (empty answers, where they
    were to be kept and not learnt, or messages that the data gives weight 0). weights: loss weights other than 0 and 1, by place of the assistant's
    message. template_args: arguments of the row's own for the template. notes: (kind, detail) pairs to be counted in the ledger, such as
    ("unread column", "prompt_id").
    """

    messages: tuple[Message, ...]
    tools: Json = None
    first_target: int = 0
    masked: frozenset[int] = frozenset()
    weights: Mapping[int, float] = field(default_factory=dict)
    template_args: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText:
    """Text that no chat template touches: only the completion is trained on, and one EOS closes it."""

    prompt: str
    completion: str
    notes: tuple[tuple[str, str], ...] = ()


def conversation(
    raw: object,
    *,
    tools: object = None,
    first_target: int = 0,
    empty_answers: EmptyAnswers = "drop",
    template_args: Mapping[str, Json] | None = None,
    notes: tuple[tuple[str, str], ...] = (),
) -> Conversation:
    """A list of raw messages as a conversation, or Rejected with why not."""
    if not isinstance(raw, list):
        raise Rejected("bad_message", f"the messages are {kind_of(raw)}, not a list")
    if not raw:
        raise Rejected("empty", "the list of messages is empty")
    messages: list[Message] = []
    read: _Messages | None = None
    for place, message in enumerate(raw):
        if type(message) is dict and len(message) == 2:
            # Nearly every message: a known role and a text, which need no changes.
            role, text = message.get("role"), message.get("content")
            if type(text) is str and type(role) is str and role in CANONICAL_ROLES:
                if not text.isascii():
                    whole_characters(text, f"message {place}")
                messages.append(message)
                continue
        if read is None:
            read = _Messages(messages, first_target)
        read.add(message, place)
    if read is not None:
        first_target = read.first_target
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers or answers[-1] < first_target:
        raise Rejected("no_answer", "no message of the assistant to train on")
    masked = {place for place, weight in read.weights.items() if not weight} if read is not None else set()
    if masked and not any(place >= first_target and place not in masked for place in answers):
        raise Rejected(
            "no_answer", "the data gives loss weight 0 to every message of the assistant that could be trained on"
        )
    empty = [
        place
        for place in answers
        if place not in masked
        and not messages[place].get("tool_calls")
        and says_nothing_but_thoughts(str(messages[place]["content"]))
    ]
    if empty and empty_answers == "drop":
        what = "gives reasoning but no answer" if thinks(messages[empty[0]]) else "says nothing"
        raise Rejected("empty_answer", f"message {empty[0]}: the assistant {what}")
    if empty and empty_answers == "mask":
        masked.update(empty)
        if not any(place >= first_target and place not in masked for place in answers):
            raise Rejected("empty_answer", "the assistant gives no answer in any message to train on")
    return Conversation(
        messages=tuple(messages),
        tools=tools_of(tools) if tools is not None else None,
        first_target=first_target,
        masked=frozenset(masked),
        weights={} if read is None else {place: weight for place, weight in read.weights.items() if weight},
        template_args=template_args or {},
        notes=notes if read is None else (*notes, *read.notes),
    )


def text_of(value: object, column: str) -> str:
    """The text in a column; Rejected where it is none."""
    if not isinstance(value, str):
        raise Rejected("bad_content", f"column {column!r} is {kind_of(value)}, not text")
    return whole_characters(value, f"column {column!r}")


class _Messages:
    """The messages of one conversation as they are read. weights: those other than 1, by place. first_target: as a place among these."""

    def __init__(self, messages: list[Message], first_target: int) -> None:
        self.messages = messages
        self.weights: dict[int, float] = {}
        self.notes: list[tuple[str, str]] = []
        self.first_target = self._raw_first_target = first_target

    def add(self, raw: object, place: int) -> None:
        """Adds what a raw message stands for: one message, several of tools, or more calls of the message before."""
        before = len(self.messages)
        self._add(raw, f"message {place}", may_join=place != self._raw_first_target)
        if place < self._raw_first_target:
            self.first_target += len(self.messages) - before - 1

    def _add(self, raw: object, where: str, *, may_join: bool) -> None:
        message, name = _with_role(raw, where)
        of_message = take_weight(message, where)
        for split in split_tool_results(message, where):
            of_parts, notes = _read(split, name, where)
            self.notes += notes
            weight = _same(of_message, of_parts, where)
            joins = may_join and name in _CALLING and bool(self.messages) and self.messages[-1]["role"] == "assistant"
            if joins:
                self._join(split, where, weight)
            else:
                self.messages.append(split)
            if weight is not None:
                self._weigh(split, weight, where)

    def _join(self, message: Message, where: str, weight: tuple[str, float] | None) -> None:
        """Adds calls that are a message of their own to the text or the calls that the assistant wrote right before them."""
        last = len(self.messages) - 1
        before = self.messages[last]
        if self.weights.get(last, 1.0) != (1.0 if weight is None else weight[1]):
            raise Rejected(
                "bad_weight", f"{where}: its loss weight is not that of the turn of the assistant that it goes on"
            )
        if "reasoning_content" in message and (before["content"] or before.get("tool_calls")):
            raise Rejected("bad_content", f"{where}: reasoning between a turn of the assistant and its tool calls")
        calls = [*(before.get("tool_calls") or ()), *message["tool_calls"]]  # type: ignore[misc]  # lists both
        self.messages[last] = {**before, **message, "content": before["content"], "tool_calls": calls}

    def _weigh(self, message: Message, weight: tuple[str, float], where: str) -> None:
        """Enters the loss weight of the last message."""
        name, number = weight
        role = str(message["role"])
        if role != "assistant":
            self.notes.append(hold_other_role(role, name, number, where))
            return
        self.notes.append(("loss weight", name))
        if number != 1:
            self.weights[len(self.messages) - 1] = number


def _with_role(raw: object, where: str) -> tuple[Message, str]:
    """A raw message without null keys, with its canonical role, and the role's name in the data."""
    raw = from_json_text(raw)
    if not isinstance(raw, dict):
        raise Rejected("bad_message", f"{where} is {kind_of(raw)}, not an object")
    # A null key is no key: templates take it for a value.
    message: Message = {str(key): plain(value) for key, value in raw.items() if value is not None}
    for theirs, ours in _ALIASES:
        if theirs in message and ours not in message:
            message[ours] = message.pop(theirs)
    if medium := next((key for key in MEDIA_COLUMNS if message.get(key)), None):
        raise Rejected("image_or_audio", f"{where}: {medium!r} holds what is not text; only text can be packed")
    role = message.get("role")
    if role is None:
        raise Rejected("bad_role", f"{where} has no role; its keys: {', '.join(message) or 'none'}")
    if not isinstance(role, str):
        raise Rejected("bad_role", f"{where}: the role is {kind_of(role)}, not text")
    canonical = canonical_role(role)
    if canonical is None:
        raise Rejected("bad_role", f"{where}: unknown role {role!r}")
    message["role"] = canonical
    return message, plain_role(role)


def _read(message: Message, name: str, where: str) -> tuple[tuple[str, float] | None, list[tuple[str, str]]]:
    """Turns content, calls and reasoning into their canonical forms; the loss weight of the parts, and notes on what nothing reads."""
    weight: tuple[str, float] | None = None
    notes: list[tuple[str, str]] = []
    if name in _CALLING and not isinstance(message.get("content"), list):
        spelled_calls(message, where)
    elif "function_call" in message and "tool_calls" not in message:
        # OpenAI's name for it when a turn had at most one.
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    if "tool_calls" in message:
        message["tool_calls"] = calls_of(message["tool_calls"], where)
    if isinstance(message.get("content"), list):
        parts = read_parts(message, where)
        message["content"] = parts.text
        weight, notes = parts.weight, parts.notes
        for key, value in (("tool_calls", parts.calls), ("reasoning_content", parts.reasoning)):
            if value and message.get(key):
                raise Rejected("bad_message", f"{where}: {key} among the parts of its content and beside it")
            if value:
                message[key] = value
    if message.get("tool_calls"):
        notes = [*notes, *unread_call_keys(message["tool_calls"])]
    else:
        message.pop("tool_calls", None)
    message["content"] = _text(message, where)
    _name_reasoning(message, where)
    return weight, notes


def _same(weight: tuple[str, float] | None, of_parts: tuple[str, float] | None, where: str) -> tuple[str, float] | None:
    if weight and of_parts and weight[1] != of_parts[1]:
        raise Rejected("bad_weight", f"{where}: {weight[0]} and {of_parts[0]} of its parts disagree")
    return weight or of_parts


def _name_reasoning(message: Message, where: str) -> None:
    """Reasoning under every name that templates read: `reasoning_content`, and `thinking` as gpt-oss has it."""
    named = {key: message[key] for key in ("reasoning_content", "thinking", "reasoning") if key in message}
    if not named:
        return
    for key, reasoning in named.items():
        if not isinstance(reasoning, str):
            raise Rejected("bad_content", f"{where}: its reasoning ({key}) is {kind_of(reasoning)}, not text")
    reasoning, *others = dict.fromkeys(named.values())
    if others:
        raise Rejected("bad_content", f"{where}: {' and '.join(named)} hold different texts")
    message["reasoning_content"] = message["thinking"] = reasoning


def _text(message: Message, where: str) -> str:
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            return ""
        raise Rejected("bad_content", f"{where}: content is null")
    if not isinstance(content, str):
        raise Rejected("bad_content", f"{where}: content is {kind_of(content)}, not text")
    return whole_characters(content, where)
