"""One part of a source → one part of the token store. This is what a worker does.

write = make_part_writer(EncodeSettings(tokenizer="data/sample/tiny-hybrid", ...))
write(RawPart(number=0, source=0, ...))          # tokens/part-00000.arrow
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packer.conversation import Rejected
from packer.encoders import make_encoder
from packer.parts import RawPart
from packer.readers import NotJsonError, parsed
from packer.render import Example, Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import load_tokenizer
from packer.tokens import PartHead, Reject, TokenPart, join_examples, part_name, sum_spelled, write_part

# As many rows are rendered and encoded in one go: enough for an encoder to be busy, few enough to stay in its caches.
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeSettings:
    """What a worker needs to make its own tokenizer and renderer. folder: where its parts go."""

    folder: Path
    tokenizer: str
    template: str
    template_date: datetime.date | None
    policies: Policies
    encoder: str


def make_part_writer(settings: EncodeSettings) -> Callable[[RawPart], int]:
    """Loads the tokenizer, compiles the template, probes it, and returns the function that writes parts."""
    tokenizer = load_tokenizer(settings.tokenizer)
    tokenizer.use(make_encoder(settings.encoder, tokenizer.backend))
    template = ChatTemplate(settings.template, special_tokens=tokenizer.special_tokens, date=settings.template_date)
    return part_writer(Renderer(tokenizer, template, settings.policies), settings.folder)


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
        for place, outcome in enumerate(_outcomes(renderer, raw.values[start : start + _ROWS_AT_ONCE]), start):
            if isinstance(outcome, Example):
                kept.append((place, outcome))
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
    part = join_examples(
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
        control_tokens=sum_spelled(example for _, example in kept),
        digest=part.digest(),
    )
    return head, part


def _outcomes(renderer: Renderer, values: Sequence[object]) -> list[Example | Rejected]:
    outcomes: dict[int, Example | Rejected] = {}
    rows: dict[int, object] = {}
    for place, value in enumerate(values):
        try:
            rows[place] = parsed(value)
        except NotJsonError as error:
            outcomes[place] = Rejected("not_json", str(error))
    outcomes.update(zip(rows, renderer.examples(list(rows.values())), strict=True))
    return [outcomes[place] for place in range(len(values))]
