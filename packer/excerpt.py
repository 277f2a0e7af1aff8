"""What a page shows of the rows themselves, bounded whatever the corpus: a few buffers to draw, and a choice of rows decoded token by token.

    excerpt = take(open_corpus("data/packed"))
    excerpt.rows[0]["segments"][0]["origin"]

Decoded text is cut to a number of bytes that all rows share: of each example its first tokens and its last, and how many were left out between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypedDict

import numpy as np

from packer.buffers import Block, Buffers, Lane, padded
from packer.examples import ExampleTable, read_examples
from packer.html.page import inert_json
from packer.row_choice import choose
from packer.shards import Corpus
from packer.stats import tokens_of_rows
from packer.tokenizer import Tokenizer, load_tokenizer
from packer.types import Row
from packer.units import Unit, units

_DECODED_BYTES = 260_000
_DRAWN_ROWS, _DRAWN_EXAMPLES, _MOST_DRAWN = 4, 48, 128
_ORIGIN_CHARACTERS = 60
# Of what is shown of an example that is too long, the share that its beginning gets.
_HEAD = 0.75
# Of a row's bytes, those that the list of its segments leaves to their text.
_TEXT = 0.75
# Of a unit in JSON; of the parts of a segment beside their units.
_COMMAS = 2
_PARTS_BYTES = 140
TARGET, CONTROL = 1, 2


class Part(TypedDict):
    """Neighbouring units. at: the place of the first token in its example. kinds: runs of (count, kind); kind: 1 a target, 2 a control token, 3 both."""

    at: int
    text: list[str]
    ids: list[int | list[int]]
    kinds: list[list[int]]


class Segment(TypedDict):
    """start: its first slot in the row. slots: with alignment padding. example: None for the pad tail. left_out: tokens not shown between the parts."""

    example: int | None
    origin: str
    start: int
    slots: int
    tokens: int
    targets: int
    left_out: int
    parts: list[Part]


class ShownRow(TypedDict):
    """more: segments behind those that are listed."""

    split: str
    row: int
    shard: str
    why: list[str]
    capacity: int
    tokens: int
    targets: int
    segments: list[Segment]
    more: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """origins: of the examples that are drawn."""

    buffers: Buffers
    origins: Mapping[int, str]
    rows: tuple[ShownRow, ...]


def take(corpus: Corpus) -> Excerpt:
    """Of a corpus that holds rows; reads the table of examples and the tokenizer, and fetches the shards of the rows that it shows."""
    table = read_examples(corpus.fetch("examples").parent)
    tokenizer = load_tokenizer(str(corpus.fetch("tokenizer")))
    drawn = buffers(corpus)
    examples = [block.example for lane in drawn.packed for block in lane.blocks]
    rows = choose(
        tokens=tokens_of_rows(corpus),
        segments=corpus.column("num_segments").astype(np.int64),
        targets=corpus.column("num_supervised").astype(np.int64),
    )
    decode = _Decoder(corpus, table, tokenizer)
    return Excerpt(
        buffers=drawn,
        origins={example: decode.origin(example) for example in examples},
        rows=tuple(decode.row(number, why, _DECODED_BYTES // len(rows)) for number, why in rows.items()),
    )


def buffers(corpus: Corpus) -> Buffers:
    """The first rows, at most 4, until they hold 48 examples; of the last no more than make 128 in all."""
    lanes: list[Lane] = []
    count = more = 0
    for number in range(min(_DRAWN_ROWS, len(corpus))):
        if count >= _DRAWN_EXAMPLES:
            break
        row = corpus[number]
        blocks = [
            Block(example=example, start=start, tokens=tokens)
            for example, start, tokens in zip(
                row.example_ids[: row.num_examples].tolist(),
                row.cu_seqlens.tolist(),
                row.lengths.tolist(),
                strict=False,
            )
        ]
        kept = blocks[: _MOST_DRAWN - count]
        count, more = count + len(kept), len(blocks) - len(kept)
        # A row that is cut ends where its last drawn example does: what is not drawn is no padding.
        slots = kept[-1].start + kept[-1].tokens if more else corpus.capacity
        lanes.append(Lane(slots=slots, blocks=tuple(kept)))
    return Buffers(packed=tuple(lanes), padded=padded(lanes), more=more)


class _Decoder:
    """The rows of one corpus as text."""

    def __init__(self, corpus: Corpus, table: ExampleTable, tokenizer: Tokenizer) -> None:
        self._corpus, self._table, self._tokenizer = corpus, table, tokenizer

    def origin(self, example: int) -> str:
        if not 0 <= example < len(self._table):
            return ""
        origin = self._table.origin(example, self._corpus.manifest)
        # The end has the row's number.
        return origin if len(origin) <= _ORIGIN_CHARACTERS else f"…{origin[-_ORIGIN_CHARACTERS:]}"

    def row(self, number: int, why: Sequence[str], most_bytes: int) -> ShownRow:
        """A row whose decoded text takes about `most_bytes` of JSON, shared by its examples: a short one leaves the others what it does not need."""
        row = self._corpus[number]
        segments: list[Segment] = []
        left = most_bytes
        for place in range(row.num_segments):
            segment = self._segment(row, place)
            left -= _bytes(segment)
            if segments and left < most_bytes * _TEXT:
                break
            segments.append(segment)
        by_length = sorted((one for one in segments if one["tokens"]), key=lambda one: one["tokens"])
        for done, segment in enumerate(by_length):
            left -= self._fill(row, segment, max(left, 0) // (len(by_length) - done))
        return ShownRow(
            split=self._corpus.split,
            row=number,
            shard=self._corpus.info.shards[self._corpus.shard_of(number)].file,
            why=list(why),
            capacity=self._corpus.capacity,
            tokens=row.tokens,
            targets=row.num_supervised,
            segments=segments,
            more=row.num_segments - len(segments),
        )

    def _segment(self, row: Row, place: int) -> Segment:
        start, end = int(row.cu_seqlens[place]), int(row.cu_seqlens[place + 1])
        is_example = place < row.num_examples
        tokens = int(row.lengths[place]) if is_example else 0
        example = int(row.example_ids[place]) if is_example else None
        return Segment(
            example=example,
            origin="" if example is None else self.origin(example),
            start=start,
            slots=end - start,
            tokens=tokens,
            targets=int(row.loss_mask[start : start + tokens].sum()),
            left_out=tokens,
            parts=[],
        )

    def _fill(self, row: Row, segment: Segment, most_bytes: int) -> int:
        """Decodes as much of an example as fits; the bytes that it took."""
        ids = row.input_ids[segment["start"] : segment["start"] + segment["tokens"]]
        most_bytes -= _PARTS_BYTES
        head, taken = self._within(iter(units(self._tokenizer, ids, 0, len(ids))), most_bytes)
        shown = sum(len(unit.ids) for unit in head)
        if shown == len(ids):
            kept = [(0, head)]
        else:
            head, taken = self._within(iter(head), int(most_bytes * _HEAD))
            begun = sum(len(unit.ids) for unit in head)
            # Tokens of about the same size at the end; a character that the cut goes through is shown as broken, so the cut moves on to a whole one.
            first = max(len(ids) - (shown - begun), begun)
            tail = list(units(self._tokenizer, ids, first, len(ids)))
            while tail and "\ufffd" in tail[0].text:
                first += len(tail.pop(0).ids)
            tail, _ = self._within(reversed(tail), most_bytes - taken)
            tail.reverse()
            kept = [(0, head), (len(ids) - sum(len(unit.ids) for unit in tail), tail)]
        mask = row.loss_mask[segment["start"] : segment["start"] + segment["tokens"]]
        segment["parts"] = [self._part(at, run, mask) for at, run in kept if run]
        segment["left_out"] = len(ids) - sum(len(unit.ids) for _, run in kept for unit in run)
        return _bytes(segment["parts"])

    @staticmethod
    def _within(run: Iterator[Unit], most_bytes: int) -> tuple[list[Unit], int]:
        kept: list[Unit] = []
        taken = 0
        for unit in run:
            size = _bytes(unit.text) + _bytes(_ids(unit)) + _COMMAS
            if taken + size > most_bytes:
                break
            kept.append(unit)
            taken += size
        return kept, taken

    def _part(self, at: int, run: Sequence[Unit], mask: np.ndarray) -> Part:
        kinds, place = [], at
        for unit in run:
            is_control = bool(self._tokenizer.added_tokens.get(unit.ids[0], "").strip()) and len(unit.ids) == 1
            kinds.append(TARGET * bool(mask[place]) + CONTROL * is_control)
            place += len(unit.ids)
        return Part(
            at=at,
            text=[unit.text for unit in run],
            ids=[_ids(unit) for unit in run],
            kinds=[[len(list(same)), kind] for kind, same in groupby(kinds)],
        )


def _ids(unit: Unit) -> int | list[int]:
    return unit.ids[0] if len(unit.ids) == 1 else list(unit.ids)


def _bytes(value: object) -> int:
    return len(inert_json(value).encode())
