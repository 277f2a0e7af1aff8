"""From a row of somebody's data set to a conversation in one canonical form, or to a named reason why not.

Every row is judged by itself: nothing is inferred from the rows before it, and no row can end the build.

    >>> canonical({"messages": [{"role": "User ", "content": "hi"}, {"role": "assistant", "content": "ho", "tool_calls": None}]}, column="messages")
    [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'}]
"""

from __future__ import annotations

import json
from collections.abc import Mapping

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
}


class Rejected(Exception):  # noqa: N818  # a verdict, not an error
    """A conversation that does not go in. reason: a short name that is counted; detail: what was seen, for rejects.jsonl."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def canonical(row: object, *, column: str) -> list[Message]:
    """The messages of one row: roles by their usual names, text parts joined, null keys gone, tool arguments as objects.

    Raises Rejected with one of: not_an_object, no_messages, empty, bad_message, bad_role, bad_content, image_or_audio, no_answer, empty_answer.
    """
    if not isinstance(row, dict):
        raise Rejected("not_an_object", f"the row is {_kind(row)}, not an object")
    if row.get(column) is None:
        raise Rejected("no_messages", f"no column {column!r}; the row has: {', '.join(map(str, row)) or 'nothing'}")
    raw = row[column]
    if not isinstance(raw, list):
        raise Rejected("bad_message", f"{column!r} is {_kind(raw)}, not a list of messages")
    if not raw:
        raise Rejected("empty", f"{column!r} is an empty list")
    messages = [_message(message, place) for place, message in enumerate(raw)]
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        raise Rejected("no_answer", "no message of the assistant")
    for place, message in enumerate(messages):
        if message["role"] == "assistant" and not message.get("tool_calls") and not str(message["content"]).strip():
            raise Rejected("empty_answer", f"message {place}: the assistant says nothing")
    return messages


def _message(raw: object, place: int) -> Message:
    if not isinstance(raw, dict):
        raise Rejected("bad_message", f"message {place} is {_kind(raw)}, not an object")
    # Arrow gives every message every key that any message has, null where it had none; templates take a null for a value.
    message: Message = {str(key): _plain(value) for key, value in raw.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str):
        raise Rejected("bad_role", f"message {place} has no role; its keys: {', '.join(message) or 'none'}")
    known = _ROLES.get(role.strip().lower())
    if known is None:
        raise Rejected("bad_role", f"message {place}: unknown role {role!r}")
    message["role"] = known
    if "tool_calls" in message:
        calls = message["tool_calls"]
        if not isinstance(calls, list):
            raise Rejected("bad_message", f"message {place}: tool_calls is {_kind(calls)}, not a list")
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
        else:
            del message["tool_calls"]
    message["content"] = _content(message, place)
    return message


def _content(message: Message, place: int) -> str:
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            return ""
        raise Rejected("bad_content", f"message {place}: content is null")
    if isinstance(content, str):
        return _whole_characters(content, place)
    if not isinstance(content, list):
        raise Rejected("bad_content", f"message {place}: content is {_kind(content)}, not text")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            texts.append(str(part["text"]))
        else:
            kind = part.get("type", "unknown") if isinstance(part, dict) else _kind(part)
            raise Rejected("image_or_audio", f"message {place}: a part of type {kind!r}; only text can be packed")
    return _whole_characters("".join(texts), place)


def _whole_characters(text: str, place: int) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Rejected(
            "bad_content",
            f"message {place}: half a surrogate pair at character {error.start}, which no tokenizer can encode",
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
    except json.JSONDecodeError:
        return call
    return {**call, "arguments": parsed} if isinstance(parsed, dict) else call


def _plain(value: object) -> Json:
    """A value as plain JSON, null keys gone at every depth; what JSON does not know is written as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _kind(value: object) -> str:
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
