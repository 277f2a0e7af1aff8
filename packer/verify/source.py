"""A sample of the conversations, tokenized again from where they came from with the folder's own tokenizer and template.

deep = check_source(folder, manifest, table, rows, findings, progress, sample=1000)
deep.compared, deep.missing

The sample is drawn over all sources by a fixed seed. Of a file that is no longer the one that was packed (its digest differs), every conversation is
compared: something in it did change, and a sample could miss it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np

from packer import source as sources
from packer.encode import EncodedSlice, RawSlice, slice_encoder
from packer.errors import UserError
from packer.examples import ExampleTable
from packer.formats import Layout
from packer.manifest import MANIFEST_NAME, Manifest
from packer.progress import Progress
from packer.readers import RawRow, digest
from packer.render import Policies, Renderer
from packer.source import SourceSpec
from packer.template import ChatTemplate
from packer.tokenizer import TEMPLATE_NAME, load_tokenizer
from packer.types import Int64Array
from packer.verify.findings import Findings
from packer.verify.rows import Expected, Rows

_RULE = "an example must be what its source gives"
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A source that could not be compared, and why."""

    source: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceCheck:
    """conversations: how many were tokenized again; examples: how many of the rows' examples were compared with them."""

    conversations: int
    examples: int
    changed: tuple[str, ...]
    missing: tuple[Missing, ...]


def check_source(
    folder: Path,
    manifest: Manifest,
    table: ExampleTable,
    rows: Rows,
    findings: Findings,
    progress: Progress,
    *,
    sample: int,
) -> SourceCheck:
    """Tokenizes about `sample` conversations again and compares ids and masks; adds what differs, and returns what was done."""
    options = _options(folder, manifest)
    encode = slice_encoder(_renderer(folder, options), Fraction(0))
    keys = np.unique(np.stack([table.source, table.row]), axis=1)
    chosen = np.sort(np.random.default_rng(0).permutation(keys.shape[1])[:sample])
    places = _places(folder, manifest)
    conversations = examples = 0
    changed, missing = [], []
    for number, entry in enumerate(manifest.sources):
        mine = keys[1, keys[0] == number]
        wanted = keys[1, chosen][keys[0, chosen] == number]
        if not len(mine):
            continue
        spec = SourceSpec(
            name=entry.name,
            file=places[number] if entry.files else None,
            revision=entry.revision or None,
            split=entry.split,
        )
        try:
            if spec.file and digest(spec.file) != entry.files[0].xxh3_128:
                changed.append(entry.name)
                wanted = mine
            with progress.stage(f"tokenize {entry.name} again", unit="conversations", total=len(wanted)) as advance:
                for encoded in map(encode, _slices(spec, number, wanted, options.policies.layout)):
                    conversations += len(encoded.places) + len(encoded.rejects)
                    examples += _compare(encoded, rows, findings)
                    advance(len(encoded.places) + len(encoded.rejects))
        except UserError as error:
            missing.append(Missing(source=entry.name, why=error.message))
    return SourceCheck(conversations=conversations, examples=examples, changed=tuple(changed), missing=tuple(missing))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    """What the manifest's options make of a row."""

    policies: Policies
    template_date: datetime.date | None


def _options(folder: Path, manifest: Manifest) -> _Options:
    options = manifest.options
    try:
        date = str(options["template_date"])
        layout = Layout(
            format=str(options["format"]),  # type: ignore[arg-type]  # checked when it was built
            column=str(options["column"]) or None,
            empty_answers=str(options["empty_answers"]),  # type: ignore[arg-type]
        )
        policies = Policies(
            layout=layout,
            train_on=manifest.masking.policy,  # type: ignore[arg-type]
            control_tokens=str(options["control_tokens"]),  # type: ignore[arg-type]
        )
        return _Options(policies=policies, template_date=datetime.date.fromisoformat(date) if date else None)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{folder / MANIFEST_NAME}: its options are not those of this version ({error})",
            "verify it with the version that built it; without --deep everything but the source is checked",
        ) from None


def _renderer(folder: Path, options: _Options) -> Renderer:
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    source = (folder / "tokenizer" / TEMPLATE_NAME).read_bytes().decode()
    template = ChatTemplate(source, special_tokens=tokenizer.special_tokens, date=options.template_date)
    return Renderer(tokenizer, template, options.policies)


def _places(folder: Path, manifest: Manifest) -> list[str]:
    """Where each source lay when it was packed; raises UserError where the log does not say."""
    path = folder / "build-log.json"
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["sources"]
        if len(places) == len(manifest.sources) and all(isinstance(place, str) for place in places):
            return list(places)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise UserError(
        f"{path}: does not say where the sources lay", "without --deep everything but the source is checked"
    )


def _slices(spec: SourceSpec, number: int, wanted: Int64Array, layout: Layout) -> Iterator[RawSlice]:
    """The wanted rows of a source (ascending), some at a time; reads no further than the last of them."""
    if not len(wanted):
        return
    rows = (
        row
        for row in _until(spec, int(wanted[-1]), layout)
        if wanted[np.searchsorted(wanted, row.number)] == row.number
    )
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        yield RawSlice(source=number, is_eval=False, rows=batch)


def _until(spec: SourceSpec, last: int, layout: Layout) -> Iterator[RawRow]:
    yield from sources.read(spec, layout.columns, limit=last + 1)


def _compare(encoded: EncodedSlice, rows: Rows, findings: Findings) -> int:
    compared = 0
    tokens = encoded.tokens
    ends, turns = np.cumsum(tokens.lengths), np.cumsum(tokens.turns)
    mask = tokens.mask()
    for number, place in enumerate(encoded.places):
        mine = slice(int(ends[number] - tokens.lengths[number]), int(ends[number]))
        expected = Expected(
            source=tokens.source,
            row=int(tokens.rows[number]),
            ids=tokens.ids[mine],
            loss_mask=mask[mine],
            turn_ends=tokens.turn_ends[int(turns[number] - tokens.turns[number]) : int(turns[number])],
            place=place,
        )
        compared += rows.compare(expected, _RULE, findings)
    for reject in encoded.rejects:
        for example in rows.examples_of(reject.source, reject.row):
            compared += 1
            rows.add(
                example,
                _RULE,
                findings,
                place=reject.place,
                detail=f"the source gives none: {reject.reason}, {reject.detail}",
            )
    return compared
