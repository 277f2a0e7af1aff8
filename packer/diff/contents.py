"""What is in the rows of a folder, by name: each example's place in its source with digests of its ids and of its mask, and each row's digest.

contents = read_contents(Path("data/packed"), manifest, progress)

Names are (source, row, piece, copy), so that two builds can be compared whatever their capacity, seed and order; what no name matches is matched by content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import UserError
from packer.examples import ExampleTable, read_examples
from packer.manifest import Manifest, Source
from packer.progress import Progress
from packer.shards import open_corpus
from packer.tokens import TokenStore
from packer.types import BoolArray, Float32Array, Int32Array, Int64Array

UInt64Array = NDArray[np.uint64]
_STORE = "tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an example lies: split, row of it and slots [start, end)."""

    split: str
    row: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """ids_digest, mask_digest, weights_digest: uint64 [N] by example_id. rows: uint64 [R] digests of the rows of each split in order (ids, mask, weights
    and boundaries)."""

    folder: Path
    manifest: Manifest
    table: ExampleTable
    ids_digest: UInt64Array
    mask_digest: UInt64Array
    weights_digest: UInt64Array
    split: NDArray[np.int8]
    row: Int64Array
    start: Int64Array
    rows: dict[str, UInt64Array]

    def place(self, example: int) -> Place:
        """Where an example lies: split, row, and slots [start, end) of it without filling."""
        start = int(self.start[example])
        return Place(
            split=sorted(self.rows)[int(self.split[example])],
            row=int(self.row[example]),
            start=start,
            end=start + int(self.table.tokens[example]),
        )

    def tokens(self, example: int) -> tuple[Int32Array, BoolArray, Float32Array]:
        """An example's ids, mask and weights, from its row."""
        place = self.place(example)
        row = open_corpus(self.folder, split=place.split)[place.row]
        slots = slice(place.start, place.end)
        return row.input_ids[slots], row.loss_mask[slots], _weights(row.loss_mask, row.loss_weights)[slots]


def read_contents(folder: Path, manifest: Manifest, progress: Progress) -> Contents:
    """Reads every row once; raises UserError where the folder is damaged."""
    table = read_examples(folder)
    count = len(table)
    ids_digest, mask_digest, weights_digest = (np.zeros(count, dtype=np.uint64) for _ in range(3))
    split, at_row, at_slot = np.full(count, -1, dtype=np.int8), np.zeros(count, np.int64), np.zeros(count, np.int64)
    rows: dict[str, UInt64Array] = {}
    total = sum(one.rows for one in manifest.splits.values())
    with progress.stage(f"read {folder.name}", unit="rows", total=total) as advance:
        for number, name in enumerate(sorted(manifest.splits)):
            corpus = open_corpus(folder, split=name)
            digests: list[int] = []
            for _, _, batch in corpus.batches():
                all_weights = _weights(batch.loss_mask, batch.loss_weights)
                for place in range(len(batch)):
                    ids, mask, weights = batch.input_ids[place], batch.loss_mask[place], all_weights[place]
                    cu = batch.cu_seqlens[place].tolist()
                    used = int(batch.num_segments[place])
                    for segment in range(int(batch.num_examples[place])):
                        start, end, example = cu[segment], cu[segment + 1], int(batch.example_ids[place, segment])
                        if batch.example_lens is not None:
                            end = start + int(batch.example_lens[place, segment])
                        if not 0 <= example < count or end - start != table.tokens[example]:
                            raise UserError(
                                f"{corpus.where(len(digests))}: example {example} is not as examples/ lists it",
                                f"see `packer verify {folder}`",
                            )
                        ids_digest[example] = xxhash.xxh3_64_intdigest(ids[start:end])
                        mask_digest[example] = xxhash.xxh3_64_intdigest(mask[start:end])
                        weights_digest[example] = xxhash.xxh3_64_intdigest(weights[start:end])
                        split[example], at_row[example], at_slot[example] = number, len(digests), start
                    boundaries = batch.cu_seqlens[place, : used + 1]
                    said = (ids, mask, weights, boundaries)
                    digests.append(xxhash.xxh3_64_intdigest(b"".join(each.tobytes() for each in said)))
                advance(len(batch))
            rows[name] = np.array(digests, dtype=np.uint64)
    return Contents(
        folder=folder,
        manifest=manifest,
        table=table,
        ids_digest=ids_digest,
        mask_digest=mask_digest,
        weights_digest=weights_digest,
        split=split,
        row=at_row,
        start=at_slot,
        rows=rows,
    )


def _weights(mask: BoolArray, weights: Float32Array | None) -> Float32Array:
    """What each token counts in the loss, in a build of either version."""
    return mask.astype(np.float32) if weights is None else weights


def match(a: Contents, b: Contents) -> tuple[Int64Array, Int64Array]:
    """Examples of a and of b that are the same one, int64 [m] each: those with one name, in the order of the sources, then those that say the same.

    What has no namesake goes by its ids, and then, where both have a token store, by the hash of what its conversation says, which is the same under any
    tokenizer and template: rows whose file was renamed, split or joined are still found.
    """
    numbers: dict[tuple[str, int], int] = {}
    in_a, in_b = _paired(*(_names(one, numbers) for one in (a, b)))
    stored = all((one.folder / _STORE).is_dir() for one in (a, b))
    for said in (_ids, _content_hashes) if stored else (_ids,):
        left = [np.setdiff1d(np.arange(len(one.table)), found) for one, found in ((a, in_a), (b, in_b))]
        if not all(map(len, left)):
            break
        more = _paired(*(_numbered(one.table, rest, said(one, rest)) for one, rest in zip((a, b), left, strict=True)))
        in_a, in_b = np.concatenate([in_a, left[0][more[0]]]), np.concatenate([in_b, left[1][more[1]]])
    return in_a, in_b


def _paired(a: Int64Array, b: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The columns of a and of b that are equal, int64 [m] each, each column once."""
    _, inverse = np.unique(np.concatenate([a, b], axis=1), axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    _, in_a, in_b = np.intersect1d(
        inverse[: a.shape[1]], inverse[a.shape[1] :], assume_unique=True, return_indices=True
    )
    return in_a.astype(np.int64), in_b.astype(np.int64)


def _numbered(table: ExampleTable, examples: Int64Array, said: UInt64Array) -> Int64Array:
    """int64 [4, n]: what each of these examples says, its piece, its copy, and how many that are equal in all of these come before it."""
    key = np.stack([said.view(np.int64), table.piece[examples], table.copy[examples]])
    _, group = np.unique(key, axis=1, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    before = np.empty_like(order)
    before[order] = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    return np.concatenate([key, before[None]])


def _ids(contents: Contents, examples: Int64Array) -> UInt64Array:
    return contents.ids_digest[examples]


def _content_hashes(contents: Contents, examples: Int64Array) -> UInt64Array:
    store = TokenStore(contents.folder / _STORE)
    names, first = np.unique(_conversations(store.column("source"), store.column("row")), return_index=True)
    wanted = _conversations(contents.table.source[examples], contents.table.row[examples])
    at = np.searchsorted(names, wanted)
    if not np.isin(wanted, names).all():
        raise UserError(
            f"{contents.folder / _STORE}: conversations of examples/ are missing",
            f"see `packer verify {contents.folder}`",
        )
    return store.column("content_hash")[first[at]]


def _conversations(source: NDArray[np.integer], row: NDArray[np.integer]) -> Int64Array:
    """One number for each row of each source; a row is far below 2**40."""
    return (source.astype(np.int64) << 40) + row


def source_label(name: tuple[str, int]) -> str:
    """A name of `source_names` for people."""
    return name[0] + (f" ({name[1] + 1})" if name[1] else "")


def source_names(sources: Sequence[Source]) -> list[tuple[str, int]]:
    """A name for each source that does not depend on the order: its title, and how many of that name came before."""
    seen: Counter[str] = Counter()
    names = []
    for source in sources:
        names.append((source.title, seen[source.title]))
        seen[source.title] += 1
    return names


def _names(contents: Contents, numbers: dict[tuple[str, int], int]) -> Int64Array:
    """int64 [4, N]: source (numbered over both folders), row, piece, copy."""
    names = source_names(contents.manifest.sources)
    own = np.array([numbers.setdefault(name, len(numbers)) for name in names] or [0], dtype=np.int64)
    table = contents.table
    if len(table) and not 0 <= int(table.source.min()) <= int(table.source.max()) < len(names):
        raise UserError(
            f"{contents.folder / 'examples'}: a source that the manifest does not have",
            f"see `packer verify {contents.folder}`",
        )
    return np.stack([own[table.source], table.row, table.piece, table.copy])
