"""From sources to the token store, with every conversation entered in the books on the way.

slices = raw_slices(config, sources)                      # what the workers encode
stored = intake.account(encoded_slices, advance)          # passes tokens on, keeps numbers and verdicts
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from packer import source as sources
from packer.config import BuildConfig
from packer.encode import EncodedSlice, RawSlice, Reject
from packer.errors import GateError, UserError
from packer.ledger import Books
from packer.progress import Progress
from packer.source import SourceSpec
from packer.tokens import TokenSlice
from packer.types import BoolArray, Int64Array

_ROWS_A_SLICE = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """The conversations that go into rows, as numbers: their places in the token store [n], tokens, targets, and whether they are for eval."""

    stored: Int64Array
    lengths: Int64Array
    supervised: Int64Array
    is_eval: BoolArray


def raw_slices(specs: Sequence[SourceSpec], *, limit: int | None) -> Iterator[RawSlice]:
    """The rows of all sources in order, 512 at a time. limit counts training conversations over all sources; an eval source is cut to the same number."""
    left = limit
    for number, spec in enumerate(specs):
        rows = sources.read(spec, limit=limit if spec.is_eval else left)
        while batch := list(islice(rows, _ROWS_A_SLICE)):
            if left is not None and not spec.is_eval:
                left -= len(batch)
            yield RawSlice(source=number, is_eval=spec.is_eval, rows=batch)


class Intake:
    """Takes encoded slices in order, counts every conversation, and keeps what the plan needs to know of each.

    After `account` is exhausted: `examples`, `books`, `rejects`, and `read` (conversations read from each source).
    """

    def __init__(self, config: BuildConfig, *, sources_count: int) -> None:
        self._config = config
        self._kept: list[Examples] = []
        self.books = Books()
        self.rejects: list[Reject] = []
        self.read = [0] * sources_count

    def account(self, slices: Iterable[EncodedSlice], advance: Progress.Advance) -> Iterator[TokenSlice]:
        """Passes the tokens of each slice on and enters its conversations in the books; raises UserError on an over-long one if asked to."""
        stored = 0
        for encoded in slices:
            tokens = encoded.tokens
            lengths = tokens.lengths.astype(np.int64)
            inside = np.flatnonzero(lengths <= self._config.capacity)
            for place in np.flatnonzero(lengths > self._config.capacity):
                self._lose_overlong(encoded, int(place))
            for reject in encoded.rejects:
                self.books.reject(reject.reason)
            self.rejects += encoded.rejects
            self.books.take(conversations=len(inside), tokens=int(lengths[inside].sum()))
            self._kept.append(
                Examples(
                    stored=stored + inside,
                    lengths=lengths[inside],
                    supervised=tokens.supervised[inside].astype(np.int64),
                    is_eval=tokens.is_eval[inside],
                )
            )
            stored += len(lengths)
            count = len(lengths) + len(encoded.rejects)
            self.read[encoded.tokens.source] += count
            advance(count)
            if len(lengths):
                yield tokens

    @property
    def examples(self) -> Examples:
        """All that go into rows, numbered in the order of the sources."""
        return Examples(
            stored=np.concatenate([part.stored for part in self._kept]),
            lengths=np.concatenate([part.lengths for part in self._kept]),
            supervised=np.concatenate([part.supervised for part in self._kept]),
            is_eval=np.concatenate([part.is_eval for part in self._kept]),
        )

    def rejects_file(self) -> str:
        """rejects.jsonl: a line a conversation that did not go in, by source and row."""
        return "".join(
            json.dumps(
                {"place": one.place, "source": one.source, "row": one.row, "reason": one.reason, "detail": one.detail},
                ensure_ascii=False,
            )
            + "\n"
            for one in sorted(self.rejects, key=lambda one: (one.source, one.row))
        )

    def hold_gates(self) -> None:
        """Raises UserError where nothing is left to pack, GateError where more was lost than allowed, RuntimeError where the books do not add up."""
        self.books.check()
        self._refuse_empty()
        loss, allowed = self.books.loss(), self._config.max_loss
        if loss > allowed:
            read = self.books.conversations["read"]
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.books.reasons().items())
            raise GateError(
                f"{float(loss):.2%} was lost, more than --max-loss {float(allowed):.2%} ({reasons}, of {read} conversations read)",
                f"see {self._config.out / 'rejects.jsonl'}; mend the data, give a larger --capacity, or allow more with --max-loss",
            )

    def _lose_overlong(self, encoded: EncodedSlice, place: int) -> None:
        where, length = encoded.places[place], int(encoded.tokens.lengths[place])
        detail = f"{length} tokens do not fit a row of {self._config.capacity}"
        if self._config.overlong == "error":
            raise UserError(f"{where}: {detail}", "give a larger --capacity, or --overlong drop")
        self.books.lose("overlong", tokens=length)
        source, row = encoded.tokens.source, int(encoded.tokens.rows[place])
        self.rejects.append(Reject(source=source, row=row, place=where, reason="overlong", detail=detail))

    def _refuse_empty(self) -> None:
        if self.books.conversations["in"]:
            return
        names = ", ".join(self._config.datasets) or sources.DEFAULT_DATASET
        if not self.books.conversations["read"]:
            raise UserError(
                f"{names}: empty: not one conversation in it", "check that the file was written whole, or name another"
            )
        reasons = self.books.reasons()
        reason = max(reasons, key=reasons.__getitem__)
        example = next(reject for reject in self.rejects if reject.reason == reason)
        hint = (
            "name the column that holds the messages with --column"
            if reason == "no_messages"
            else f"each is listed in {self._config.out / 'rejects.jsonl'}"
        )
        raise UserError(
            f"{names}: none of {self.books.conversations['read']} conversations can be used; {example.place}: {example.detail}",
            hint,
        )
