"""Shards on disk: a writer that is crash-safe and a reader that copies nothing.

A shard is an Arrow IPC file of record batches of exactly 16 rows. `Corpus` maps the files of a split into memory; `corpus[i]` is a `Row` whose
arrays are views of the map (the loss mask, stored as bits, is unpacked).

    corpus = open_corpus("data/packed", split="train")      # or "s3://bucket/packed"
    len(corpus), corpus[0].input_ids
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from packer.arrow import of_numpy
from packer.columns import COLUMNS, columns_file, read_columns
from packer.digest import digest_file
from packer.errors import UserError
from packer.files import write_arrow
from packer.manifest import Manifest, ShardFile, corpus_digest, load_manifest
from packer.schema import ROWS_PER_BATCH, RowBatch, broken_rule, shard_schema
from packer.types import Int32Array, Row
from packer.views import RESTORE, Kind, MappedShard, Places

if TYPE_CHECKING:
    from packer.remote import Mirror

_COLUMNS = tuple(field.name for field in fields(RowBatch))


def write_shard(
    folder: Path,
    name: str,
    batches: Iterable[RowBatch],
    *,
    capacity: int,
    max_segments: int,
    pad_id: int,
    vocab_size: int,
    align: int = 1,
    weighted: bool = False,
) -> ShardFile:
    """Writes one shard (`name` relative to the folder), each batch held against every rule of the format first.

    Raises RuntimeError where a rule is broken: what we lay out ourselves must be right, so that is a bug and not bad input.
    """
    schema = shard_schema(capacity=capacity, max_segments=max_segments, align=align, weighted=weighted)
    rows = 0

    def checked() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            if broken := broken_rule(batch, pad_id=pad_id, vocab_size=vocab_size, align=align):
                raise RuntimeError(f"{name}, row {rows + broken[0]}: {broken[1]}")
            yield _to_arrow(batch, schema)
            rows += len(batch)

    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrow(path, schema, checked())
    return ShardFile(file=name, rows=rows, bytes=path.stat().st_size, xxh3_128=digest_file(path))


def _to_arrow(batch: RowBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for name in schema.names:
        values, kind = getattr(batch, name), schema.field(name).type
        if pa.types.is_fixed_size_list(kind):
            items = of_numpy(values.reshape(-1), None if pa.types.is_boolean(kind.value_type) else kind.value_type)
            columns.append(pa.FixedSizeListArray.from_arrays(items, type=kind))
        else:
            columns.append(of_numpy(values, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Corpus:
    """The rows of one split, by memory map. len(corpus); corpus[i] → Row; `column(name)` for the integer columns of all rows at once.

    Cheap to open (sizes are held against the manifest, nothing is read); safe to read from several threads. name: the folder as it was given, for
    messages. folder: where it lies on this machine; of an address that is its mirror, into which `fetch` and reading bring what they need.
    """

    def __init__(self, folder: Path, *, split: str, mirror: Mirror | None = None) -> None:
        self.folder, self._mirror = folder, mirror
        self.name = str(folder) if mirror is None else mirror.address
        self.manifest: Manifest = load_manifest(folder, name=self.name)
        if split not in self.manifest.splits:
            raise UserError(f"{self.name}: no split {split!r}", f"it has: {', '.join(sorted(self.manifest.splits))}")
        self.split = split
        self.info = self.manifest.splits[split]
        self.capacity = self.manifest.capacity
        self.max_segments = self.info.max_segments
        self._first_row = list(accumulate((shard.rows for shard in self.info.shards), initial=0))
        if self._first_row[-1] != self.info.rows:
            raise UserError(
                f"{self.name}/manifest.json: split {split!r} claims {self.info.rows} rows, its shards {self._first_row[-1]}",
                "build the folder again, or restore the file from a copy",
            )
        named = corpus_digest(
            self.manifest.splits,
            capacity=self.capacity,
            max_segments=self.manifest.max_segments,
            pad_id=self.manifest.pad_id,
        )
        if named != self.manifest.corpus_digest:
            raise UserError(
                f"{self.name}/manifest.json: corpus_digest is {self.manifest.corpus_digest}, but its shards, capacity, max_segments and pad id "
                f"make {named}: the manifest was changed after it was written",
                "build the folder again, or restore the file from a copy",
            )
        if mirror is None:
            for shard in self.info.shards:
                self._check_size(shard)
        self._shards: dict[int, MappedShard] = {}
        self._known: dict[Kind, Places] = {}

    def __len__(self) -> int:
        return self.info.rows

    def __repr__(self) -> str:
        return (
            f"Corpus({self.name!r}, split={self.split!r}: {self.info.rows} rows of {self.capacity} slots, "
            f"at most {self.max_segments} segments, {self.info.examples} examples, {self.info.tokens} tokens)"
        )

    def __getitem__(self, index: int) -> Row:
        shard, place = self._locate(index)
        return self._mapped(shard).row(place)

    def input_ids(self, index: int) -> Int32Array:
        """int32 [C]: the ids of row `index` alone, a view of the map."""
        shard, place = self._locate(index)
        return self._mapped(shard).input_ids(place)

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def column(self, name: str) -> np.ndarray:
        """An integer column over all rows: num_segments, num_examples, num_supervised (int32 [R]), sum_sq_len (int64 [R]), or one of lists: [R, width].

        Of a folder that was published at an address the first four fetch no shard: it has them in a file of their own.
        """
        if (
            name in COLUMNS
            and self._mirror is not None
            and (table := self._mirror.fetch(columns_file(self.split))).is_file()
        ):
            return read_columns(table, rows=len(self))[name]
        self.ahead(range(len(self.info.shards)))
        parts = [self._mapped(shard).column(name) for shard in range(len(self.info.shards))]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def batches(self) -> Iterator[tuple[ShardFile, int, RowBatch]]:
        """Every record batch in order, with its shard and the place of its first row in that shard."""
        for number, shard in enumerate(self.info.shards):
            for first in range(0, shard.rows, ROWS_PER_BATCH):
                yield shard, first, self._mapped(number).batch(first // ROWS_PER_BATCH)

    def shard_of(self, index: int) -> int:
        """The number of the shard that holds row `index`."""
        return self._locate(index)[0]

    def where(self, index: int) -> str:
        """A row's place for a person: folder, shard file and the row's place in it."""
        shard, place = self._locate(index)
        return f"{self.name}/{self.info.shards[shard].file}, row {place}"

    def verify_shard(self, shard: int) -> None:
        """Reads shard number `shard` whole and holds its digest against the manifest; raises UserError where they differ.

        One at an address is held against it when it is fetched and whenever a process first uses it; that is not done twice.
        """
        entry = self.info.shards[shard]
        path = self._path(shard)
        if self._mirror is None and digest_file(path) != entry.xxh3_128:
            raise UserError(
                f"{path}: its bytes are not those that were written (digest differs from the manifest's)",
                RESTORE,
            )

    @property
    def verifies_itself(self) -> bool:
        """Whether each shard is held against its digest before a row of it is read, as those of an address are."""
        return self._mirror is not None

    def fetch(self, name: str) -> Path:
        """Another file of the folder, or a folder in it ("tokenizer"), on this machine; the path does not exist where there is none."""
        return self.folder / name if self._mirror is None else self._mirror.fetch(name)

    def bytes_under(self, name: str) -> int:
        """Bytes of all files of a folder in this one, which are not fetched for that."""
        if self._mirror is not None:
            return self._mirror.bytes_under(name)
        return sum(file.stat().st_size for file in (self.folder / name).rglob("*") if file.is_file())

    def ahead(self, shards: Iterable[int]) -> None:
        """Has shards at an address fetched in the background: rows of them will be read soon."""
        if self._mirror is not None:
            self._mirror.ahead(self.info.shards[shard] for shard in shards)

    def _path(self, shard: int) -> Path:
        entry = self.info.shards[shard]
        return self.folder / entry.file if self._mirror is None else self._mirror.shard(entry)

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect_right(self._first_row, index) - 1
        return shard, index - self._first_row[shard]

    def _check_size(self, shard: ShardFile) -> None:
        path = self.folder / shard.file
        if not path.is_file():
            raise UserError(
                f"{path}: the manifest names this shard, but it is missing",
                "restore it from a copy, or build the folder again",
            )
        if (size := path.stat().st_size) != shard.bytes:
            raise UserError(
                f"{path}: {size} bytes, but the manifest says {shard.bytes}: cut short or written over",
                RESTORE,
            )

    def _mapped(self, shard: int) -> MappedShard:
        mapped = self._shards.get(shard)
        if mapped is None:
            entry = self.info.shards[shard]
            mapped = self._shards[shard] = MappedShard(
                self._path(shard),
                rows=entry.rows,
                schema=shard_schema(
                    capacity=self.capacity,
                    max_segments=self.max_segments,
                    align=self.manifest.align,
                    weighted=self.manifest.weighted,
                ),
                known=self._known,
            )
        return mapped


def open_corpus(path: str | Path, *, split: str = "train", cache: Path | None = None) -> Corpus:
    """Opens a folder of packed shards, or an address of one (s3://bucket/packed); raises UserError where it is not one.

    cache: where a mirror of an address is kept; None is ~/.cache/packer.
    """
    if "://" not in str(path):
        return Corpus(Path(path), split=split)
    from packer.remote import open_mirror
    from packer.store import local_path

    if (local := local_path(str(path))) is not None:
        return Corpus(local, split=split)
    mirror = open_mirror(str(path), cache=cache)
    return Corpus(mirror.folder, split=split, mirror=mirror)


def check_row(corpus: Corpus, index: int, row: Row) -> None:
    """Holds one row that was read against every rule of the format and the manifest's bounds; raises UserError with shard, row and rule."""
    manifest = corpus.manifest
    columns = {name: np.asarray(value)[None] for name in _COLUMNS if (value := getattr(row, name)) is not None}
    if broken := broken_rule(
        RowBatch(**columns), pad_id=manifest.pad_id, vocab_size=manifest.vocab_size, align=manifest.align
    ):
        raise UserError(f"{corpus.where(index)}: {broken[1]}", RESTORE)
    # The model's kernels are told max_segment_len and its embedding and positions were held against the other two.
    lengths = np.diff(row.cu_seqlens[: row.num_segments + 1])
    for article, name, value, bound in (
        ("a", "segment", int(lengths.max()), manifest.max_segment_len),
        ("an", "example", int(lengths[: row.num_examples].max(initial=0)), manifest.max_example_len),
        ("a", "token id", int(row.input_ids.max()), max(manifest.max_token_id, manifest.pad_id)),
    ):
        if value > bound:
            what = (
                f"token id {value} is past"
                if name == "token id"
                else f"{article} {name} of {value} tokens is longer than"
            )
            field = "max_token_id" if name == "token id" else f"max_{name}_len"
            raise UserError(
                f"{corpus.where(index)}: {what} the manifest's {field} {bound}",
                "the manifest was changed after it was written: build the folder again, or restore it from a copy",
            )
