"""Tool calls and tool definitions in the forms that data sets have them, as the one that templates read.

>>> wrapped_call({"name": "f", "arguments": '{"x": 1}'}, "message 1")
{'type': 'function', 'function': {'name': 'f', 'arguments': {'x': 1}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from packer.answers import split_thoughts
from packer.sources.json_values import Json, Message, from_json_text, kind_of, plain
from packer.sources.rejected import Rejected

# Under what a call has its arguments; the others are Anthropic's, Llama's and LangChain's.
_ARGUMENTS = ("arguments", "input", "parameters", "args")
CALL_KEYS = ("id", "name", *_ARGUMENTS)
# Of a call in its one form, and of the function in it.
_CALL_READ = ("id", "type", "function", "index")
_FUNCTION_READ = ("name", "arguments")


class ParsedArguments(dict[str, Json]):
    """Arguments of a call, decoded from the JSON text that the data has. text: that text."""

    __slots__ = ("text",)

    def __init__(self, arguments: dict[str, Json], text: str) -> None:
        super().__init__(arguments)
        self.text = text


def with_text_arguments(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the arguments of every tool call as JSON text, as OpenAI's wire format has them.

    The text is the data's own where it had one. Some templates concatenate it and fail on an object.
    """
    return tuple(
        {**message, "tool_calls": [_with_text(call) for call in calls]}
        if isinstance(calls := message.get("tool_calls"), list)
        else message
        for message in messages
    )


def _with_text(call: Json) -> Json:
    if not isinstance(call, dict):
        return call
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _with_text(function)}
    arguments = call.get("arguments")
    if arguments is None or isinstance(arguments, str):
        return call
    text = arguments.text if isinstance(arguments, ParsedArguments) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": text}


def calls_of(value: Json, where: str) -> list[Json]:
    """Return the calls in a value: a list of them, one alone, or JSON text of either."""
    decoded = from_json_text(value, distinct_keys=True)
    if isinstance(decoded, dict):
        decoded = [decoded]
    if not isinstance(decoded, list):
        raise Rejected(
            "bad_message",
            f"{where}: its tool calls are {kind_of(value)}, not a list, nor JSON text of one with every key once",
        )
    return [wrapped_call(call, where) for call in decoded]


def wrapped_call(value: Json, where: str) -> Json:
    """Return one call as {"type": "function", "function": {"name", "arguments"}}, its arguments as an object where they are JSON text of one."""
    call = from_json_text(value, distinct_keys=True)
    if not isinstance(call, dict):
        raise Rejected("bad_message", f"{where}: a tool call is {kind_of(call)}, not an object")
    if "function" in call:
        function = from_json_text(call["function"], distinct_keys=True)
        if not isinstance(function, dict):
            raise Rejected("bad_message", f"{where}: the function of a tool call is {kind_of(function)}, not an object")
        return {**call, "function": _with_object_arguments(function)}
    if not isinstance(call.get("name"), str):
        raise Rejected("bad_message", f"{where}: a tool call without a name; its keys: {', '.join(call) or 'none'}")
    key = next((key for key in _ARGUMENTS if key in call), None)
    function = {"name": call["name"]} if key is None else {"name": call["name"], "arguments": call[key]}
    outer = {name: item for name, item in call.items() if name not in ("type", "name", key)}
    return {**outer, "type": "function", "function": _with_object_arguments(function)}


def _with_object_arguments(function: dict[str, Json]) -> dict[str, Json]:
    """Decode arguments: the wire format of OpenAI has a string, templates iterate a mapping."""
    arguments = function.get("arguments")
    decoded = from_json_text(arguments, distinct_keys=True)
    if not isinstance(arguments, str) or not isinstance(decoded, dict):
        return function
    return {**function, "arguments": ParsedArguments(decoded, arguments)}


def spelled_calls(message: Message, where: str) -> None:
    """Read the calls that the text of a turn is the JSON of: one, or a list; reasoning may stand before them."""
    text = message.pop("content", None)
    if isinstance(text, str) and (split := split_thoughts(text)) is not None:
        message.setdefault("reasoning_content", split[0].strip("\n"))
        text = split[1]
    calls = from_json_text(text, distinct_keys=True)
    if not isinstance(calls, dict | list) or not calls:
        raise Rejected("bad_message", f"{where}: a function call that is not the JSON of one with every key once")
    message["tool_calls"] = calls


def unread_call_keys(calls: Json) -> Iterator[tuple[str, str]]:
    """Yield a note per key of calls, as `calls_of` gives them, that no template prints."""
    for call in calls if isinstance(calls, list) else ():
        assert isinstance(call, dict)
        function = call["function"]
        assert isinstance(function, dict)
        for keys, read in ((call, _CALL_READ), (function, _FUNCTION_READ)):
            yield from (("unread key of a tool call", key) for key in keys if key not in read and keys[key] is not None)


def tools_of(value: object) -> Json:
    """Return tool definitions as a list of objects, from a list of objects or of JSON texts, or from one JSON text; None for no tools."""
    if isinstance(value, str) and not value.strip():
        return None
    tools = from_json_text(value)
    if isinstance(tools, str):
        raise Rejected("bad_message", "tools is text, but not JSON of a list of tools")
    if not tools:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_message", f"tools is {kind_of(tools)}, not a list")
    return [_definition(tool) for tool in tools]


def _definition(value: object) -> Json:
    tool = plain(from_json_text(value))
    if not isinstance(tool, dict):
        raise Rejected("bad_message", f"a tool is {kind_of(tool)}, not an object")
    if isinstance(function := from_json_text(tool.get("function")), dict):
        return {**tool, "function": _with_schema(function)}
    return _with_schema(tool)


def _with_schema(function: dict[str, Json]) -> dict[str, Json]:
    """Decode a schema, and its properties, where they are JSON text."""
    parameters = from_json_text(function.get("parameters"))
    if not isinstance(parameters, dict):
        return function
    if isinstance(parameters.get("properties"), str):
        parameters = {**parameters, "properties": from_json_text(parameters["properties"])}
    return {**function, "parameters": plain(parameters)}
