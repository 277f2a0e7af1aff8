"""What the token store makes of itself with the manifest's options, held against what the folder says: examples/, ledger, rejects.jsonl.

    listing = Listing(config, sources)
    listing.take(head, part)            # each part, in order
    listing.check(folder, manifest, table, stored, findings)

It is derived as `packer build` derives it: pieces by the capacity, copies by weights and seed, the split by the hash of what was said or by the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.config import BuildConfig
from packer.examples import ExampleTable
from packer.intake import Intake, Weighted
from packer.listing import Listed
from packer.manifest import MANIFEST_NAME, Manifest
from packer.token_part import PartHead, TokenPart
from packer.types import Int64Array
from packer.verify.findings import Findings

STORE = "tokens"
_EXAMPLES = "examples"
_REJECTS = "rejects.jsonl"
# What names an example: the columns of Listed and of the table.
_NAMES = ("source", "row", "piece", "copy")


def hashes_of(part: TokenPart) -> NDArray[np.uint64]:
    """content_hash, and group_hash where there is one, uint64 [n, 1 or 2]."""
    return np.stack([one for one in (part.content_hash, part.group_hash) if one is not None], axis=1)


class Stored:
    """The conversations of a token store by name, with the hashes of each."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Int64Array]] = {}
        self._hashes: dict[int, list[NDArray[np.uint64]]] = {}

    def take(self, part: TokenPart) -> None:
        self._rows.setdefault(part.source, []).append(part.rows)
        self._hashes.setdefault(part.source, []).append(hashes_of(part))

    def hashes(self, source: int) -> dict[int, list[int]]:
        """The hashes of each row of a source, as `hashes_of` gives them."""
        rows, hashes = self._rows.get(source, []), self._hashes.get(source, [])
        return {
            row: of_row
            for some, their in zip(rows, hashes, strict=True)
            for row, of_row in zip(some.tolist(), their.tolist(), strict=True)
        }

    def names(self) -> set[tuple[int, int]]:
        """(source, row) of each conversation."""
        return {(source, row) for source, parts in self._rows.items() for rows in parts for row in rows.tolist()}


class Listing:
    """The examples, the books and the rejects that come of a token store."""

    def __init__(self, config: BuildConfig, sources: Sequence[Weighted]) -> None:
        # Where an over-long conversation ends a build, a finished one has none; if this store has, it shall be named, not end the check.
        policy = "drop" if config.overlong == "error" else config.overlong
        self._intake = Intake(replace(config, overlong=policy), sources)
        self._listed: list[Listed] = []

    def take(self, head: PartHead, part: TokenPart) -> None:
        """The next part; its source must be a known one."""
        self._listed.append(self._intake.take(head, part))

    def check(
        self, folder: Path, manifest: Manifest, table: ExampleTable | None, stored: Stored, findings: Findings
    ) -> None:
        """Adds whatever of examples/ (where it could be read), ledger and rejects.jsonl is not what the store makes."""
        mine, theirs = self._intake.ledger(), manifest.ledger
        for name in ("conversations", "tokens", "in_part", "control_tokens", "notes"):
            made, said = getattr(mine, name), getattr(theirs, name)
            findings.hold(
                made == said,
                f"the ledger's {name} must be those that the token store makes",
                MANIFEST_NAME,
                f"it has {said}, the store makes {made}",
            )
        self._check_rejects(folder, findings)
        if table is not None:
            self._check_table(manifest, table, stored, findings)

    def _check_rejects(self, folder: Path, findings: Findings) -> None:
        try:
            there = (folder / _REJECTS).read_bytes()
        except OSError:
            return  # said where the file is checked by itself
        made = self._intake.rejects_file().encode("utf-8", "surrogatepass")
        if made == there:
            return
        lines = enumerate(zip_longest(there.split(b"\n"), made.split(b"\n")))
        number, (line, due) = next((number, pair) for number, pair in lines if pair[0] != pair[1])
        findings.add(
            "rejects.jsonl must list what the parts of the token store and the capacity leave out",
            _REJECTS,
            row=number,
            detail=f"{_shown(line)}, the token store makes {_shown(due)}",
        )

    def _check_table(self, manifest: Manifest, table: ExampleTable, stored: Stored, findings: Findings) -> None:
        due = np.stack([self._column(name) for name in _NAMES])
        there = np.stack([getattr(table, name) for name in _NAMES])
        at = np.arange(len(table)) if np.array_equal(due, there) else _match(due, there, stored, findings)
        found = at >= 0
        if not found.any():
            return
        for rule, column, name in (
            ("an example's tokens must be as many as in the token store", "lengths", "tokens"),
            ("an example's targets must be as many as in the token store", "supervised", "supervised"),
            ("an example's split must be the token store's", "is_eval", "is_eval"),
        ):
            broken = found & (self._column(column)[at] != getattr(table, name))
            for example in np.flatnonzero(broken).tolist():
                findings.add(rule, STORE, example=example, source=table.origin(example, manifest))

    def _column(self, name: str) -> Int64Array:
        return np.concatenate([np.zeros(0, dtype=np.int64), *(getattr(one, name) for one in self._listed)])


def _match(due: Int64Array, there: Int64Array, stored: Stored, findings: Findings) -> Int64Array:
    """int64 [N]: which of the examples that are due each of examples/ is, -1 for none; names int64 [4, N] of both. Adds what is missing or too much."""
    places = {name: number for number, name in enumerate(map(tuple, due.T.tolist()))}
    names = list(map(tuple, there.T.tolist()))
    at = np.array([places.get(name, -1) for name in names], dtype=np.int64)
    missing = np.setdiff1d(np.arange(due.shape[1]), at)
    for number in missing.tolist():
        findings.add(
            "every piece and copy that the token store makes must be in examples/",
            _EXAMPLES,
            detail=_called(due[:, number]),
        )
    conversations = stored.names()
    for example in np.flatnonzero(at < 0).tolist():
        known = names[example][:2] in conversations
        rule = (
            "an example must be a piece and a copy that the token store makes"
            if known
            else "every example's conversation must be in the token store"
        )
        findings.add(rule, STORE, example=example, detail=_called(there[:, example]))
    findings.hold(
        bool((np.diff(at[at >= 0]) > 0).all()), "examples/ must stand in the order of the token store", _EXAMPLES
    )
    return at


def _called(name: Int64Array) -> str:
    return ", ".join(f"{word} {number}" for word, number in zip(_NAMES, name.tolist(), strict=True))


def _shown(line: bytes | None) -> str:
    return line.decode(errors="backslashreplace") if line else "no line"
