"""Cells of data sets as plain JSON values: text that holds JSON decoded, values named for people.

>>> from_json_text('[{"role": "user"}]'), from_json_text('"[1]"'), from_json_text("hello")
([{'role': 'user'}], [1], 'hello')
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from packer.sources.rejected import Rejected

# JSON as a template sees it.
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Message = dict[str, Json]

# A cell of a JSON column holds JSON text, and the column's own encoding may put it into quotes once more.
_MOST_ENCODINGS = 2


def from_json_text(value: object, *, distinct_keys: bool = False) -> object:
    """Return the list or object that a text holds as JSON, encoded once or twice; any other value as it is.

    distinct_keys: whether a text in which an object has a key twice stays the text it is, as decoding would lose a value.
    """
    hook = _distinct if distinct_keys else None
    decoded = value
    for _ in range(_MOST_ENCODINGS):
        if not isinstance(decoded, str):
            break
        try:
            decoded = json.loads(decoded, object_pairs_hook=hook)
        except (ValueError, RecursionError):
            break
    return decoded if isinstance(decoded, list | dict) else value


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice in one object")
    return found


def plain(value: object) -> Json:
    """Return a value as plain JSON; a value that JSON does not know becomes text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def whole_characters(text: str, where: str) -> str:
    """Return the text; raise Rejected if it holds half a surrogate pair."""
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


def kind_of(value: object) -> str:
    """Name the kind of a value in a word for people."""
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
