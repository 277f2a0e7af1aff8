"""The token store: every conversation's ids and mask, once, whatever the capacity. Rows are laid out from it, and other capacities can be.

store = TokenStore(Path("data/packed/tokens"))
ids, loss_mask = store[3]
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from packer.files import allow_open_files
from packer.token_part import map_part, part_paths
from packer.types import BoolArray, Float32Array, Int32Array

# Pages of mapped parts that a process may hold before it gives them back: giving back costs a call a part.
_TOUCHED_BYTES = 64 << 20


class TokenStore:
    """Reads a token store by memory map: len(store), store[i] → (ids int32 [n], loss_mask bool [n]). heads, parts: what it is made of."""

    def __init__(self, folder: Path) -> None:
        paths = part_paths(folder)
        # A map keeps its file open.
        allow_open_files(len(paths))
        read = [map_part(path) for path in paths]
        self.heads = [head for head, _, _ in read]
        self.parts = [part for _, part, _ in read]
        self._maps = [mapped for _, _, mapped in read]
        self._touched = 0
        self._first = np.cumsum([0, *(len(part) for part in self.parts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> tuple[Int32Array, BoolArray]:
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        part, place = self.parts[number], index - int(self._first[number])
        start, end = int(part.offsets[place]), int(part.offsets[place + 1])
        return part.ids[start:end], part.mask(start, end)

    def gather(self, parts: Int32Array, starts: Int32Array, lengths: Int32Array) -> tuple[Int32Array, BoolArray]:
        """Stretches of tokens one behind the other: ids int32 [T] and loss_mask bool [T], T the sum of the lengths.

        parts, starts, lengths int32 [n]: tokens [start, start + length) of which part.
        """
        ends = starts + lengths
        where = list(zip(parts.tolist(), starts.tolist(), ends.tolist(), strict=True))
        ids = np.concatenate([self.parts[part].ids[start:end] for part, start, end in where])
        # The mask comes as whole bytes, is unpacked in one go, and what stood before and behind each stretch in its bytes is taken out.
        skip, first, last = starts & 7, starts >> 3, -(-ends >> 3)
        chunks = zip(parts.tolist(), first.tolist(), last.tolist(), strict=True)
        bits = np.concatenate([self.parts[part].mask_bits[start:end] for part, start, end in chunks])
        runs = np.stack([skip, lengths, (last - first) * 8 - skip - lengths], axis=1).reshape(-1)
        wanted = np.repeat(np.tile(np.array([False, True, False]), len(parts)), runs)
        self._give_back(ids.nbytes + 2 * mmap.PAGESIZE * len(parts))
        return ids, np.unpackbits(bits, bitorder="little").view(np.bool_)[wanted]

    def gather_weights(
        self, parts: Int32Array, starts: Int32Array, lengths: Int32Array, mask: BoolArray
    ) -> Float32Array:
        """What each token of the stretches of `gather` counts in the loss, float32 [T]; mask: as `gather` gave it."""
        weights = mask.astype(np.float32)
        at = 0
        for part, start, length in zip(parts.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            own = self.parts[part].loss_weights
            if own is not None:
                weights[at : at + length] = own[start : start + length]
            at += length
        return weights

    def column(self, name: str) -> np.ndarray:
        """source int16, row int64, content_hash uint64 or supervised int32 over all conversations."""
        if name == "source":
            return np.repeat(np.array([part.source for part in self.parts], dtype=np.int16), np.diff(self._first))
        columns = [getattr(part, "rows" if name == "row" else name) for part in self.parts]
        return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)

    def _give_back(self, touched: int) -> None:
        """Now and then, the pages that were looked at, lest this process seems to grow to the size of the store; they are read again if need be."""
        self._touched += touched
        if self._touched > _TOUCHED_BYTES:
            self._touched = 0
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)
