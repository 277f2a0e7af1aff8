"""The tokens that a tokenizer's own call puts around a text, read from the tokenizer once, before that is turned off.

>>> from tokenizers import Tokenizer, models, processors
>>> backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
>>> backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
>>> outer_tokens(backend, bos_id=0, bos_text="<s>", eos_id=1)
OuterTokens(before=(0,), after=(1,), bos_text='<s>')
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterTokens:
    """before: ids in front of a text. after: ids behind it, and an EOS where the tokenizer adds none. bos_text: of the BOS, if it is the last of `before`."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    bos_text: str | None


def outer_tokens(backend: Backend, *, bos_id: int | None, bos_text: str | None, eos_id: int | None) -> OuterTokens:
    """Return what the backend, with its post-processor, adds to a text."""
    encoding = backend.encode("a")
    added = list(zip(encoding.ids, encoding.special_tokens_mask, strict=True))
    before = tuple(token_id for token_id, _ in takewhile(lambda one: one[1], added))
    after = tuple(token_id for token_id, _ in takewhile(lambda one: one[1], reversed(added)))[::-1]
    if eos_id is not None and after[-1:] != (eos_id,):
        after += (eos_id,)
    return OuterTokens(before=before, after=after, bos_text=bos_text if before[-1:] == (bos_id,) else None)
