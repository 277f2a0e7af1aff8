"""A row as it was read from a file, before anything is made of it.

>>> parsed(b'{"messages": []}')
{'messages': []}
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """One row as it was read. place: "chats.jsonl:1841" or "train_sft row 12". number: from 0 in its source. value: the row, or the bytes of its JSON,
    which whoever encodes it parses (`parsed`), or the NotJsonError that says why it has none. size: its share of its file, in bytes, where known.
    """

    number: int
    place: str
    value: object
    size: float = 0


class NotJsonError(Exception):
    """A row that cannot be read; says where in its text. reason: under which it is counted."""

    reason = "not_json"


class BadCellsError(NotJsonError):
    """A line of a table or of text that cannot be read."""

    reason = "bad_line"


class BlankLineError(NotJsonError):
    """A blank line of a text file: counted, and no loss."""

    reason = "blank_line"


def parsed(value: object) -> object:
    """What a row's value stands for; raises NotJsonError."""
    if isinstance(value, NotJsonError):
        raise value
    if not isinstance(value, bytes):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        # Its own words say "line 1" of every row, which people take for the file's.
        raise NotJsonError(f"{error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        # ValueError covers bad UTF-8; a line of ten thousand brackets ends in RecursionError.
        raise NotJsonError(str(error) or type(error).__name__) from None
