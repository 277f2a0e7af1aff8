"""Groups of rows that stand on one side of the eval split: rows with one value in a column, or with one first user message.

>>> column_group({"user": 7}, "user"), column_group({"user": "7"}, "user"), column_group({"user": None}, "user")
('7', '7', None)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import xxhash

from packer.chat.example import Example
from packer.conversation import Conversation, PlainText
from packer.sources.json_values import plain

FIRST_USER = "first-user"
NO_GROUP = "no value to --group-by (grouped by their own content)"


def group_of(row: object, said: Conversation | PlainText, group_by: str) -> str | None:
    """Return the text that a row shares with all rows of its group; None if it has none."""
    if group_by != FIRST_USER:
        return column_group(row, group_by)
    if isinstance(said, PlainText):
        return said.prompt or None
    return next((str(message["content"]) for message in said.messages if message["role"] == "user"), None)


def column_group(row: object, column: str) -> str | None:
    """Return a cell as text; None if nothing is in it."""
    value = plain(row.get(column)) if isinstance(row, Mapping) else None
    # A column of whole numbers with gaps becomes one of floats in many tools, and its gaps become NaN.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or value != value:
        return None
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def with_group(examples: tuple[Example, ...], group: str | None, group_by: str) -> tuple[Example, ...]:
    """Give the examples of one row the hash of its group, or of their content if it has none, which is counted in the notes of the first."""
    notes = examples[0].notes
    notes.pop(("unread column", group_by), None)
    if group is None:
        notes[NO_GROUP, group_by] += 1
        return tuple(replace(one, group_hash=one.content_hash) for one in examples)
    group_hash = xxhash.xxh3_64_intdigest(json.dumps(group).encode())
    return tuple(replace(one, group_hash=group_hash) for one in examples)
