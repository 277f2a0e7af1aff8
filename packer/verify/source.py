"""A sample of the conversations, tokenized again from where they came from with the folder's own tokenizer and template.

deep = check_source(folder, manifest, config, table, rows, stored, findings, progress, sample=1000)
deep.compared, deep.missing

The sample is drawn over all sources by a fixed seed. Of a file that is no longer the one that was packed (its digest differs), every conversation is
compared: something in it did change, and a sample could miss it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from packer import source as sources
from packer.buildlog import LOG_NAME, provenance_of
from packer.chat.load_renderer import make_renderer
from packer.config import BuildConfig
from packer.encode import encode_part
from packer.errors import UserError
from packer.examples import ExampleTable
from packer.manifest import Manifest
from packer.parts import RawPart
from packer.progress import Progress
from packer.readers import digest
from packer.render import Renderer
from packer.source import SourceSpec
from packer.sources.raw_row import RawRow
from packer.tokenizer import TEMPLATE_NAME, TOOL_TEMPLATE_NAME, load_tokenizer
from packer.types import Int64Array
from packer.verify.findings import Findings
from packer.verify.listing import STORE, Stored, hashes_of
from packer.verify.rows import Rows
from packer.verify.store import conversations

_RULE = "an example must be what its source gives"
_HASH_RULE = "a conversation's content_hash in the token store must be what its source gives"
_GROUP_RULE = "a conversation's group_hash in the token store must be what its source gives"
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
    config: BuildConfig,
    table: ExampleTable,
    rows: Rows,
    stored: Stored | None,
    findings: Findings,
    progress: Progress,
    *,
    sample: int,
) -> SourceCheck:
    """Tokenizes about `sample` conversations again and compares ids, masks and hashes; adds what differs, and returns what was done."""
    renderer = _renderer(folder, config)
    keys = np.unique(np.stack([table.source, table.row]), axis=1)
    chosen = np.sort(np.random.default_rng(0).permutation(keys.shape[1])[:sample])
    places = _places(folder, manifest)
    tokenized = examples = 0
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
            config=entry.config,
            split=entry.split,
        )
        try:
            hashes = stored.hashes(number) if stored else {}
            if spec.file and digest(spec.file) != entry.files[0].xxh3_128:
                changed.append(entry.name)
                # Hashes of another file are others: what counts then is what is in the rows.
                wanted, hashes = mine, {}
            with progress.stage(f"tokenize {entry.name} again", unit="conversations", total=len(wanted)) as advance:
                for batch in _some(spec, wanted, config):
                    examples += _compare(renderer, number, batch, hashes, rows, findings)
                    tokenized += len(batch)
                    advance(len(batch))
        except UserError as error:
            missing.append(Missing(source=entry.name, why=error.message))
    return SourceCheck(conversations=tokenized, examples=examples, changed=tuple(changed), missing=tuple(missing))


def _renderer(folder: Path, config: BuildConfig) -> Renderer:
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    texts = [
        path.read_bytes().decode()
        for path in (folder / "tokenizer" / TEMPLATE_NAME, folder / "tokenizer" / TOOL_TEMPLATE_NAME)
        if path.is_file()
    ]
    return make_renderer(tokenizer, texts, config.policies, date=config.template_date, args=config.template_args)


def _places(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Where each source lay when it was packed; raises UserError where the log does not say."""
    places = provenance_of(folder).sources
    if len(places) != len(manifest.sources):
        raise UserError(
            f"{folder / LOG_NAME}: does not say where the sources lay",
            "without --deep everything but the source is checked",
        )
    return places


def _some(spec: SourceSpec, wanted: Int64Array, config: BuildConfig) -> Iterator[list[RawRow]]:
    """The wanted rows of a source (ascending), some at a time; reads no further than the last of them."""
    if not len(wanted):
        return
    rows = (
        row
        for row in sources.read(spec, config.policies.layout.columns, limit=int(wanted[-1]) + 1)
        if wanted[np.searchsorted(wanted, row.number)] == row.number
    )
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        yield batch


def _compare(
    renderer: Renderer,
    source: int,
    batch: list[RawRow],
    hashes: Mapping[int, list[int]],
    rows: Rows,
    findings: Findings,
) -> int:
    """Tokenizes rows of a source again and holds their examples against them; hashes: the store's, by row, where they are to be the same."""
    # As one part, which counts its rows from 0: they need not stand next to each other in the source.
    raw = RawPart(
        number=0,
        key="",
        source=source,
        is_eval=False,
        first_row=0,
        values=tuple(row.value for row in batch),
        places=tuple(row.place for row in batch),
        size=0,
    )
    head, part = encode_part(renderer, raw)
    compared = 0
    own = dict(zip(part.rows.tolist(), hashes_of(part).tolist(), strict=True))
    for expected in conversations(part):
        number, due = batch[expected[0].row].number, own[expected[0].row]
        compared += rows.compare([replace(one, row=number) for one in expected], _RULE, findings)
        there = hashes.get(number, due)
        for rule, which in ((_HASH_RULE, slice(0, 1)), (_GROUP_RULE, slice(1, None))):
            if there[which] != due[which]:
                findings.add(rule, STORE, source=expected[0].place)
    for reject in head.rejects:
        for example in rows.examples_of(source, batch[reject.row].number):
            compared += 1
            rows.add(
                example,
                _RULE,
                findings,
                place=reject.place,
                detail=f"the source gives none: {reject.reason}, {reject.detail}",
            )
    return compared
