"""One part of a source → one part of the token store. This is what a worker does.

write = make_part_writer(EncodeSettings(tokenizer="data/sample/tiny-hybrid", ...))
write(RawPart(number=0, source=0, ...))          # tokens/part-00000.arrow
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.chat.load_renderer import make_renderer
from packer.conversation import Rejected
from packer.encoders import make_encoder
from packer.parts import RawPart
from packer.render import Example, Policies, Renderer
from packer.sources.raw_row import NotJsonError, parsed
from packer.token_part import PartHead, Reject, TokenPart, part_name, write_part
from packer.tokenizer import load_tokenizer
from packer.types import Int32Array

# As many rows are rendered and encoded in one go: enough for an encoder to be busy, few enough to stay in its caches.
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeSettings:
    """What a worker needs to make its own tokenizer and renderer. folder: where its parts go. template_args: as JSON, since settings must be
    hashable."""

    folder: Path
    tokenizer: str
    templates: tuple[str, ...]
    template_date: datetime.date | None
    template_args: str
    policies: Policies
    encoder: str


def make_part_writer(settings: EncodeSettings) -> Callable[[RawPart], int]:
    """Loads the tokenizer, compiles the template, probes it, and returns the function that writes parts."""
    tokenizer = load_tokenizer(settings.tokenizer)
    tokenizer.use(make_encoder(settings.encoder, tokenizer.backend))
    renderer = make_renderer(
        tokenizer,
        settings.templates,
        settings.policies,
        date=settings.template_date,
        args=json.loads(settings.template_args),
    )
    return part_writer(renderer, settings.folder)


def part_writer(renderer: Renderer, folder: Path) -> Callable[[RawPart], int]:
    """The function that encodes a part with a renderer, writes it, and returns its number. Done twice, it writes the same bytes twice."""

    def write(raw: RawPart) -> int:
        head, part = encode_part(renderer, raw)
        write_part(folder / part_name(raw.number), head, part)
        return raw.number

    return write


def encode_part(renderer: Renderer, raw: RawPart) -> tuple[PartHead, TokenPart]:
    """The tokens of a part's rows, and what became of the others."""
    kept: list[tuple[int, Example]] = []
    rejects: list[Reject] = []
    for start in range(0, len(raw.values), _ROWS_AT_ONCE):
        for place, outcome in enumerate(outcomes(renderer, raw.values[start : start + _ROWS_AT_ONCE]), start):
            if not isinstance(outcome, Rejected):
                kept += [(place, example) for example in outcome]
                continue
            rejects.append(
                Reject(
                    source=raw.source,
                    row=raw.first_row + place,
                    place=raw.places[place],
                    reason=outcome.reason,
                    detail=outcome.detail,
                )
            )
    part = _joined_part(
        source=raw.source,
        rows=[raw.first_row + place for place, _ in kept],
        places=[raw.places[place] for place, _ in kept],
        examples=[example for _, example in kept],
    )
    head = PartHead(
        key=raw.key,
        source=raw.source,
        is_eval=raw.is_eval,
        first_row=raw.first_row,
        rows=len(raw.values),
        size=raw.size,
        rejects=tuple(rejects),
        control_tokens=_total(example.control_tokens for _, example in kept),
        notes=_total(example.notes for _, example in kept),
        digest=part.digest(),
    )
    return head, part


def outcomes(renderer: Renderer, values: Sequence[object]) -> list[tuple[Example, ...] | Rejected]:
    """What becomes of some rows' values (`RawRow.value`), in order."""
    found: dict[int, tuple[Example, ...] | Rejected] = {}
    rows: dict[int, object] = {}
    for place, value in enumerate(values):
        try:
            rows[place] = parsed(value)
        except NotJsonError as error:
            found[place] = Rejected(error.reason, str(error))
    found.update(zip(rows, renderer.all_examples(list(rows.values())), strict=True))
    return [found[place] for place in range(len(values))]


def _joined_part(*, source: int, rows: Sequence[int], places: Sequence[str], examples: Sequence[Example]) -> TokenPart:
    """One part of examples that were made one by one."""

    def joined(arrays: Iterable[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
        found = list(arrays)
        return np.concatenate(found) if found else np.zeros(0, dtype=dtype)

    def ends(sizes: Iterable[int]) -> Int32Array:
        return np.cumsum([0, *sizes]).astype(np.int32)

    mask = joined((example.loss_mask for example in examples), np.bool_)
    weights = None
    if any(example.loss_weights is not None for example in examples):
        own = (one.loss_mask if one.loss_weights is None else one.loss_weights for one in examples)
        weights = np.where(mask, np.concatenate([each.astype(np.float32) for each in own]), np.float32(0))
        weights = None if np.array_equal(weights, mask) else weights
    groups = [example.group_hash for example in examples if example.group_hash is not None]
    texts = [place.encode() for place in places]
    return TokenPart(
        source=source,
        rows=np.array(rows, dtype=np.int64),
        places=pa.Array.from_buffers(
            pa.string(), len(texts), [None, pa.py_buffer(ends(map(len, texts))), pa.py_buffer(b"".join(texts))]
        ),
        content_hash=np.array([example.content_hash for example in examples], dtype=np.uint64),
        supervised=np.array([np.count_nonzero(example.loss_mask) for example in examples], dtype=np.int32),
        offsets=ends(len(example.ids) for example in examples),
        ids=joined((example.ids for example in examples), np.int32),
        mask_bits=np.packbits(mask, bitorder="little"),
        turn_offsets=ends(len(example.turn_ends) for example in examples),
        turn_ends=joined((example.turn_ends for example in examples), np.int32),
        loss_weights=weights,
        group_hash=np.array(groups, dtype=np.uint64) if groups else None,
    )


def _total(counters: Iterable[Counter[tuple[str, str]]]) -> Counter[tuple[str, str]]:
    total: Counter[tuple[str, str]] = Counter()
    for counter in counters:
        if counter:
            total.update(counter)
    return total
