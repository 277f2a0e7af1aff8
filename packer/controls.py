"""Text of the data that spells a control token (`<|im_end|>`): what is to be done with it, and how often it was met.

Anything a user, a system or a tool says is text: a turn delimiter in it would forge a turn. An assistant's `<think>` and `<tool_call>` are its own;
only turn delimiters, BOS and EOS are taken as text there.

    controls = Controls(tokenizer.special_added, delimiters={"<|im_start|>", "<|im_end|>"})
    controls.found(conversation)      # [("user", "<|im_end|>"), …]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from packer.conversation import Conversation, Json, Message
from packer.turns import literal_marks


class Controls:
    """The tokens that must not come out of what people say.

    special: the texts of the tokens that the tokenizer calls special. delimiters: what an assistant may not spell either: turn delimiters, BOS and EOS.
    Other added tokens (white space, HTML tags, `<think>` and `<tool_call>` of many tokenizers) are text and are left to the tokenizer.
    """

    def __init__(self, special: Iterable[str], *, delimiters: Iterable[str]) -> None:
        delimiters = frozenset(delimiters)
        self._any = _AnyOf({token for token in special if token.strip(" \t\n\r\u2581")} | delimiters)
        self._delimiter = _AnyOf(delimiters)

    def found(self, conversation: Conversation) -> list[tuple[str, str]]:
        """(role, token) for every control token that the conversation's texts spell; role "tools" for the definitions of tools."""
        found: list[tuple[str, str]] = []
        for message in conversation.messages:
            role = str(message["role"])
            pattern = self._pattern(role)
            for text in _texts_of(message):
                found += [(role, match.group()) for match in pattern.finditer(text)]
        found += [("tools", m.group()) for text in _texts(conversation.tools) for m in self._any.finditer(text)]
        return found

    def wrap(self, text: str, role: str) -> str:
        """The text with every control token that it spells between marks that say: take this literally."""
        return self._pattern(role).sub(literal_marks, text)

    def places(self, text: str, role: str) -> list[tuple[int, int]]:
        """Where in a text control tokens are spelled, [start, end)."""
        return [match.span() for match in self._pattern(role).finditer(text)]

    def _pattern(self, role: str) -> _AnyOf:
        return self._delimiter if role == "assistant" else self._any


class _AnyOf:
    """Matches the longest of the alternatives, as tokenizers do; nothing where there are none."""

    def __init__(self, alternatives: Iterable[str]) -> None:
        longest_first = sorted(alternatives, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # Nearly all control tokens begin with one of a few characters, which nearly no text holds: looking for those is far faster than matching.
        self._first = tuple(sorted({token[0] for token in longest_first}))

    def finditer(self, text: str) -> Iterable[re.Match[str]]:
        for first in self._first:
            if first in text:
                return self._pattern.finditer(text)
        return ()

    def sub(self, replace: Callable[[str], str], text: str) -> str:
        return self._pattern.sub(lambda match: replace(match.group()), text)


def _texts_of(message: Message) -> Iterator[str]:
    """Everything a message says but its role, keys of its own too, and its reasoning once, whatever names it has."""
    for key, value in message.items():
        if key == "content":
            yield str(value)
        elif key != "role":
            yield key
            if not (key == "thinking" and value == message.get("reasoning_content")):
                yield from _texts(value)


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
