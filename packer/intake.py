"""From the token store to the examples that go into rows, with every conversation entered in the books on the way.

intake = Intake(selection, sources)
for listed in (intake.take(head, part) for head, part in parts): ...
intake.hold_gates()
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from packer.config import BuildConfig
from packer.errors import GateError, UserError
from packer.ledger import Books
from packer.listing import Listed
from packer.manifest import Ledger
from packer.mix import copies
from packer.overlong import cut, effective_policy, targets
from packer.sources.column_map import NOT_READ
from packer.token_part import PartHead, Reject, TokenPart
from packer.words import Format
from packer.wrong_use import nearest

# What to do where no row has the columns of the format asked for.
_COLUMN_HINTS: dict[Format, str] = {
    "auto": "name the column that holds the messages with --column, or others with --map, as in "
    "--map instruction=COLUMN --map output=COLUMN",
    "messages": "name the column that holds the messages with --column",
    "sharegpt": "name the column that holds the messages with --column",
    "text": "name the column that holds the text with --column",
    "prompt-completion": "name them with --map prompt=COLUMN --map completion=COLUMN, or give another --format",
    "instruction": "name them with --map instruction=COLUMN --map output=COLUMN, or give another --format",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """One source as the books know it: its name for people and how many copies of each conversation go in."""

    name: str
    weight: Fraction


class Intake:
    """Takes the parts of a token store in order, counts every conversation, and lists the examples that become of each.

    `books`, `rejects` and `read` (conversations read from each source) grow as parts are taken.
    """

    def __init__(self, config: BuildConfig, sources: Sequence[Weighted]) -> None:
        self._config = config
        self._sources = sources
        # A hash below this belongs to the eval split: equal conversations have equal hashes, so no duplicate stands on both sides.
        self._eval_below = np.uint64(int(config.eval_fraction * 2**64))
        self.books = Books()
        self.rejects: list[Reject] = []
        self.read = [0] * len(sources)
        self.control_tokens: Counter[tuple[str, str]] = Counter()
        self.notes: Counter[tuple[str, str]] = Counter()
        self._encoded = 0

    def take(self, head: PartHead, part: TokenPart) -> Listed:
        """The examples of one part; raises UserError on an over-long conversation if asked to."""
        for reject in head.rejects:
            self.books.reject(reject.reason)
        self.rejects += head.rejects
        self.control_tokens.update(head.control_tokens)
        self.notes.update(head.notes)
        self.read[head.source] += head.rows
        self._encoded += len(part.rows)
        weight = self._sources[head.source].weight
        drawn = copies(weight, seed=self._config.seed, source=head.source, rows=part.rows)
        of, start, end, piece = self._stretches(part, drawn)
        # Every copy of a piece is an example of its own, copy by copy.
        times = drawn[of]
        copy = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        of, start, end, piece = (np.repeat(column, times) for column in (of, start, end, piece))
        supervised = part.supervised[of]
        for place in np.flatnonzero(end - start != part.lengths[of]).tolist():
            supervised[place] = targets(self._mask(part, int(of[place])), int(start[place]), int(end[place]))
        return Listed(
            source=np.full(len(of), head.source, dtype=np.int32),
            row=part.rows[of],
            piece=piece.astype(np.int32),
            copy=copy.astype(np.int32),
            starts=(part.offsets[:-1][of] + start).astype(np.int32),
            lengths=(end - start).astype(np.int32),
            supervised=supervised,
            is_eval=(part.content_hash[of] < self._eval_below) | head.is_eval,
        )

    def _stretches(self, part: TokenPart, drawn: np.ndarray) -> tuple[np.ndarray, ...]:
        """(conversation, start, end, piece) of what goes in, once each: nearly always each conversation whole. Entered in the books."""
        lengths = part.lengths.astype(np.int64)
        fits = lengths <= self._config.capacity
        self.books.leave_out(conversations=int((drawn == 0).sum()))
        whole = np.flatnonzero((drawn > 0) & fits)
        self.books.take(conversations=len(whole), tokens=int((lengths * drawn)[whole].sum()))
        table = [np.stack([whole, np.zeros_like(whole), lengths[whole], np.zeros_like(whole)])]
        for place in np.flatnonzero((drawn > 0) & ~fits).tolist():
            kept = np.array(self._pieces(part, place, int(drawn[place])), dtype=np.int64).reshape(-1, 2)
            table.append(np.stack([np.full(len(kept), place), kept[:, 0], kept[:, 1], np.arange(len(kept))]))
        joined = np.concatenate(table, axis=1)
        return tuple(joined[:, np.argsort(joined[0], kind="stable")])

    def _pieces(self, part: TokenPart, place: int, copies: int) -> list[tuple[int, int]]:
        """The pieces of one over-long conversation that go in, entered in the books; none where it is left out."""
        length = int(part.lengths[place])
        turn_ends = part.turn_ends[int(part.turn_offsets[place]) : int(part.turn_offsets[place + 1])]
        policy = effective_policy(self._config.overlong, turn_ends)
        cuts = cut(length=length, turn_ends=turn_ends, capacity=self._config.capacity, policy=policy)
        mask = self._mask(part, place)
        kept = [(start, end) for start, end in cuts if targets(mask, start, end)]
        if not kept:
            self._lose_overlong(part, place, copies)
            return []
        inside = sum(end - start for start, end in kept)
        self.books.take(conversations=1, tokens=copies * inside)
        if policy == "split":
            self.notes["longer than a row, split", "documents" if not len(turn_ends) else "conversations"] += 1
            self.notes["longer than a row, split", "pieces"] += len(kept)
        if inside < length:
            self.books.lose_part(
                "truncated" if policy == "truncate" else "split_off", tokens=copies * (length - inside)
            )
        return kept

    def _mask(self, part: TokenPart, place: int) -> np.ndarray:
        return part.mask(int(part.offsets[place]), int(part.offsets[place + 1]))

    def _lose_overlong(self, part: TokenPart, place: int, copies: int) -> None:
        where, length = part.places[place].as_py(), int(part.lengths[place])
        detail = f"{length} tokens do not fit a row of {self._config.capacity}"
        if self._config.overlong == "error":
            raise UserError(f"{where}: {detail}", "give a larger --capacity, or --overlong drop, truncate or split")
        self.books.lose("overlong", tokens=length * copies)
        row = int(part.rows[place])
        self.rejects.append(Reject(source=part.source, row=row, place=where, reason="overlong", detail=detail))

    def ledger(self) -> Ledger:
        """The books as the manifest keeps them."""
        return Ledger(
            conversations=self.books.conversations,
            tokens=self.books.tokens,
            in_part=self.books.in_part,
            control_tokens=_nested(self.control_tokens),
            notes=_nested(self.notes),
        )

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
        self._refuse_unread_map()
        hold_loss(self.books, max_loss=self._config.max_loss, out=self._config.out)

    def _refuse_empty(self) -> None:
        if self.books.conversations["in"]:
            return
        names = ", ".join(dict.fromkeys(source.name for source in self._sources))
        if not self.books.conversations["read"]:
            raise UserError(
                f"{names}: empty: not one conversation in it", "check that the file was written whole, or name another"
            )
        lost = self.books.lost_conversations()
        reason = max(lost, key=lost.__getitem__, default="")
        example = next((reject for reject in self.rejects if reject.reason == reason), None)
        hint = f"each is listed in {self._config.out / 'rejects.jsonl'}"
        if not reason:
            hint = "give a larger weight with --mix, or more conversations"
        elif reason == "no_messages":
            hint = _COLUMN_HINTS[self._config.format]
        why = f"{example.place}: {example.detail}" if example else "none was drawn by its weight"
        raise UserError(
            f"{names}: none of {self.books.conversations['read']} conversations can be used; {why}",
            hint,
        )

    def _refuse_unread_map(self) -> None:
        """A column that was named with --map and that no row has is a mistyped one."""
        for field, column in self._config.map:
            if self.notes[NOT_READ, f"{field}={column}"] == self._encoded:
                others = sorted(name for kind, name in self.notes if kind == "unread column")
                near = nearest(column, others)
                raise UserError(
                    f"--map {field}={column}: read from no row: no such column, or one that this format does not read",
                    f"did you mean --map {field}={near}?"
                    if near
                    else f"columns that nothing reads: {', '.join(others) or 'none'}",
                )


def _nested(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (first, second), count in counts.items():
        nested.setdefault(first, {})[second] = count
    return nested


def _writable(text: str) -> str:
    """Text that may quote half a surrogate pair, as UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def hold_loss(books: Books, *, max_loss: Fraction, out: Path) -> None:
    """Raises GateError where more was lost than `max_loss` allows; it says of what, and by which reasons."""
    loss = books.loss()
    if loss <= max_loss:
        return
    lost = books.lost_conversations()
    read = sum(lost.values()) + books.conversations["in"]
    if Fraction(sum(lost.values()), read) == loss:
        what, counts, of = "conversations", lost, f"{read} conversations read"
    else:
        what, counts, of = "tokens", books.lost_tokens(), f"{books.tokens['encoded']} tokens encoded"
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.items())
    # What was cut off a conversation that went in is listed nowhere: the conversation is there.
    see = f"see {out / 'rejects.jsonl'}; " if lost else ""
    raise GateError(
        f"{float(loss):.2%} of the {what} were lost, more than --max-loss {float(max_loss):.2%} ({reasons}, of {of})",
        f"{see}mend the data, give a larger --capacity, or allow more with --max-loss",
    )
