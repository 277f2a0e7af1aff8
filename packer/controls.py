"""Text of the data that spells a control token (`<|im_end|>`): what is to be done with it, and how often it was met.

Anything a user, a system or a tool says is text: a turn delimiter in it would forge a turn. An assistant's `<think>` and `<tool_call>` are its own;
only turn delimiters, BOS and EOS are taken as text there.

    controls = Controls(tokenizer.added_tokens.values(), delimiters={"<|im_start|>", "<|im_end|>"})
    controls.found(conversation)      # [("user", "<|im_end|>"), …]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from packer.conversation import Conversation, Json
from packer.marks import literal_marks

Policy = Literal["split", "reject", "keep"]


class Controls:
    """The tokens that must not come out of what people say.

    added: the texts of all added tokens. delimiters: those of them that an assistant may not spell either.
    """

    def __init__(self, added: Iterable[str], *, delimiters: Iterable[str]) -> None:
        self._any = _any_of(added)
        self._delimiter = _any_of(delimiters)

    def found(self, conversation: Conversation) -> list[tuple[str, str]]:
        """(role, token) for every control token that the conversation's texts spell; role "tools" for the definitions of tools."""
        places = [(str(message["role"]), text) for message in conversation.messages for text in _texts(message)]
        places += [("tools", text) for text in _texts(conversation.tools)]
        return [(role, match.group()) for role, text in places for match in self._pattern(role).finditer(text)]

    def wrap(self, text: str, role: str) -> str:
        """The text with every control token that it spells between marks that say: take this literally."""
        return self._pattern(role).sub(lambda match: literal_marks(match.group()), text)

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Where in a plain text control tokens are spelled, [start, end)."""
        return (match.span() for match in self._any.finditer(text))

    def _pattern(self, role: str) -> re.Pattern[str]:
        return self._delimiter if role == "assistant" else self._any


def _any_of(alternatives: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the alternatives, as tokenizers do; nothing where there are none."""
    return re.compile("|".join(re.escape(token) for token in sorted(alternatives, key=len, reverse=True)) or r"(?!)")


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "role":
                yield from _texts(item)
