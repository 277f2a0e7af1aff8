"""The token store part by part: each by itself, and all of them as one account of the sources.

stored = check_store(folder, manifest, built, table, findings)     # None: there is none, or it cannot be relied on
check_rows_against_store(folder, rows, findings, advance)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from packer.errors import UserError
from packer.examples import ExampleTable
from packer.manifest import Manifest
from packer.progress import Progress
from packer.schema import wrong_weights
from packer.token_part import PartHead, TokenPart, part_name, part_paths, read_part
from packer.types import BoolArray, Int64Array
from packer.verify.findings import Findings
from packer.verify.listing import STORE, Listing, Stored
from packer.verify.manifest import BuiltWith
from packer.verify.rows import Expected, Rows


def check_store(
    folder: Path, manifest: Manifest, built: BuiltWith | None, table: ExampleTable | None, findings: Findings
) -> Stored | None:
    """Every part by itself, one behind the other, and what comes of them: examples/, ledger and rejects.jsonl, as `packer build` derives them.

    built None: the manifest does not say what to derive them with. Returns None where there is no store, or where a part cannot be read.
    """
    if not (folder / STORE).is_dir():
        return None
    paths = part_paths(folder / STORE)
    findings.hold(bool(paths), "the token store must have a part", STORE)
    stretches = _Stretches(manifest)
    listing = Listing(built.config, built.sources) if built else None
    stored = Stored()
    whole = bool(paths)
    for number, path in enumerate(paths):
        file = f"{STORE}/{path.name}"
        if path.name != part_name(number):
            findings.add("the token store's parts must be numbered from 0, none left out", file)
        try:
            head, part = read_part(path, validate=True)
        except UserError as error:
            findings.add("the token store must be readable", file, detail=error.message.removeprefix(f"{path}: "))
            whole = False
            continue
        _check_part(file, head, part, manifest, findings)
        if not stretches.take(file, head, findings):
            whole = False
            continue
        stored.take(part)
        if listing:
            listing.take(head, part)
    if not whole:
        return None
    stretches.check_all(findings)
    if listing:
        listing.check(folder, manifest, table, stored, findings)
    return stored


class _Stretches:
    """Which rows of the sources the parts cover, by their heads."""

    def __init__(self, manifest: Manifest) -> None:
        self._sources = manifest.sources
        self._read = [0] * len(manifest.sources)
        self._last: PartHead | None = None

    def take(self, file: str, head: PartHead, findings: Findings) -> bool:
        """Holds a part against those before it; returns whether its source is one that the manifest knows."""
        known = 0 <= head.source < len(self._sources)
        if not findings.hold(
            known, "a part's source must be one of the manifest's", file, f"it is source {head.source}"
        ):
            return False
        last, due = self._last, self._read[head.source]
        findings.hold(
            head.first_row == due and (last is None or last.source <= head.source),
            "a part must begin where the one before it ended",
            file,
            f"it begins at row {head.first_row} of source {head.source}, due is row {due}",
        )
        findings.hold(
            last is None or last.source != head.source or (last.key, last.is_eval) == (head.key, head.is_eval),
            "the parts of one source must have been decided by the same",
            file,
        )
        self._read[head.source] += head.rows
        self._last = head
        return True

    def check_all(self, findings: Findings) -> None:
        for number, (source, read) in enumerate(zip(self._sources, self._read, strict=True)):
            findings.hold(
                source.conversations == read,
                "the parts of a source must hold as many rows as were read of it",
                STORE,
                f"source {number} ({source.name}): {read}, the manifest has {source.conversations}",
            )


def _check_part(file: str, head: PartHead, part: TokenPart, manifest: Manifest, findings: Findings) -> None:
    """What a part says of itself."""
    digest = part.digest()
    findings.hold(
        digest == head.digest,
        "a part's digest must be its head's",
        file,
        f"its columns make {digest}, its head says {head.digest}",
    )
    rejected = np.array([reject.row for reject in head.rejects], dtype=np.int64)
    rows = np.sort(np.concatenate([np.unique(part.rows), rejected]))
    findings.hold(
        len(rows) == head.rows
        and bool((rows - head.first_row == np.arange(len(rows))).all())
        and bool((np.diff(part.rows) >= 0).all())
        and all(reject.source == head.source for reject in head.rejects),
        "a part's conversations and rejects must be the rows of its stretch, each once and in order",
        file,
        f"{len(part)} conversations and {len(rejected)} rejects, {head.rows} rows from row {head.first_row} on",
    )

    def each(rule: str, broken: Int64Array) -> None:
        for number in broken.tolist():
            findings.add(rule, file, source=part.places[number].as_py())

    each("turn_ends must rise and lie in their conversation", _unsound_turns(part))
    each("a conversation's supervised must count its mask", np.flatnonzero(_targets(part) != part.supervised))
    each(
        "the token store's ids must lie in the vocabulary",
        _of(part, (part.ids < 0) | (part.ids >= manifest.vocab_size)),
    )
    if part.loss_weights is not None:
        each(
            "a conversation's loss_weights must be from 0.000001 to 1000 on its targets, and 0 elsewhere",
            _of(part, wrong_weights(part.loss_weights, part.mask(0, len(part.ids)))),
        )
        findings.hold(
            bool(((part.loss_weights != 0) & (part.loss_weights != 1)).any()),
            "a part must have loss_weights only where one of them is neither 0 nor 1",
            file,
        )


def _of(part: TokenPart, tokens: BoolArray) -> Int64Array:
    """The conversations that hold any of these tokens."""
    return np.unique(np.searchsorted(part.offsets, np.flatnonzero(tokens), side="right") - 1)


def _targets(part: TokenPart) -> Int64Array:
    """int64 [n]: targets of each conversation, counted."""
    before = np.concatenate([[0], np.cumsum(part.mask(0, len(part.ids)), dtype=np.int64)])
    counted: Int64Array = np.diff(before[part.offsets])
    return counted


def _unsound_turns(part: TokenPart) -> Int64Array:
    """Conversations whose turns do not end one behind the other, from token 1 to their last."""
    of = np.repeat(np.arange(len(part)), np.diff(part.turn_offsets))
    ends = part.turn_ends[int(part.turn_offsets[0]) : int(part.turn_offsets[-1])]
    falls = np.zeros(len(ends), dtype=bool)
    falls[1:] = (np.diff(ends) <= 0) & (of[1:] == of[:-1])
    return np.unique(of[falls | (ends < 1) | (ends > part.lengths[of])])


def check_rows_against_store(folder: Path, rows: Rows, findings: Findings, advance: Progress.Advance) -> int:
    """Every token and target of every example against the store; returns how many examples were compared."""
    compared = 0
    for path in part_paths(folder / STORE):
        _, part = read_part(path)
        for expected in conversations(part):
            compared += rows.compare(expected, "an example's tokens and targets must be the token store's", findings)
        advance(len(part))
    return compared


def conversations(part: TokenPart) -> Iterator[tuple[Expected, ...]]:
    """The conversations of a part, each whole: its examples, one or one per assistant turn."""
    for _, examples in groupby(_examples(part), key=lambda expected: expected.row):
        yield tuple(examples)


def _examples(part: TokenPart) -> Iterator[Expected]:
    for number in range(len(part)):
        start, end = int(part.offsets[number]), int(part.offsets[number + 1])
        yield Expected(
            source=part.source,
            row=int(part.rows[number]),
            ids=part.ids[start:end],
            loss_mask=part.mask(start, end),
            turn_ends=part.turn_ends[int(part.turn_offsets[number]) : int(part.turn_offsets[number + 1])],
            place=part.places[number].as_py(),
            loss_weights=None if part.loss_weights is None else part.loss_weights[start:end],
        )
