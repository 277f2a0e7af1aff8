"""What `packer inspect` shows: a row or an example as text again, its targets, control tokens and pad told apart, and where it came from.

shown = show(folder, split="train", row=12, example=None, limit=None)
shown.rows[0].segments[0].pieces[0].text

Tokens are decoded in runs (a character can lie in several of them), by the folder's own tokenizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from packer.analysis.loss_weights import count_weights, describe_weights
from packer.errors import UserError
from packer.examples import ExampleTable, read_examples
from packer.manifest import Manifest, load_manifest
from packer.shards import Corpus, open_corpus
from packer.tokenizer import Tokenizer, load_tokenizer
from packer.types import BoolArray, Int32Array, Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A run of tokens of one kind. is_target: the model learns to say it. is_control: one token that the template wrote, not text that spells it."""

    text: str
    ids: tuple[int, ...]
    is_target: bool
    is_control: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Slots [start, end) of a row. example: None for the pad tail, which has no pieces. tokens: of the example, alignment padding not counted; 0 of the
    pad tail. targets: their number. loss_weights: by what a target counts in the loss, how many do, in words; "" where all count 1. origin: for a person."""

    segment: int
    start: int
    end: int
    example: int | None
    origin: str
    source: int | None
    source_row: int | None
    tokens: int
    targets: int
    loss_weights: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRow:
    """A row, or the part of it that was asked for. row: in its split; shard_row: in its shard. num_segments: of the whole row."""

    split: str
    row: int
    shard: str
    shard_row: int
    capacity: int
    num_segments: int
    num_examples: int
    num_supervised: int
    segments: tuple[Segment, ...]

    def to_json(self, *, only_targets: bool) -> dict[str, object]:
        """All of it, or without the pieces that are not targets."""
        segments = [
            replace(one, pieces=tuple(piece for piece in one.pieces if piece.is_target or not only_targets))
            for one in self.segments
        ]
        return asdict(replace(self, segments=tuple(segments)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Rows in order. controls: the texts of all control tokens, so that text which only spells one can be told apart."""

    rows: tuple[ShownRow, ...]
    controls: frozenset[str]


class Folder:
    """A folder opened for looking at: tokenizer, table of examples and rows. split None: the split that what is asked for lies in."""

    def __init__(self, folder: Path, *, split: str | None) -> None:
        self.folder = folder
        self.manifest: Manifest = load_manifest(folder)
        self._table: ExampleTable = read_examples(folder)
        self._tokenizer: Tokenizer = load_tokenizer(str(folder / "tokenizer"))
        self._split = split
        if split is not None:
            open_corpus(folder, split=split)  # says which splits there are
        self.controls = control_texts(self._tokenizer)

    def row(self, row: int) -> ShownRow:
        """A row whole; raises UserError where the split has no such row."""
        corpus = self._corpus(self._split or "train")
        if not 0 <= row < len(corpus):
            raise UserError(
                f"--row {row}: the split {corpus.split!r} of {self.folder} has {len(corpus)} rows",
                f"give one from 0 to {len(corpus) - 1}" if len(corpus) else "the split is empty",
            )
        return self._shown(corpus, row, None)

    def example(self, example: int) -> ShownRow:
        """The row an example lies in, without its other segments; raises UserError where there is no such example."""
        if not 0 <= example < len(self._table):
            raise UserError(
                f"--example {example}: {self.folder} has {len(self._table)} examples",
                f"give one from 0 to {len(self._table) - 1}",
            )
        split = "eval" if self._table.is_eval[example] else "train"
        if self._split not in (None, split):
            raise UserError(
                f"--example {example}: in the split {split!r}, not in {self._split!r}",
                f"leave --split out, or give --split {split}",
            )
        corpus = self._corpus(split)
        for row in _rows_with(corpus, example):
            return self._shown(corpus, row, example)
        raise UserError(
            f"--example {example}: listed in examples/, but in no row of {self.folder}",
            f"see `packer verify {self.folder}`",
        )

    def first_rows(self, limit: int) -> Iterator[ShownRow]:
        """The first rows of the split, until they hold so many examples; the last is cut short."""
        corpus = self._corpus(self._split or "train")
        left = limit
        for row in range(len(corpus)):
            shown = self._shown(corpus, row, None, most=left)
            left -= sum(segment.example is not None for segment in shown.segments)
            yield shown
            if left <= 0:
                return

    def _corpus(self, split: str) -> Corpus:
        return open_corpus(self.folder, split=split)

    def _shown(self, corpus: Corpus, number: int, only: int | None, most: int | None = None) -> ShownRow:
        row = corpus[number]
        first = sum(shard.rows for shard in corpus.info.shards[: corpus.shard_of(number)])
        segments = [place for place in range(row.num_segments) if only is None or row.example_ids[place] == only]
        return ShownRow(
            split=corpus.split,
            row=number,
            shard=corpus.info.shards[corpus.shard_of(number)].file,
            shard_row=number - first,
            capacity=corpus.capacity,
            num_segments=row.num_segments,
            num_examples=row.num_examples,
            num_supervised=row.num_supervised,
            segments=tuple(self._segment(row, place) for place in segments[:most]),
        )

    def _segment(self, row: Row, place: int) -> Segment:
        start, end = int(row.cu_seqlens[place]), int(row.cu_seqlens[place + 1])
        example: int | None = int(row.example_ids[place])
        if example is None or example < 0:
            example = None
        filled = end if example is None or row.example_lens is None else start + int(row.example_lens[place])
        ids, mask = row.input_ids[start:filled], row.loss_mask[start:filled]
        listed = example is not None and example < len(self._table)
        return Segment(
            segment=place,
            start=start,
            end=end,
            example=example,
            origin=self._table.origin(example, self.manifest) if listed and example is not None else "",
            source=int(self._table.source[example]) if listed else None,
            source_row=int(self._table.row[example]) if listed else None,
            tokens=len(ids) if example is not None else 0,
            targets=int(mask.sum()),
            loss_weights=""
            if row.loss_weights is None
            else describe_weights(count_weights(row.loss_weights[start:filled])),
            pieces=tuple(pieces(self._tokenizer, ids, mask)) if example is not None else (),
        )


def pieces(tokenizer: Tokenizer, ids: Int32Array, mask: BoolArray) -> Iterator[Piece]:
    """Tokens of one example, ids int32 [n] and loss_mask bool [n], as text: runs of one kind, each control token by itself."""
    controls = tokenizer.added_tokens
    kinds = [
        (bool(target), int(token) in controls and bool(controls[int(token)].strip()))
        for token, target in zip(ids, mask, strict=True)
    ]
    at = 0
    for (is_target, is_control), run in itertools.groupby(kinds):
        size = len(list(run))
        # Each control token is a piece of its own.
        for start, end in [(at + n, at + n + 1) for n in range(size)] if is_control else [(at, at + size)]:
            here = tuple(ids[start:end].tolist())
            text = controls[here[0]] if is_control else _decode(tokenizer, ids, start, end)
            yield Piece(text=text, ids=here, is_target=is_target, is_control=is_control)
        at += size


def control_texts(tokenizer: Tokenizer) -> frozenset[str]:
    """The texts of all control tokens, so that text which only spells one can be told apart."""
    return frozenset(text for text in tokenizer.added_tokens.values() if text.strip())


def _decode(tokenizer: Tokenizer, ids: Int32Array, start: int, end: int) -> str:
    """Text of tokens [start, end). A byte-level decoder knows no context; others write a token's leading space only behind another token."""
    run: Sequence[int] = ids[start:end].tolist()
    if tokenizer.byte_lengths is not None or not start:
        return tokenizer.decode(run)
    before = ids[start - 1 : start].tolist()
    alone = tokenizer.decode(before)
    both = tokenizer.decode([*before, *run])
    return both[len(alone) :] if both.startswith(alone) else tokenizer.decode(run)


def _rows_with(corpus: Corpus, example: int) -> Iterator[int]:
    """The rows of a corpus that hold an example, in order; reads on only as far as they are asked for."""
    first = 0
    for _, _, rows in corpus.batches():
        for row in np.flatnonzero((rows.example_ids == example).any(axis=1)).tolist():
            yield first + row
        first += len(rows)


def show(folder: Path, *, split: str | None, row: int | None, example: int | None, limit: int | None) -> Shown:
    """A row, or an example, or (with neither) the first `limit` examples of the split in the order of the rows."""
    opened = Folder(folder, split=split)
    if row is not None:
        shown = [opened.row(row)]
    elif example is not None:
        shown = [opened.example(example)]
    elif limit is not None:
        shown = list(opened.first_rows(limit))
    else:
        shown = [opened.row(0)]
    return Shown(rows=tuple(shown), controls=opened.controls)
