"""`packer diff`: what differs between two builds, and why.

    difference = diff(Path("data/a"), Path("data/b"))
    difference.verdict, difference.changes, difference.examples

Whether the shards are the same bytes is read off the manifests' digests (`packer verify` holds these against the files). Where they are not, every row
of both is read: the same rows in another order are told from other rows, and changed examples are named by where they came from. Examples whose source
has another name are matched by content.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from packer.diff.builds import Change, build_changes, template_lines
from packer.diff.contents import Contents, match, read_contents, source_label, source_names
from packer.manifest import load_manifest
from packer.progress import Progress
from packer.types import Int64Array

Verdict = Literal["same bytes", "same rows in another order", "different"]
Kind = Literal["added", "removed", "ids changed", "mask changed", "weights changed"]
MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleChange:
    """One example that differs. origin: source and row. a, b: its example_id in each build, None where it has none. detail: where it first differs."""

    kind: Kind
    origin: str
    a: int | None
    b: int | None
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherSource:
    """How many examples that are in source a of the first build are in source b of the second."""

    a: str
    b: str
    examples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleChanges:
    """Counts of all, and the first few of each kind. An example is counted once: under ids changed, else mask changed, else weights changed. moved: to the other split. other_source: found by their content in a source of another name."""

    same: int
    added: int
    removed: int
    ids_changed: int
    mask_changed: int
    weights_changed: int
    moved: int
    other_source: tuple[OtherSource, ...]
    named: tuple[ExampleChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """verdict: of the rows. examples: None where the bytes are the same. template: the first lines that differ."""

    verdict: Verdict
    changes: tuple[Change, ...]
    template: tuple[str, ...]
    examples: ExampleChanges | None

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, in whatever order."""
        return self.verdict != "different"

    def to_json(self) -> dict[str, object]:
        return {"equal": self.equal, **asdict(self)}


def diff(a_folder: Path, b_folder: Path, progress: Progress | None = None) -> Difference:
    """Compares two finished builds; raises UserError where one is none, or is damaged."""
    progress = progress or Progress()
    a, b = load_manifest(a_folder), load_manifest(b_folder)
    changes = tuple(build_changes(a_folder, a, b_folder, b))
    template = template_lines(a_folder, b_folder) if a.chat_template != b.chat_template else ()
    digests = [
        {name: [shard.xxh3_128 for shard in split.shards] for name, split in one.splits.items()} for one in (a, b)
    ]
    if digests[0] == digests[1]:
        return Difference(verdict="same bytes", changes=changes, template=template, examples=None)
    mine, theirs = read_contents(a_folder, a, progress), read_contents(b_folder, b, progress)
    same_rows = mine.rows.keys() == theirs.rows.keys() and all(
        np.array_equal(np.sort(mine.rows[name]), np.sort(theirs.rows[name])) for name in mine.rows
    )
    return Difference(
        verdict="same rows in another order" if same_rows else "different",
        changes=changes,
        template=template,
        examples=_examples(mine, theirs),
    )


def _examples(a: Contents, b: Contents) -> ExampleChanges:
    in_a, in_b = match(a, b)
    removed = np.setdiff1d(np.arange(len(a.table)), in_a)
    added = np.setdiff1d(np.arange(len(b.table)), in_b)
    longer = a.table.tokens[in_a] != b.table.tokens[in_b]
    ids = longer | (a.ids_digest[in_a] != b.ids_digest[in_b])
    mask = ~ids & (a.mask_digest[in_a] != b.mask_digest[in_b])
    weights = ~ids & ~mask & (a.weights_digest[in_a] != b.weights_digest[in_b])
    named = [
        *(_alone("removed", a, example) for example in removed[:MOST_NAMED].tolist()),
        *(_alone("added", b, example) for example in added[:MOST_NAMED].tolist()),
        *_changed("ids changed", a, b, in_a[ids], in_b[ids]),
        *_changed("mask changed", a, b, in_a[mask], in_b[mask]),
        *_changed("weights changed", a, b, in_a[weights], in_b[weights]),
    ]
    return ExampleChanges(
        same=int((~ids & ~mask & ~weights).sum()),
        added=len(added),
        removed=len(removed),
        ids_changed=int(ids.sum()),
        mask_changed=int(mask.sum()),
        weights_changed=int(weights.sum()),
        moved=int((a.table.is_eval[in_a] != b.table.is_eval[in_b]).sum()),
        other_source=_other_source(a, b, in_a, in_b),
        named=tuple(named),
    )


def _other_source(a: Contents, b: Contents, in_a: Int64Array, in_b: Int64Array) -> tuple[OtherSource, ...]:
    mine, theirs = ([source_label(name) for name in source_names(one.manifest.sources)] for one in (a, b))
    pairs, counts = np.unique(np.stack([a.table.source[in_a], b.table.source[in_b]]), axis=1, return_counts=True)
    return tuple(
        OtherSource(a=mine[source], b=theirs[other], examples=count)
        for source, other, count in zip(*pairs.tolist(), counts.tolist(), strict=True)
        if mine[source] != theirs[other]
    )


def _alone(kind: Kind, contents: Contents, example: int) -> ExampleChange:
    return ExampleChange(
        kind=kind,
        origin=contents.table.origin(example, contents.manifest),
        a=example if kind == "removed" else None,
        b=example if kind == "added" else None,
        detail=f"{contents.table.tokens[example]} tokens, {contents.table.supervised[example]} targets",
    )


def _changed(kind: Kind, a: Contents, b: Contents, in_a: Int64Array, in_b: Int64Array) -> list[ExampleChange]:
    order = np.argsort(in_a, kind="stable")[:MOST_NAMED]
    return [
        ExampleChange(
            kind=kind,
            origin=a.table.origin(mine, a.manifest),
            a=mine,
            b=theirs,
            detail=_first_difference(kind, a, b, mine, theirs),
        )
        for mine, theirs in zip(in_a[order].tolist(), in_b[order].tolist(), strict=True)
    ]


def _first_difference(kind: Kind, a: Contents, b: Contents, mine: int, theirs: int) -> str:
    (a_ids, a_mask, a_weights), (b_ids, b_mask, b_weights) = a.tokens(mine), b.tokens(theirs)
    if kind == "weights changed":
        token = int((a_weights != b_weights).argmax())
        return f"first at token {token}: {a_weights[token]:g} → {b_weights[token]:g}"
    if kind == "mask changed":
        token = int((a_mask != b_mask).argmax())
        return f"{int(a_mask.sum())} targets → {int(b_mask.sum())}, first at token {token}"
    common = min(len(a_ids), len(b_ids))
    other = a_ids[:common] != b_ids[:common]
    token = int(other.argmax()) if other.any() else common
    return f"{len(a_ids)} tokens → {len(b_ids)}, first at token {token}"
