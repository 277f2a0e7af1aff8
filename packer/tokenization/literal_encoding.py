"""Encode a text in which some added tokens are only spelled, as when a user writes `</s>`: there they become text and not control tokens.

    encoder = LiteralEncoder(backend)
    encoder.encode("<s>[INST] a </s> b [/INST]", [(12, 16)])

A copy of the tokenizer knows each added token by another name of the same length, made of private-use characters. In the text, the tokens that are
real get those names; what is only spelled keeps its characters, which the copy does not know. Everything else is the tokenizer's own work in one
call, so its normalizer sees the sections that it always sees and offsets stay true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from packer.types import Int32Array, Int64Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Two planes of private use, one character per added token.
_FIRST_NAME = 0xF0000
_NAMES = 0x20000
_ANY_NAME = re.compile("[\U000f0000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """ids int32 [n]; starts, ends int64 [n]: each token's place in the text, in characters."""

    ids: Int32Array
    starts: Int64Array
    ends: Int64Array


class LiteralEncoder:
    """Encodes single texts; making one is cheap, the copy of the tokenizer is made when it is first needed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        decoder = backend.get_added_tokens_decoder()
        self._added = {token.content: token_id for token_id, token in decoder.items()}
        self._special = frozenset(token_id for token_id, token in decoder.items() if token.special)

    def encode(self, text: str, literal: Sequence[tuple[int, int]]) -> Encoded | None:
        """Encode one text in which the places [start, end) of `literal` only spell added tokens.

        Returns:
            The ids of the normal encoding where nothing is literal. None if that cannot be proved for this text, or if text would still become a
            control token: a special one, or one of those that stand in `literal`.
        """
        if _ANY_NAME.search(text) or len(self._added) > _NAMES:
            return None
        as_usual = self._by_copy(text, [match.span() for match in self._pattern.finditer(text)])
        if as_usual is None or as_usual[0] != self._backend.encode(text, add_special_tokens=False).ids:
            return None
        spelled = {self._added[text[start:end]] for start, end in literal if text[start:end] in self._added}
        result = self._by_copy(text, self._real(text, literal), forbidden=self._special | spelled)
        if result is None:
            return None
        ids, offsets = result
        places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        return Encoded(ids=np.array(ids, dtype=np.int32), starts=places[:, 0], ends=places[:, 1])

    def _real(self, text: str, literal: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where added tokens stand that no literal place touches, leftmost and longest first, as tokenizers match them."""
        taken_literally = np.zeros(len(text) + 1, dtype=bool)
        for start, end in literal:
            taken_literally[start:end] = True
        real = []
        at = 0
        while match := self._pattern.search(text, at):
            if taken_literally[match.start() : match.end()].any():
                # A real token may begin behind this one's first character: the next search finds it.
                at = match.start() + 1
            else:
                real.append(match.span())
                at = match.end()
        return real

    def _by_copy(
        self, text: str, real: Sequence[tuple[int, int]], forbidden: frozenset[int] = frozenset()
    ) -> tuple[list[int], list[tuple[int, int]]] | None:
        """The copy's ids (as the tokenizer's own) and offsets; None if it misses a real token or makes a forbidden id of text."""
        pieces, at = [], 0
        for start, end in real:
            pieces += [text[at:start], self._names[text[start:end]]]
            at = end
        encoding = self._copy.encode("".join((*pieces, text[at:])), add_special_tokens=False)
        own = [self._own_ids.get(token_id) for token_id in encoding.ids]
        if len(real) != sum(token_id is not None for token_id in own):
            return None
        if any(mine is None and token_id in forbidden for mine, token_id in zip(own, encoding.ids, strict=True)):
            return None
        ids = [token_id if mine is None else mine for mine, token_id in zip(own, encoding.ids, strict=True)]
        return ids, encoding.offsets

    @cached_property
    def _names(self) -> dict[str, str]:
        """Each added token's other name."""
        return {content: chr(_FIRST_NAME + number) * len(content) for number, content in enumerate(self._added)}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Any added token, the longest first. Some vocabularies have thousands: a look at the first character spares trying all at every place."""
        longest_first = sorted(self._added, key=len, reverse=True)
        first = "".join(sorted({re.escape(token[0]) for token in longest_first}))
        return re.compile(f"(?=[{first}])(?:{'|'.join(map(re.escape, longest_first))})" if longest_first else r"(?!)")

    @cached_property
    def _copy(self) -> Backend:
        """The tokenizer with its added tokens under their other names."""
        # The model is shared, not copied.
        copy = type(self._backend)(self._backend.model)
        copy.normalizer, copy.pre_tokenizer = self._backend.normalizer, self._backend.pre_tokenizer
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        copy.add_tokens(
            [
                type(token)(self._names[token.content], **{flag: getattr(token, flag) for flag in flags})
                for token in self._backend.get_added_tokens_decoder().values()
            ]
        )
        return copy

    @cached_property
    def _own_ids(self) -> dict[int, int]:
        """The copy's ids of added tokens → the tokenizer's. A token that stands in the model's vocabulary too has another id in the copy."""
        found = {self._copy.token_to_id(name): self._added[content] for content, name in self._names.items()}
        return {copied: own for copied, own in found.items() if copied is not None}
