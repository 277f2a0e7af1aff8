"""One slice of raw rows → one slice of tokens and the verdicts on what did not become tokens. This is what a worker does.

encode = make_slice_encoder(EncodeSettings(tokenizer="data/sample/tiny-hybrid", ...))
slice_ = encode(RawSlice(source=0, is_eval=False, rows=rows))
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import xxhash

from packer.conversation import Rejected
from packer.encoders import make_encoder
from packer.readers import NotJsonError, RawRow, parsed
from packer.render import Example, Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import load_tokenizer
from packer.tokens import TokenSlice, join_examples


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeSettings:
    """What a worker needs to make its own tokenizer and renderer."""

    tokenizer: str
    template: str
    template_date: datetime.date | None
    policies: Policies
    eval_fraction: Fraction
    encoder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSlice:
    """Some rows of one source, in order. is_eval: the whole source belongs to the eval split. weight: copies of each conversation."""

    source: int
    is_eval: bool
    rows: Sequence[RawRow]
    weight: Fraction = Fraction(1)
    seed: int = 0

    @property
    def size(self) -> float:
        """Bytes of the source that these rows are, where known."""
        return sum(row.size for row in self.rows)

    def copies(self, row: int) -> int:
        """How many copies of a row go in: the whole part of the weight, and one more for a share of the rows drawn by seed, source and row."""
        whole, rest = divmod(self.weight, 1)
        drawn = xxhash.xxh3_64_intdigest(f"{self.seed}:{self.source}:{row}".encode()) < int(rest * 2**64)
        return int(whole) + drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A row that did not become tokens."""

    source: int
    row: int
    place: str
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedSlice:
    """places: for people, one a conversation in `tokens`. control_tokens: (role, token) → how often the texts spelled it. size: of the raw rows."""

    tokens: TokenSlice
    places: tuple[str, ...]
    rejects: tuple[Reject, ...]
    control_tokens: Counter[tuple[str, str]]
    size: float


def make_slice_encoder(settings: EncodeSettings) -> Callable[[RawSlice], EncodedSlice]:
    """Loads the tokenizer, compiles the template, probes it, and returns the function that encodes slices."""
    tokenizer = load_tokenizer(settings.tokenizer)
    tokenizer.use(make_encoder(settings.encoder, tokenizer.backend))
    template = ChatTemplate(settings.template, special_tokens=tokenizer.special_tokens, date=settings.template_date)
    renderer = Renderer(tokenizer, template, settings.policies)
    return slice_encoder(renderer, settings.eval_fraction)


def slice_encoder(renderer: Renderer, eval_fraction: Fraction) -> Callable[[RawSlice], EncodedSlice]:
    """The function that encodes slices with a renderer."""
    # A hash below this belongs to the eval split: equal conversations have equal hashes, so no duplicate stands on both sides.
    eval_below = int(eval_fraction * 2**64)

    def encode(raw: RawSlice) -> EncodedSlice:
        values: dict[int, object] = {}
        faults: dict[int, Rejected] = {}
        for row in raw.rows:
            try:
                values[row.number] = parsed(row)
            except NotJsonError as error:
                faults[row.number] = Rejected("not_json", str(error))
        outcomes = {**faults, **dict(zip(values, renderer.examples(list(values.values())), strict=True))}
        kept: list[tuple[RawRow, Example]] = []
        rejects = []
        spelled: Counter[tuple[str, str]] = Counter()
        for row in raw.rows:
            outcome = outcomes[row.number]
            if isinstance(outcome, Rejected):
                rejects.append(
                    Reject(
                        source=raw.source, row=row.number, place=row.place, reason=outcome.reason, detail=outcome.detail
                    )
                )
            else:
                kept.append((row, outcome))
                spelled += outcome.control_tokens
        tokens = join_examples(
            source=raw.source,
            rows=[row.number for row, _ in kept],
            is_eval=[raw.is_eval or example.content_hash < eval_below for _, example in kept],
            copies=[raw.copies(row.number) for row, _ in kept],
            examples=[example for _, example in kept],
        )
        places = tuple(row.place for row, _ in kept)
        return EncodedSlice(tokens=tokens, places=places, rejects=tuple(rejects), control_tokens=spelled, size=raw.size)

    return encode
