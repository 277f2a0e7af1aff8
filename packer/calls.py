"""Tool calls with a mark in each, so that it shows where a template writes them.

A template repeats a tool's name in the tool's answer (as gpt-oss's does), but not the call's arguments: the mark goes there.

    >>> mark_calls([{"name": "weather", "arguments": {"days": 2, "city": "Oslo"}}], "*")
    [{'name': 'weather', 'arguments': {'days': 2, 'city': '*Oslo'}}]
"""

from __future__ import annotations

from packer.conversation import Json


def mark_calls(calls: Json, mark: str, *, first: str = "") -> list[Json] | None:
    """Tool calls with a mark in each, and `first` before the mark in the first of them; None where a call has no place for one."""
    if not isinstance(calls, list):
        return []
    marked: list[Json] = []
    for call in calls:
        marked.append(_mark_call(call, first + mark))
        if marked[-1] == call:
            return None
        first = ""
    return marked


def before_text(text: str, mark: str) -> str:
    """The text with a mark before its first character that no template strips; as it was where it has none."""
    front = len(text) - len(text.lstrip())
    return text[:front] + mark + text[front:] if text[front:] else text


def around_text(text: str, opening: str, closing: str) -> str:
    """The text with marks around what of it no template strips; as it was where that is nothing."""
    end = len(text.rstrip())
    front = len(text) - len(text.lstrip())
    return f"{text[:front]}{opening}{text[front:end]}{closing}{text[end:]}" if end else text


def _mark_call(call: Json, mark: str) -> Json:
    """A tool call marked in its first argument that is text, else in the name of its first argument; in its own name where it has none."""
    if not isinstance(call, dict):
        return call
    inner = call.get("function", call)
    if not isinstance(inner, dict):
        return call
    arguments = _mark_first_text(inner.get("arguments"), mark)
    if arguments == inner.get("arguments") and isinstance(arguments, dict) and arguments:
        (name, value), *others = arguments.items()
        arguments = dict([(mark + name, value), *others])
    if arguments != inner.get("arguments"):
        marked = {**inner, "arguments": arguments}
    elif isinstance(inner.get("name"), str):
        marked = {**inner, "name": mark + str(inner["name"])}
    else:
        return call
    return {**call, "function": marked} if inner is not call else marked


def _mark_first_text(value: Json, mark: str) -> Json:
    if isinstance(value, str):
        return before_text(value, mark)
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, item in items:
        marked = _mark_first_text(item, mark)
        if marked != item:
            copied: Json = dict(value) if isinstance(value, dict) else list(value)  # type: ignore[arg-type]
            copied[key] = marked  # type: ignore[index]
            return copied
    return value
