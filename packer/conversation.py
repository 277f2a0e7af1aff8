"""Messages in one canonical form, or a named reason why not: whatever wire format they came in, a template sees the same.

>>> conversation([{"role": "User ", "content": "hi"}, {"role": "assistant", "content": "ho", "tool_calls": None}]).messages
({'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from packer.answers import says_nothing_but_thoughts
from packer.words import EmptyAnswers

# JSON as a template sees it.
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Message = dict[str, Json]

_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
    # What LLaMA-Factory calls a turn of the assistant whose text is the JSON of its calls.
    "function_call": "assistant",
}

_CANONICAL = frozenset(_ROLES.values())
# Of a message, under the names that ShareGPT has for them.
_ALIASES = (("from", "role"), ("value", "content"))
_TEXT_PARTS = ("text", "input_text", "output_text")
_MEDIA = ("image", "audio", "video")


class Rejected(Exception):  # noqa: N818  # a verdict, not an error
    """A conversation that does not go in. reason: a short name that is counted; detail: what was seen, for rejects.jsonl."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


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
    raw: object, *, tools: object = None, first_target: int = 0, empty_answers: EmptyAnswers = "drop"
) -> Conversation:
    """A list of raw messages as a conversation, or Rejected with why not."""
    if not isinstance(raw, list):
        raise Rejected("bad_message", f"the messages are {kind_of(raw)}, not a list")
    if not raw:
        raise Rejected("empty", "the list of messages is empty")
    messages = tuple(_message(message, place) for place, message in enumerate(raw))
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers or answers[-1] < first_target:
        raise Rejected("no_answer", "no message of the assistant to train on")
    empty = [
        place
        for place in answers
        if not messages[place].get("tool_calls") and says_nothing_but_thoughts(str(messages[place]["content"]))
    ]
    if empty and empty_answers == "drop":
        raise Rejected("empty_answer", f"message {empty[0]}: the assistant says nothing")
    if empty_answers == "mask" and not any(place >= first_target and place not in empty for place in answers):
        raise Rejected("empty_answer", "the assistant says nothing in any message to train on")
    return Conversation(
        messages=messages,
        tools=_tools(tools),
        first_target=first_target,
        masked=frozenset(empty) if empty_answers == "mask" else frozenset(),
    )


def text_of(value: object, column: str) -> str:
    """The text in a column; Rejected where it is none."""
    if not isinstance(value, str):
        raise Rejected("bad_content", f"column {column!r} is {kind_of(value)}, not text")
    return _whole_characters(value, f"column {column!r}")


def _tools(tools: object) -> Json:
    """Tool definitions: a list, or JSON text that holds one."""
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise Rejected("bad_message", f"tools is text, but not JSON: {error or 'nested too deeply'}") from None
    if not tools:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_message", f"tools is {kind_of(tools)}, not a list")
    return [_plain(tool) for tool in tools]


def _message(raw: object, place: int) -> Message:
    if type(raw) is dict and len(raw) == 2:
        # Nearly every message: a known role and a text, which leave nothing to mend.
        known, text = raw.get("role"), raw.get("content")
        if type(text) is str and type(known) is str and known in _CANONICAL:
            if not text.isascii():
                _whole_characters(text, f"message {place}")
            return raw
    if not isinstance(raw, dict):
        raise Rejected("bad_message", f"message {place} is {kind_of(raw)}, not an object")
    # A null key is no key: templates take it for a value.
    message: Message = {str(key): _plain(value) for key, value in raw.items() if value is not None}
    for theirs, ours in _ALIASES:
        if theirs in message and ours not in message:
            message[ours] = message.pop(theirs)
    role = message.get("role")
    if role is None:
        raise Rejected("bad_role", f"message {place} has no role; its keys: {', '.join(message) or 'none'}")
    if not isinstance(role, str):
        raise Rejected("bad_role", f"message {place}: the role is {kind_of(role)}, not text")
    name = role.strip().lower()
    if name not in _ROLES:
        raise Rejected("bad_role", f"message {place}: unknown role {role!r}")
    message["role"] = _ROLES[name]
    if name == "function_call":
        message["tool_calls"] = _spelled_calls(message.pop("content", None), place)
    elif "function_call" in message and "tool_calls" not in message:
        # OpenAI's name for it when a turn had at most one.
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    _canonical_calls(message, place)
    message["content"] = _content(message, place)
    _name_reasoning(message, place)
    return message


def _spelled_calls(text: Json, place: int) -> Json:
    """The calls that the text of a turn is the JSON of: one, or a list."""
    try:
        calls = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        calls = None
    if not isinstance(calls, dict | list) or not calls:
        raise Rejected("bad_message", f"message {place}: a function call that is not the JSON of one")
    return calls if isinstance(calls, list) else [calls]


def _canonical_calls(message: Message, place: int) -> None:
    """Tool calls as a list of objects; no key where there are none."""
    if "tool_calls" not in message:
        return
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise Rejected("bad_message", f"message {place}: tool_calls is {kind_of(calls)}, not a list")
    for call in calls:
        inner = call.get("function", call) if isinstance(call, dict) else call
        if not isinstance(inner, dict):
            raise Rejected("bad_message", f"message {place}: a tool call is {kind_of(inner)}, not an object")
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    else:
        del message["tool_calls"]


def _name_reasoning(message: Message, place: int) -> None:
    """Reasoning under every name that templates read: `reasoning_content`, and `thinking` as gpt-oss has it."""
    keys = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[key] for key in keys if message.get(key) is not None), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise Rejected("bad_content", f"message {place}: its reasoning is {kind_of(reasoning)}, not text")
        message["reasoning_content"] = reasoning
        message.setdefault("thinking", reasoning)


def _content(message: Message, place: int) -> str:
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            return ""
        raise Rejected("bad_content", f"message {place}: content is null")
    if isinstance(content, str):
        return _whole_characters(content, f"message {place}")
    if not isinstance(content, list):
        raise Rejected("bad_content", f"message {place}: content is {kind_of(content)}, not text")
    texts = [_text_of_part(part, place) for part in content]
    return _whole_characters("".join(texts), f"message {place}")


def _text_of_part(part: Json, place: int) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Rejected("bad_content", f"message {place}: a part of the content is {kind_of(part)}, not an object")
    kind = part.get("type") or "text"
    named = [str(kind), *(key for key, value in part.items() if value is not None)]
    if any(medium in name for name in named for medium in _MEDIA):
        raise Rejected("image_or_audio", f"message {place}: a part of type {kind!r}; only text can be packed")
    text = part.get("text")
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise Rejected("bad_content", f"message {place}: a part of type {kind!r} without text; only text can be packed")
    return text


def _whole_characters(text: str, where: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Rejected(
            "bad_content",
            f"{where}: half a surrogate pair at character {error.start}, which no tokenizer can encode",
        ) from None
    return text


def _tool_call(call: Json) -> Json:
    """Arguments as an object where a string spells one: the wire format of OpenAI writes a string, templates iterate a mapping."""
    if not isinstance(call, dict):
        return call
    call = dict(call)
    function = call.get("function")
    if isinstance(function, dict):
        call["function"] = _with_object_arguments(function)
        return call
    return _with_object_arguments(call)


def _with_object_arguments(call: dict[str, Json]) -> dict[str, Json]:
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "arguments": parsed} if isinstance(parsed, dict) else call


def _plain(value: object) -> Json:
    """A value as plain JSON; what JSON does not know is written as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def kind_of(value: object) -> str:
    """What a value is, in a word for people."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)
