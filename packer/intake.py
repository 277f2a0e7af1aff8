"""From the token store to the examples that go into rows, with every conversation entered in the books on the way.

intake = Intake(selection, sources)
for listed in (intake.take(head, part) for head, part in parts): ...
intake.hold_gates()
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from packer.analysis.duplicates import DuplicateCounter
from packer.chat.unprinted import NOT_PRINTED
from packer.config import BuildConfig
from packer.errors import GateError, UserError
from packer.ledger import Books
from packer.listing import Listed
from packer.manifest import Ledger
from packer.mix import copies
from packer.overlong import cut, effective_policy, targets
from packer.sources.unread_columns import refuse_unread
from packer.token_part import PartHead, Reject, TokenPart
from packer.types import Int32Array, Int64Array
from packer.words import Format

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

    `books`, `rejects` and `read` (conversations read from each source) grow as parts are taken. weighted: whether a target that goes in counts
    other than 1 in the loss.
    """

    def __init__(self, config: BuildConfig, sources: Sequence[Weighted]) -> None:
        self._config = config
        self._sources = sources
        # A hash below this belongs to the eval split: what has equal hashes (equal conversations, or all of a group) stands on one side.
        self._eval_below = np.uint64(int(config.eval_fraction * 2**64))
        self.books = Books()
        self.rejects: list[Reject] = []
        self.read = [0] * len(sources)
        self.control_tokens: Counter[tuple[str, str]] = Counter()
        self.notes: Counter[tuple[str, str]] = Counter()
        self.weighted = False
        self._duplicates = DuplicateCounter()
        self._encoded = 0

    def take(self, head: PartHead, part: TokenPart) -> Listed:
        """The examples of one part; raises UserError on an over-long conversation if asked to."""
        for reject in head.rejects:
            self.books.reject(reject.reason)
        self.rejects += head.rejects
        self.control_tokens.update(head.control_tokens)
        self.notes.update(head.notes)
        self.read[head.source] += head.rows
        self._encoded += len(np.unique(part.rows))
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
        starts, lengths = (part.offsets[:-1][of] + start).astype(np.int32), (end - start).astype(np.int32)
        self.weighted |= _weighted(part, starts, lengths)
        hashes = part.content_hash if part.group_hash is None else part.group_hash
        is_eval = (hashes[of] < self._eval_below) | head.is_eval
        # Once a conversation, however many turns, pieces and copies of it go in.
        once = np.unique(part.rows[of], return_index=True)[1]
        self._duplicates.add(part.content_hash[of[once]], is_eval[once])
        return Listed(
            source=np.full(len(of), head.source, dtype=np.int32),
            row=part.rows[of],
            piece=piece.astype(np.int32),
            copy=copy.astype(np.int32),
            starts=starts,
            lengths=lengths,
            supervised=supervised,
            is_eval=is_eval,
        )

    def _stretches(self, part: TokenPart, drawn: np.ndarray) -> tuple[np.ndarray, ...]:
        """(example, start, end, piece) of what goes in, once each: nearly always each example whole. Entered in the books.

        A conversation is one example, or one per assistant turn; it is in where any of them is. piece counts through all of a conversation's.
        """
        lengths = part.lengths.astype(np.int64)
        fits = lengths <= self._config.capacity
        begins = np.concatenate([[True], part.rows[1:] != part.rows[:-1]])[: len(lengths)]
        conversation = np.cumsum(begins) - 1
        whole = np.flatnonzero((drawn > 0) & fits)
        cuts = {place: self._cuts(part, place) for place in np.flatnonzero((drawn > 0) & ~fits).tolist()}
        is_in = np.zeros(int(begins.sum()), dtype=bool)
        is_in[conversation[whole]] = True
        is_in[conversation[[place for place, kept in cuts.items() if kept]]] = True
        self.books.leave_out(conversations=int((drawn[begins] == 0).sum()))
        self.books.take(conversations=int(is_in.sum()), tokens=int((lengths * drawn)[whole].sum()))
        table = [np.stack([whole, np.zeros_like(whole), lengths[whole]])]
        lost: dict[tuple[int, str], int] = {}
        for place, kept in cuts.items():
            copies, inside = int(drawn[place]), sum(end - start for start, end in kept)
            if inside:
                self.books.take(conversations=0, tokens=copies * inside)
                table.append(np.array([(place, start, end) for start, end in kept], dtype=np.int64).T)
            if missing := copies * (int(lengths[place]) - inside):
                key = (
                    int(conversation[place]),
                    ("truncated" if self._config.overlong == "truncate" else "split_off") if inside else "overlong",
                )
                lost[key] = lost.get(key, 0) + missing
        for (number, reason), tokens in lost.items():
            if is_in[number]:
                self.books.lose_part(reason, tokens=tokens)
            else:
                self._lose_overlong(part, np.flatnonzero(conversation == number), tokens)
        joined = np.concatenate(table, axis=1)
        of, start, end = joined[:, np.argsort(joined[0], kind="stable")]
        owner = conversation[of]
        first = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]])[: len(owner)])
        piece = np.arange(len(owner)) - np.repeat(first, np.diff(np.append(first, len(owner))))
        return of, start, end, piece

    def _cuts(self, part: TokenPart, place: int) -> list[tuple[int, int]]:
        """The stretches of one over-long example that go in; none where it is left out."""
        turn_ends = part.turn_ends[int(part.turn_offsets[place]) : int(part.turn_offsets[place + 1])]
        policy = effective_policy(self._config.overlong, turn_ends)
        cuts = cut(length=int(part.lengths[place]), turn_ends=turn_ends, capacity=self._config.capacity, policy=policy)
        mask = self._mask(part, place)
        kept = [(start, end) for start, end in cuts if targets(mask, start, end)]
        if kept and policy == "split":
            self.notes["longer than a row, split", "conversations" if len(turn_ends) else "documents"] += 1
            self.notes["longer than a row, split", "pieces"] += len(kept)
        return kept

    def _mask(self, part: TokenPart, place: int) -> np.ndarray:
        return part.mask(int(part.offsets[place]), int(part.offsets[place + 1]))

    def _lose_overlong(self, part: TokenPart, examples: Int64Array, tokens: int) -> None:
        """Enter a conversation of which no example goes in. tokens: of all its copies."""
        where, length = part.places[int(examples[0])].as_py(), int(part.lengths[examples].max())
        detail = f"{length} tokens do not fit a row of {self._config.capacity}"
        if self._config.overlong == "error":
            raise UserError(f"{where}: {detail}", "give a larger --capacity, or --overlong drop, truncate or split")
        self.books.lose("overlong", tokens=tokens)
        row = int(part.rows[int(examples[0])])
        self.rejects.append(Reject(source=part.source, row=row, place=where, reason="overlong", detail=detail))

    def ledger(self) -> Ledger:
        """The books as the manifest keeps them."""
        return Ledger(
            conversations=self.books.conversations,
            tokens=self.books.tokens,
            in_part=self.books.in_part,
            control_tokens=nested(self.control_tokens),
            notes=nested(Counter({**self.notes, **self._duplicates.notes()})),
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
        refuse_unread(self._config.map, self._config.group_by, self.notes, encoded=self._encoded)
        hold_loss(self.books, max_loss=self._config.max_loss, out=self._config.out)
        enforce_print_limit(nested(self.notes), encoded=self.books.tokens["encoded"], limit=self._config.max_unprinted)

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


def _weighted(part: TokenPart, starts: Int32Array, lengths: Int32Array) -> bool:
    """Whether a target of these stretches of a part, their first tokens left out, has a weight other than 1."""
    if part.loss_weights is None:
        return False
    before = np.concatenate([[0], np.cumsum((part.loss_weights != 0) & (part.loss_weights != 1))])
    return bool((before[starts + lengths] > before[starts + 1]).any())


def nested(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (first, second), count in counts.items():
        nested.setdefault(first, {})[_writable(second)] = count
    return nested


def _writable(text: str) -> str:
    """Text that may quote half a surrogate pair, as UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# What a template may leave out, of all but reasoning, where --max-unprinted does not say.
_MAX_UNPRINTED = Fraction(1, 100)


def enforce_print_limit(notes: Mapping[str, Mapping[str, int]], *, encoded: int, limit: Fraction | None) -> None:
    """Raise GateError where the chat template leaves out too much of the data.

    Args:
        notes: The ledger's.
        encoded: Tokens encoded.
        limit: The largest share of tokens; None: 1% of all but reasoning, which --reasoning decides.
    """
    left_out = {
        kind: count
        for kind, count in notes.get(f"{NOT_PRINTED} (tokens)", {}).items()
        if limit is not None or kind != "reasoning"
    }
    total = sum(left_out.values())
    share = Fraction(total, encoded + total) if total else Fraction(0)
    if share > (_MAX_UNPRINTED if limit is None else limit):
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(left_out.items()))
        raise GateError(
            f"the chat template leaves out {float(share):.2%} of the tokens, more than {float(_MAX_UNPRINTED if limit is None else limit):.2%} ({kinds})",
            "give a template that prints them with --chat-template, take them out of the data, or allow it with --max-unprinted",
        )


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
