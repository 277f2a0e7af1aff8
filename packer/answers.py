"""What an answer's text says: the thoughts that it begins with, and whether anything else can be seen.

>>> split_thoughts("<think>hm</think>Yes."), says_nothing_but_thoughts("hm</think> \\u200b")
(('hm', 'Yes.'), True)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping


def says_nothing(text: str) -> bool:
    """Whether nothing of a text can be seen: it is white space and characters without a width, such as U+200B."""
    return all(one.isspace() or unicodedata.category(one) in ("Cc", "Cf") for one in text)


def says_nothing_but_thoughts(text: str) -> bool:
    """Likewise, of what stands behind the thoughts that an answer begins with."""
    # Nearly every answer.
    if text[:1].isalnum() and "</think>" not in text:
        return False
    split = split_thoughts(text)
    return says_nothing(text if split is None else split[1])


def split_thoughts(text: str) -> tuple[str, str] | None:
    """The thoughts that an answer begins with, closed by `</think>` and with or without the tag that opens them, and what stands behind; None where it
    begins with none. A closing tag amid a line that no tag opened is one that the answer speaks of.
    """
    before, closed, answer = text.partition("</think>")
    thoughts = before.lstrip().removeprefix("<think>")
    opened = thoughts != before.lstrip()
    if not closed or "<think>" in thoughts or not (opened or answer.startswith("\n") or says_nothing(answer)):
        return None
    return thoughts, answer


def thinks(message: Mapping[str, object]) -> bool:
    """Whether a message of the assistant has reasoning that can be seen, in its text or beside it."""
    split = split_thoughts(str(message["content"]))
    return any(not says_nothing(str(one)) for one in (message.get("reasoning_content", ""), split[0] if split else ""))
