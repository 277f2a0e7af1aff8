"""From sources to the token store, with every conversation entered in the books on the way.

slices = raw_slices(config, sources)                      # what the workers encode
stored = intake.account(encoded_slices, advance)          # passes tokens on, keeps numbers and verdicts
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np

from packer import source as sources
from packer.config import BuildConfig
from packer.encode import EncodedSlice, RawSlice, Reject
from packer.errors import GateError, UserError
from packer.ledger import Books
from packer.manifest import Ledger
from packer.overlong import cut, targets
from packer.progress import Progress
from packer.source import SourceSpec
from packer.tokens import TokenSlice
from packer.types import BoolArray, Int32Array, Int64Array

_ROWS_A_SLICE = 512
_MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """What goes into rows, as numbers [n]: the place in the token store and the stretch of it (starts, lengths, in tokens), targets, which piece and which
    copy of its conversation, whether it is for eval.
    """

    stored: Int64Array
    starts: Int64Array
    lengths: Int64Array
    supervised: Int64Array
    piece: Int32Array
    copy: Int32Array
    is_eval: BoolArray


def raw_slices(
    specs: Sequence[SourceSpec], columns: Collection[str], *, limit: int | None, seed: int
) -> Iterator[RawSlice]:
    """The rows of all sources in order, 512 at a time. limit counts training conversations over all sources; an eval source is cut to the same number."""
    left = limit
    for number, spec in enumerate(specs):
        rows = sources.read(spec, columns, limit=limit if spec.is_eval else left)
        while batch := list(islice(rows, _ROWS_A_SLICE)):
            if left is not None and not spec.is_eval:
                left -= len(batch)
            yield RawSlice(source=number, is_eval=spec.is_eval, rows=batch, weight=spec.weight, seed=seed)


class Intake:
    """Takes encoded slices in order, counts every conversation, and keeps what the plan needs to know of each.

    by_size: progress is told in megabytes read, else in conversations. After `account` is exhausted: `examples`, `books`, `rejects`, and `read` (conversations read from each source).
    """

    def __init__(self, config: BuildConfig, *, sources_count: int, by_size: bool) -> None:
        self._config = config
        self._kept: list[Examples] = []
        self._by_size = by_size
        self.books = Books()
        self.rejects: list[Reject] = []
        self.read = [0] * sources_count
        self.control_tokens: Counter[tuple[str, str]] = Counter()
        # When the first slice came back: before it, processes started and loaded tokenizers.
        self.first_slice: float | None = None

    def account(self, slices: Iterable[EncodedSlice], advance: Progress.Advance) -> Iterator[TokenSlice]:
        """Passes the tokens of each slice on and enters its conversations in the books; raises UserError on an over-long one if asked to."""
        stored = 0
        for encoded in slices:
            tokens = encoded.tokens
            for reject in encoded.rejects:
                self.books.reject(reject.reason)
            self.rejects += encoded.rejects
            self.control_tokens += encoded.control_tokens
            self._kept.append(self._take(encoded, stored))
            stored += len(tokens.lengths)
            count = len(tokens.lengths) + len(encoded.rejects)
            self.read[tokens.source] += count
            advance(encoded.size / _MEGABYTE if self._by_size else count)
            if len(tokens.lengths):
                yield tokens

    def _take(self, encoded: EncodedSlice, stored: int) -> Examples:
        """What goes into rows of one slice: nearly always each conversation whole and once."""
        tokens = encoded.tokens
        lengths = tokens.lengths.astype(np.int64)
        drawn = tokens.copies > 0
        fits = lengths <= self._config.capacity
        self.books.leave_out(conversations=int((~drawn).sum()))
        whole = np.flatnonzero(drawn & fits)
        self.books.take(conversations=len(whole), tokens=int((lengths * tokens.copies)[whole].sum()))
        places, starts, ends, piece = [whole], [np.zeros_like(whole)], [lengths[whole]], [np.zeros_like(whole)]
        for place in np.flatnonzero(drawn & ~fits).tolist():
            kept = self._pieces(encoded, place)
            places.append(np.full(len(kept), place))
            starts.append(np.array([start for start, _ in kept], dtype=np.int64))
            ends.append(np.array([end for _, end in kept], dtype=np.int64))
            piece.append(np.arange(len(kept)))
        of = np.concatenate(places).astype(np.int64)
        table = np.stack([of, np.concatenate(starts), np.concatenate(ends), np.concatenate(piece)])
        table = table[:, np.argsort(of, kind="stable")]
        # Every copy of a piece is an example of its own, copy by copy.
        copies = tokens.copies[table[0]]
        table = np.repeat(table, copies, axis=1)
        copy = np.arange(len(table[0])) - np.repeat(np.cumsum(copies) - copies, copies)
        of, start, end = table[0], table[1], table[2]
        # Targets of a piece: those of its stretch of the mask, less its first token, before which nothing stands.
        before = np.concatenate([[0], np.cumsum(tokens.mask())])
        first = (np.cumsum(lengths) - lengths)[of]
        return Examples(
            stored=stored + of,
            starts=start,
            lengths=end - start,
            supervised=before[first + end] - before[np.minimum(first + start + 1, first + end)],
            piece=table[3].astype(np.int32),
            copy=copy.astype(np.int32),
            is_eval=tokens.is_eval[of],
        )

    def _pieces(self, encoded: EncodedSlice, place: int) -> list[tuple[int, int]]:
        """The pieces of one over-long conversation that go in, entered in the books; none where it is left out."""
        tokens, policy = encoded.tokens, self._config.overlong
        length, copies = int(tokens.lengths[place]), int(tokens.copies[place])
        first, turn = int(tokens.lengths[:place].sum()), int(tokens.turns[:place].sum())
        mask = tokens.mask()[first : first + length]
        turn_ends = tokens.turn_ends[turn : turn + int(tokens.turns[place])]
        cuts = cut(length=length, turn_ends=turn_ends, capacity=self._config.capacity, policy=policy)
        kept = [(start, end) for start, end in cuts if targets(mask, start, end)]
        if not kept:
            self._lose_overlong(encoded, place)
            return []
        inside = sum(end - start for start, end in kept)
        self.books.take(conversations=1, tokens=copies * inside)
        if inside < length:
            self.books.lose_part(
                "truncated" if policy == "truncate" else "split_off", tokens=copies * (length - inside)
            )
        return kept

    @property
    def examples(self) -> Examples:
        """All that go into rows, numbered in the order of the sources."""
        names = [field.name for field in fields(Examples)]
        return Examples(**{name: np.concatenate([getattr(part, name) for part in self._kept]) for name in names})

    def ledger(self) -> Ledger:
        """The books as the manifest keeps them."""
        spelled: dict[str, dict[str, int]] = {}
        for (role, token), count in self.control_tokens.items():
            spelled.setdefault(role, {})[token] = count
        return Ledger(conversations=self.books.conversations, tokens=self.books.tokens, control_tokens=spelled)

    def rejects_file(self) -> str:
        """rejects.jsonl: a line a conversation that did not go in, by source and row."""
        return "".join(
            json.dumps(
                {
                    "place": one.place,
                    "source": one.source,
                    "row": one.row,
                    "reason": one.reason,
                    "detail": _writable(one.detail),
                },
                ensure_ascii=False,
            )
            + "\n"
            for one in sorted(self.rejects, key=lambda one: (one.source, one.row))
        )

    def hold_gates(self) -> None:
        """Raises UserError where nothing is left to pack, GateError where more was lost than allowed, RuntimeError where the books do not add up."""
        self.books.check()
        self._refuse_empty()
        hold_loss(self.books, self._config)

    def _lose_overlong(self, encoded: EncodedSlice, place: int) -> None:
        where, length = encoded.places[place], int(encoded.tokens.lengths[place])
        detail = f"{length} tokens do not fit a row of {self._config.capacity}"
        if self._config.overlong == "error":
            raise UserError(f"{where}: {detail}", "give a larger --capacity, or --overlong drop")
        self.books.lose("overlong", tokens=length * int(encoded.tokens.copies[place]))
        source, row = encoded.tokens.source, int(encoded.tokens.rows[place])
        self.rejects.append(Reject(source=source, row=row, place=where, reason="overlong", detail=detail))

    def _refuse_empty(self) -> None:
        if self.books.conversations["in"]:
            return
        names = ", ".join(name for name, _ in self._config.sources) or sources.DEFAULT_DATASET
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


def _writable(text: str) -> str:
    """Text that may quote half a surrogate pair, as UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def hold_loss(books: Books, config: BuildConfig) -> None:
    """Raises GateError where more was lost than `max_loss` allows."""
    loss, allowed = books.loss(), config.max_loss
    if loss > allowed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in books.reasons().items())
        raise GateError(
            f"{float(loss):.2%} was lost, more than --max-loss {float(allowed):.2%} ({reasons}, of {books.conversations['read']} conversations read)",
            f"see {config.out / 'rejects.jsonl'}; mend the data, give a larger --capacity, or allow more with --max-loss",
        )
