"""`packer build --dry-run`: what would be read, how a conversation would be learnt, and an estimate from a few rows that are really encoded.

    seen = foresee(BuildConfig(datasets=("chats.jsonl",), tokenizer="path/to/tokenizer", out=Path("data/packed")))
    seen.estimate.tokens, seen.sampled.rows

Nothing is written, and of a file no more than its first rows is read. A data set on the hub would have to be fetched whole, so nothing is
estimated where there is one. Everything is extrapolated by bytes, which every row of a file has its share of.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from packer import source as sources
from packer.chat.load_renderer import make_renderer
from packer.config import BuildConfig
from packer.conversation import Rejected
from packer.encode import outcomes
from packer.encoders import EncoderDiffersError, reference
from packer.formats import Layout
from packer.inputs import Found, find, template_lines
from packer.intake import nested
from packer.overlong import effective_policy
from packer.probe import messages
from packer.readers import rows_of, size_of, stored_size
from packer.render import Example, Renderer
from packer.schema import position_dtype
from packer.show import Piece, control_texts, pieces
from packer.source import SourceSpec
from packer.sources.chosen_splits import line_about
from packer.sources.raw_row import RawRow

# Of all sources together: a second or two with any encoder.
_ROWS_SAMPLED = 512
_SOURCES_SAMPLED = 32
# Encoded once more, and only that is timed, so that what is loaded on first use is not.
_WARM_UP = 8
# Id and bit of the mask of a token.
_BYTES_A_TOKEN = 4 + 1 / 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSeen:
    """bytes: as it lies there. rows: where its file or its page on the hub says, or where it has no more than were encoded; None where it would have to be read. sampled: rows
    encoded."""

    name: str
    split: str
    weight: Fraction
    is_eval: bool
    on_hub: bool
    bytes: int | None
    rows: int | None
    sampled: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """The first rows of a source; whole: there are no more."""

    rows: tuple[RawRow, ...]
    whole: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What was encoded: rows, and bytes of their files; conversations left out by reason; tokens that would go in, targets among them, copies not
    counted; seconds on one core.
    """

    rows: int
    bytes: float
    left_out: Counter[str]
    tokens: int
    supervised: int
    seconds: float
    notes: Mapping[str, Mapping[str, int]]
    is_all: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Of the whole build, if the rest is like the sample. exact: of the conversations and tokens, where the sample is all there is. rows: the fewest
    that hold the tokens. seconds: of tokenizing, on one core."""

    exact: bool
    conversations: int
    tokens: int
    rows: int
    shard_bytes: int
    store_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Foresight:
    """not_read: lines about what would not be read. remarks: about the template. probe: the probe conversation as it would be learnt; controls: texts of all control tokens. estimate: None, and `unknown` says why."""

    sources: tuple[SourceSeen, ...]
    not_read: tuple[str, ...]
    remarks: tuple[str, ...]
    tokenizer: str
    vocabulary: int
    encoder: str
    probe: tuple[Piece, ...]
    controls: frozenset[str]
    sampled: Sample
    estimate: Estimate | None
    unknown: str


def foresee(config: BuildConfig) -> Foresight:
    """Raises UserError on what a build would refuse before it begins."""
    found = find(config)
    taken = _take(config, found)
    sample = _encode(config, found, taken)
    seen = tuple(_seen(spec, one) for spec, one in zip(found.sources, taken, strict=True))
    estimate, unknown = _estimate(config, found.sources, seen, sample)
    return Foresight(
        sources=seen,
        not_read=(*found.not_read, *(line_about(one, count=False) for one in found.left_out)),
        remarks=template_lines(config, found.renderer),
        tokenizer=found.tokenizer.name,
        vocabulary=found.tokenizer.vocab_size,
        encoder=f"{found.encoder.name} ({found.encoder.reason})",
        probe=_probe(config, found),
        controls=control_texts(found.tokenizer),
        sampled=sample,
        estimate=estimate,
        unknown=unknown,
    )


def _probe(config: BuildConfig, found: Found) -> tuple[Piece, ...]:
    """The probe conversation under the policies asked for, whatever columns the data has."""
    policies = replace(config.policies, layout=Layout())
    renderer = make_renderer(
        found.tokenizer, found.templates, policies, date=config.template_date, args=config.template_args
    )
    example = renderer.examples([{"messages": messages()}])[0]
    return tuple(pieces(found.tokenizer, example.ids, example.loss_mask)) if isinstance(example, Example) else ()


def _take(config: BuildConfig, found: Found) -> list[_Taken]:
    """Some rows of each source; of many sources, of some that lie evenly among them."""
    files = [place for place, spec in enumerate(found.sources) if spec.file]
    chosen = set(files[:: max(1, math.ceil(len(files) / _SOURCES_SAMPLED))])
    each = max(1, _ROWS_SAMPLED // max(len(chosen), 1))
    taken = []
    for place, spec in enumerate(found.sources):
        if place not in chosen:
            taken.append(_Taken(rows=(), whole=False))
            continue
        rows = list(itertools.islice(sources.read(spec, config.policies.layout.columns), each + 1))
        taken.append(_Taken(rows=tuple(rows[:each]), whole=len(rows) <= each))
    return taken


def _encode(config: BuildConfig, found: Found, taken: Sequence[_Taken]) -> Sample:
    rows = [row for one in taken for row in one.rows]
    values = [row.value for row in rows]
    try:
        made, seconds = _timed(found.renderer, values)
    except EncoderDiffersError as difference:
        # As the build would.
        found.tokenizer.use(reference(found.tokenizer.backend, str(difference)).encoder)
        made, seconds = _timed(found.renderer, values)
    left_out = Counter(one.reason for one in made if not isinstance(one, Example))
    tokens = supervised = 0
    for example in made:
        if not isinstance(example, Example):
            continue
        length = len(example.ids)
        policy = effective_policy(config.overlong, example.turn_ends)
        if length > config.capacity and policy in ("drop", "error"):
            left_out["overlong"] += 1
            continue
        kept = min(length, config.capacity) if policy == "truncate" else length
        tokens += kept
        supervised += int(example.loss_mask[:kept].sum())
    return Sample(
        rows=len(rows),
        bytes=sum(row.size for row in rows),
        left_out=left_out,
        tokens=tokens,
        supervised=supervised,
        seconds=seconds,
        notes=nested(sum((one.notes for one in made if isinstance(one, Example)), Counter())),
        is_all=all(one.whole for one in taken),
    )


def _timed(renderer: Renderer, values: Sequence[object]) -> tuple[list[Example | Rejected], float]:
    outcomes(renderer, values[:_WARM_UP])
    began = time.perf_counter()
    made = [one for its in outcomes(renderer, values) for one in ((its,) if isinstance(its, Rejected) else its)]
    return made, time.perf_counter() - began


def _seen(spec: SourceSpec, taken: _Taken) -> SourceSeen:
    rows = rows_of(spec.file) if spec.file else sources.hub_rows(spec)
    return SourceSeen(
        name=spec.name,
        split=spec.split,
        weight=spec.weight,
        is_eval=spec.is_eval,
        on_hub=spec.file is None,
        bytes=stored_size(spec.file) if spec.file else None,
        rows=len(taken.rows) if rows is None and taken.whole else rows,
        sampled=len(taken.rows),
    )


def _estimate(
    config: BuildConfig, specs: Sequence[SourceSpec], seen: Sequence[SourceSeen], sample: Sample
) -> tuple[Estimate | None, str]:
    """The estimate, or None and why there is none."""
    if hub := next((one.name for one in seen if one.on_hub), None):
        return None, f"{hub} is fetched by the build and not before, so nothing is estimated"
    if not sample.tokens:
        return None, f"none of the {sample.rows:,} conversations that were encoded goes in, so nothing is estimated"
    # What is extrapolated by: rows where all of them were encoded, else bytes.
    sizes = [one.sampled if sample.is_all else size_of(spec.file or "") for spec, one in zip(specs, seen, strict=True)]
    of_sample = sample.rows if sample.is_all else sample.bytes
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not of_sample:
        name = next((one.name for one, size in zip(seen, sizes, strict=True) if size is None), seen[0].name)
        return None, f"how many rows {name} has is not known before it is read, so nothing is estimated"
    conversations = sum(known) / of_sample * sample.rows
    share = 1.0 if config.limit is None else min(1.0, config.limit / conversations)
    read = share * sum(known) / of_sample
    weighted = share * float(sum(spec.weight * size for spec, size in zip(specs, known, strict=True))) / of_sample
    tokens = round(sample.tokens * weighted)
    rows = -(-tokens // config.capacity)
    a_slot = _BYTES_A_TOKEN + position_dtype(config.capacity).itemsize
    copies = {one.weight for one in seen}
    return Estimate(
        exact=sample.is_all
        and share == 1
        and config.overlong in ("auto", "drop", "error")
        and len(copies) == 1
        and copies.pop().denominator == 1,
        conversations=round(conversations * share),
        tokens=tokens,
        rows=rows,
        shard_bytes=round(rows * config.capacity * a_slot),
        store_bytes=round(sample.tokens * read * _BYTES_A_TOKEN) if config.token_store else 0,
        seconds=sample.seconds * read,
    ), ""
