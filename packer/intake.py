"""From sources to the token store, with every conversation entered in the books on the way.

slices = raw_slices(config, sources)                      # what the workers encode
stored = intake.account(encoded_slices, advance)          # passes tokens on, keeps numbers and verdicts
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """What goes into rows, as numbers [n]: the place in the token store and the stretch of it (starts, lengths, in tokens), targets, which piece of its
    conversation, whether it is for eval.
    """

    stored: Int64Array
    starts: Int64Array
    lengths: Int64Array
    supervised: Int64Array
    piece: Int32Array
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
        self.control_tokens: Counter[tuple[str, str]] = Counter()

    def account(self, slices: Iterable[EncodedSlice], advance: Progress.Advance) -> Iterator[TokenSlice]:
        """Passes the tokens of each slice on and enters its conversations in the books; raises UserError on an over-long one if asked to."""
        stored = 0
        for encoded in slices:
            tokens = encoded.tokens
            for reject in encoded.rejects:
                self.books.reject(reject.reason)
            self.rejects += encoded.rejects
            self.control_tokens += encoded.control_tokens
            self._kept.append(self._cut(encoded, stored))
            stored += len(tokens.lengths)
            count = len(tokens.lengths) + len(encoded.rejects)
            self.read[tokens.source] += count
            advance(count)
            if len(tokens.lengths):
                yield tokens

    def _cut(self, encoded: EncodedSlice, stored: int) -> Examples:
        """The pieces of a slice's conversations that go into rows; nearly always one each, all of it."""
        tokens, capacity = encoded.tokens, self._config.capacity
        mask, first = tokens.mask(), 0
        turn_ends = np.split(tokens.turn_ends, np.cumsum(tokens.turns)[:-1]) if len(tokens.turns) else []
        pieces: list[tuple[int, int, int, int, int, bool]] = []
        for place, length in enumerate(tokens.lengths.tolist()):
            its_mask = mask[first : first + length]
            first += length
            cuts = cut(length=length, turn_ends=turn_ends[place], capacity=capacity, policy=self._config.overlong)
            kept = [(start, end, count) for start, end in cuts if (count := targets(its_mask, start, end))]
            if not kept:
                self._lose_overlong(encoded, place)
                continue
            inside = sum(end - start for start, end, _ in kept)
            self.books.take(tokens=inside)
            if inside < length:
                self.books.lose_part(
                    "truncated" if self._config.overlong == "truncate" else "split_off", tokens=length - inside
                )
            for piece, (start, end, count) in enumerate(kept):
                pieces.append((stored + place, start, end - start, count, piece, bool(tokens.is_eval[place])))
        table = np.array(pieces, dtype=np.int64).reshape(-1, 6)
        return Examples(
            stored=table[:, 0],
            starts=table[:, 1],
            lengths=table[:, 2],
            supervised=table[:, 3],
            piece=table[:, 4].astype(np.int32),
            is_eval=table[:, 5].astype(bool),
        )

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
