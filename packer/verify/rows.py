"""The examples in the rows against what they should be: a conversation from the token store, or one tokenized again.

rows = Rows(folder, manifest, table, tallies)
rows.compare(Expected(source=0, row=12, ids=..., loss_mask=..., turn_ends=...), "…must be the token store's", findings)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer.examples import ExampleTable
from packer.manifest import Manifest
from packer.overlong import cut, targets
from packer.shards import open_corpus
from packer.types import BoolArray, Float32Array, Int32Array
from packer.verify.findings import Findings
from packer.verify.shards import Tally
from packer.words import Overlong


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """A conversation as tokens: ids int32 [n], loss_mask bool [n], turn_ends int32 [turns], loss_weights float32 [n] (None: all targets count 1).
    place: where in its source it is, for a person, if known."""

    source: int
    row: int
    ids: Int32Array
    loss_mask: BoolArray
    turn_ends: Int32Array
    place: str = ""
    loss_weights: Float32Array | None = None


class Rows:
    """The examples of all splits by the conversation they came from."""

    def __init__(self, folder: Path, manifest: Manifest, table: ExampleTable, tallies: Mapping[str, Tally]) -> None:
        self._manifest = manifest
        self._table = table
        self._corpora = {name: open_corpus(folder, split=name) for name in tallies}
        self._tallies = tallies
        # The place of each example in its split's tally; -1: in no row.
        self._at = np.full(len(table), -1, dtype=np.int64)
        for tally in tallies.values():
            self._at[tally.example] = np.arange(len(tally.example))
        self._order = np.lexsort((table.copy, table.piece, table.row, table.source))
        self._keys = np.stack([table.source, table.row])[:, self._order]

    def examples_of(self, source: int, row: int) -> list[int]:
        """The examples made of one conversation: pieces in order, copies of each."""
        first = int(np.searchsorted(self._keys[0], source, side="left"))
        last = int(np.searchsorted(self._keys[0], source, side="right"))
        within = self._keys[1, first:last]
        begin, end = np.searchsorted(within, row, side="left"), np.searchsorted(within, row, side="right")
        return [int(example) for example in self._order[first + int(begin) : first + int(end)]]

    def pieces(self, expected: Expected) -> list[tuple[int, int]]:
        """The stretches [start, end) of an example's tokens that went into rows, as `packer build` cuts them."""
        length = len(expected.ids)
        policy: Overlong = str(self._manifest.options.get("overlong", "drop"))  # type: ignore[assignment]  # checked when it was built
        cuts = cut(length=length, turn_ends=expected.turn_ends, capacity=self._manifest.capacity, policy=policy)
        return [
            (start, end)
            for start, end in cuts
            if length <= self._manifest.capacity or targets(expected.loss_mask, start, end)
        ]

    def compare(self, conversation: Sequence[Expected], rule: str, findings: Findings) -> int:
        """Adds the rule for each example of the conversation that is not what it should be; returns how many were compared."""
        pieces = [(expected, start, end) for expected in conversation for start, end in self.pieces(expected)]
        examples = self.examples_of(conversation[0].source, conversation[0].row)
        for example in examples:
            piece = int(self._table.piece[example])
            if piece >= len(pieces):
                self.add(example, rule, findings, place=conversation[0].place, detail="the source gives no such piece")
                continue
            expected, start, end = pieces[piece]
            mask = expected.loss_mask[start:end].copy()
            mask[:1] = False
            weights = mask if expected.loss_weights is None else expected.loss_weights[start:end] * mask
            if difference := self._difference(example, expected.ids[start:end], mask, weights):
                self.add(example, rule, findings, place=expected.place, detail=difference)
        return len(examples)

    def add(self, example: int, rule: str, findings: Findings, *, place: str, detail: str) -> None:
        """Adds a broken rule with the example's shard and row, and its place in the source."""
        name = "eval" if self._table.is_eval[example] else "train"
        tally, at = self._tallies[name], int(self._at[example])
        findings.add(
            rule,
            self._manifest.splits[name].shards[int(tally.shard[at])].file,
            row=int(tally.row[at]),
            example=example,
            source=place or self._table.origin(example, self._manifest),
            detail=detail,
        )

    def _difference(self, example: int, ids: Int32Array, mask: BoolArray, weights: np.ndarray) -> str:
        """Where an example in its row first differs, in words; empty where it does not."""
        name = "eval" if self._table.is_eval[example] else "train"
        tally, at = self._tallies[name], int(self._at[example])
        split = self._manifest.splits[name]
        first = sum(shard.rows for shard in split.shards[: int(tally.shard[at])])
        row = self._corpora[name][first + int(tally.row[at])]
        slots = slice(int(tally.start[at]), int(tally.end[at]))
        there, there_mask = row.input_ids[slots], row.loss_mask[slots]
        common = min(len(ids), len(there))
        other = np.flatnonzero(ids[:common] != there[:common])
        if len(other):
            token = int(other[0])
            return f"token {token} is {int(there[token])} in the row, {int(ids[token])} here"
        if len(ids) != len(there):
            return f"{len(there)} tokens in the row, {len(ids)} here"
        other = np.flatnonzero(mask != there_mask)
        if len(other):
            token = int(other[0])
            words = ("no target", "a target")
            return f"token {token} is {words[int(there_mask[token])]} in the row, {words[int(mask[token])]} here"
        there_weights = there_mask if row.loss_weights is None else row.loss_weights[slots]
        other = np.flatnonzero(weights != there_weights)
        if len(other):
            token = int(other[0])
            return f"token {token} counts {there_weights[token]:g} in the row, {weights[token]:g} here"
        return ""
