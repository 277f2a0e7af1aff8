"""Contents that are lists of parts: texts, reasoning, tool calls and tool results of OpenAI, Anthropic and LLaMA-Factory.

>>> parts = [{"type": "reasoning", "value": "hm"}, {"type": "text", "text": "a"}]
>>> read_parts({"role": "assistant", "content": parts}, "message 1").reasoning
'hm'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from packer.sources.json_values import Json, Message, kind_of
from packer.sources.message_weights import take_weight
from packer.sources.rejected import Rejected
from packer.sources.tool_call_forms import CALL_KEYS, calls_of, wrapped_call

_MEDIA = ("image", "audio", "video")
# The keys that hold a part's text, by its type, in the order in which they are looked for.
_TEXTS = {
    "text": ("text", "value", "content"),
    "input_text": ("text", "value", "content"),
    "output_text": ("text", "value", "content"),
    "refusal": ("refusal", "text", "value"),
}
_REASONING = {
    "thinking": ("thinking", "text", "value", "content"),
    "reasoning": ("reasoning", "text", "value", "content"),
}
_CALLS = ("tool_use", "tool_call", "function_call")
_RESULTS = ("tool_result", "tool_response")
_RESULT_KEYS = ("content", "value", "text", "output")
_RESULT_IDS = ("tool_use_id", "tool_call_id")
# Parts are put together as templates print them: reasoning, then text, then calls.
_ORDER = ("reasoning", "text", "a tool call")


@dataclass(slots=True)
class Parts:
    """What the parts of one message hold. notes: keys of parts that nothing reads; weight: as `take_weight` gives it, of all parts alike."""

    text: str = ""
    reasoning: str = ""
    calls: list[Json] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    weight: tuple[str, float] | None = None


def split_tool_results(message: Message, where: str) -> list[Message]:
    """Split a message with tool results among its parts (Anthropic's way) into messages of tools, and of the rest, in order."""
    content = message.get("content")
    if not isinstance(content, list) or not any(_type_of(part) in _RESULTS for part in content):
        return [message]
    if message["role"] not in ("user", "tool"):
        raise Rejected("bad_content", f"{where}: a tool result inside a message of {message['role']!r}")
    split: list[Message] = []
    for part in content:
        if isinstance(part, dict) and _type_of(part) in _RESULTS:
            split.append(_tool_message(part, where))
        elif split and split[-1]["role"] == message["role"] and isinstance(split[-1]["content"], list):
            split[-1]["content"].append(part)
        else:
            split.append({**message, "content": [part]})
    return split


def _tool_message(part: dict[str, Json], where: str) -> Message:
    if part.get("is_error"):
        raise Rejected("bad_content", f"{where}: a tool result with is_error, which chat templates have no place for")
    message: Message = {"role": "tool", "content": ""}
    for name, keys in (("content", _RESULT_KEYS), ("tool_call_id", _RESULT_IDS), ("name", ("name",))):
        if (key := next((key for key in keys if part.get(key) is not None), None)) is not None:
            message[name] = part[key]
    return message


def read_parts(message: Message, where: str) -> Parts:
    """Read the list of parts that is a message's content.

    Raises:
        Rejected: "image_or_audio" and "bad_content", if a part is not text, reasoning or a tool call, or their order would change;
            "bad_weight", if parts have loss weights that differ.
    """
    content = message["content"]
    assert isinstance(content, list)
    parts = Parts()
    weights = []
    stage = 0
    for raw in content:
        if not isinstance(raw, str | dict):
            raise Rejected("bad_content", f"{where}: a part of the content is {kind_of(raw)}, not an object")
        named: Message = {"type": "text", "text": raw} if isinstance(raw, str) else raw
        part: Message = {key: value for key, value in named.items() if value is not None}
        weights.append(take_weight(part, where))
        kind, said = _add(parts, part, where)
        if said and kind < stage:
            raise Rejected(
                "bad_content",
                f"{where}: {_ORDER[kind]} behind {_ORDER[stage]}, an order that chat templates do not keep",
            )
        stage = max(stage, kind) if said else stage
    parts.weight = _common(weights, where)
    return parts


def _add(parts: Parts, part: dict[str, Json], where: str) -> tuple[int, bool]:
    """Add one part; its place in `_ORDER`, and whether it holds anything."""
    kind = _type_of(part)
    names = [kind, *part]
    if any(medium in name for name in names for medium in _MEDIA):
        raise Rejected("image_or_audio", f"{where}: a part of type {kind!r}; only text can be packed")
    if kind in _CALLS:
        inner = part.get("value", part.get(kind))
        # Under `value`, under its own type, or the part itself.
        itself: Json = {key: part[key] for key in CALL_KEYS if key in part}
        parts.calls += [wrapped_call(itself, where)] if inner is None else calls_of(inner, where)
        parts.notes += _unread(kind, part, CALL_KEYS if inner is None else ("value", kind))
        return 2, True
    keys = _TEXTS.get(kind) or _REASONING.get(kind)
    if keys is None:
        raise Rejected("bad_content", f"{where}: a part of type {kind!r}, which is not known; only text can be packed")
    key = next((key for key in keys if key in part), None)
    text = part.get(key) if key else None
    if not isinstance(text, str):
        raise Rejected("bad_content", f"{where}: a part of type {kind!r} without text; only text can be packed")
    parts.notes += _unread(kind, part, (key or "",))
    if kind in _TEXTS:
        parts.text += text
        return 1, bool(text.strip())
    parts.reasoning += text
    return 0, bool(text.strip())


def _unread(kind: str, part: Message, read: Sequence[str]) -> list[tuple[str, str]]:
    return [("unread key of a content part", f"{kind}.{name}") for name in part if name != "type" and name not in read]


def _type_of(part: Json) -> str:
    return str(part.get("type") or "text") if isinstance(part, dict) else ""


def _common(weights: Sequence[tuple[str, float] | None], where: str) -> tuple[str, float] | None:
    """The one weight of all parts; a part without one has 1."""
    given = {weight[1]: weight for weight in weights if weight}
    if len({1.0 if weight is None else weight[1] for weight in weights}) > 1:
        names = ", ".join(name for name, _ in given.values())
        raise Rejected("bad_weight", f"{where}: its parts differ in loss weight ({names}), and a message has one")
    return next(iter(given.values()), None)
