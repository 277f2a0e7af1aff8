"""Where one example ends and the next begins, as the model's layers are told.

A pass is M rows of C slots flattened to one sequence of T = M·C tokens. `Segments` carries its boundaries to every layer that mixes
tokens (attention, gated delta, short convolution), by the one keyword argument `segments`. A layer that mixes tokens and is not given one must
raise (`require`), because a lost argument would otherwise train on leaking state in silence.

    >>> segments = Segments.from_lengths([3, 70])
    >>> segments.cu_seqlens.tolist(), segments.seq_idx[0, :5].tolist(), segments.num_segments
    ([0, 3, 73], [0, 0, 0, 1, 1], 2)
    >>> segments.chunk_indices.tolist()
    [[0, 0], [1, 0], [1, 1]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Tokens a chunk of the chunked linear-attention kernels, fused and reference: flash-linear-attention's own default, in every kernel of
# its forward and backward pass.
CHUNK = 64
_LATER = torch.empty(0, dtype=torch.int32)  # stands for boundaries that are still to be cut from cu_seqlens


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Boundaries of one flattened pass.

    cu_seqlens: int32 [M·S+1] on the device: the real boundaries first (0, strictly increasing, up to T), the rest repeats T. Its shape never
        changes in a run; a kernel that cannot take repeats cuts it to `[: num_segments + 1]`.
    cu_seqlens_cpu: the same values on the host, so that a kernel which plans its grid need not copy them back from the device.
    seq_idx: int32 [1, T] on the device: the number of each token's segment, from 0.
    num_segments: host integer, segments in use (pad tails counted).
    max_segment_len: host integer, constant over a run: no segment is longer (pad tails counted).
    boundaries, boundaries_cpu: cu_seqlens and cu_seqlens_cpu without their unused places, int32 [num_segments+1]. Views made once, so that
        every layer of a pass hands on the same two objects: libraries that plan a kernel's grid cache the plan by tensor identity.
    chunk_indices: int32 [Σ ceil(length ÷ 64), 2] on the device: segment and place in it of every chunk, in order. It is the grid of the
        chunked kernels, reckoned on the host with the batch, so that no layer plans it again or asks the device.
    """

    cu_seqlens: Tensor
    cu_seqlens_cpu: Tensor
    seq_idx: Tensor
    num_segments: int
    max_segment_len: int
    boundaries: Tensor = field(default=_LATER, repr=False)
    boundaries_cpu: Tensor = field(default=_LATER, repr=False)
    chunk_indices: Tensor = field(default=_LATER, repr=False)

    def __post_init__(self) -> None:
        # Only where they are not given: FSDP copies dataclasses among a layer's arguments field by field, and the copies must keep these objects.
        if self.boundaries is _LATER:
            object.__setattr__(self, "boundaries", self.cu_seqlens[: self.num_segments + 1])
        if self.boundaries_cpu is _LATER:
            object.__setattr__(self, "boundaries_cpu", self.cu_seqlens_cpu[: self.num_segments + 1])
        if self.chunk_indices is _LATER:
            table = torch.from_numpy(chunk_table(self.boundaries_cpu.numpy()))
            object.__setattr__(self, "chunk_indices", table.to(self.cu_seqlens.device))

    @property
    def lengths(self) -> list[int]:
        """Tokens in each segment in use, on the host (no device is asked)."""
        return torch.diff(self.boundaries_cpu).tolist()

    @property
    def positions(self) -> Tensor:
        """The place of each token in its segment: int64 [1, T] on the device, which is not waited for."""
        place = torch.arange(self.num_tokens, device=self.seq_idx.device)
        return place - self.cu_seqlens[self.seq_idx.long()]

    @property
    def num_tokens(self) -> int:
        """T, the tokens of the whole pass."""
        return self.seq_idx.shape[1]

    def to(self, device: torch.device | str) -> Segments:
        """The same segments with the device's tensors on another device; what lies on the host stays there."""
        return Segments(
            cu_seqlens=self.cu_seqlens.to(device),
            cu_seqlens_cpu=self.cu_seqlens_cpu,
            seq_idx=self.seq_idx.to(device),
            num_segments=self.num_segments,
            max_segment_len=self.max_segment_len,
            chunk_indices=self.chunk_indices.to(device),
        )

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], *, max_segments: int | None = None, max_segment_len: int | None = None
    ) -> Segments:
        """Segments that lie one behind the other with these lengths (tokens, each at least 1), on the CPU."""
        if not lengths or min(lengths) < 1:
            raise ValueError(f"segment lengths must be positive, got {list(lengths)}")
        places = len(lengths) if max_segments is None else max_segments
        if places < len(lengths):
            raise ValueError(f"{len(lengths)} segments do not fit {places} places")
        ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
        cu_seqlens = torch.full((places + 1,), int(ends[-1]), dtype=torch.int32)
        cu_seqlens[0] = 0
        cu_seqlens[1 : len(lengths) + 1] = ends
        seq_idx = torch.repeat_interleave(
            torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths, dtype=torch.int64)
        )
        return cls(
            cu_seqlens=cu_seqlens,
            cu_seqlens_cpu=cu_seqlens,
            seq_idx=seq_idx[None],
            num_segments=len(lengths),
            max_segment_len=max(lengths) if max_segment_len is None else max_segment_len,
        )


def chunk_table(boundaries: NDArray[np.int32]) -> NDArray[np.int32]:
    """boundaries [n+1] of n segments (strictly increasing from 0) → int32 [chunks, 2]: (segment, number in it) of every chunk of 64 tokens that
    starts where its segment starts; a segment's last chunk may be short."""
    counts = -(-np.diff(boundaries) // CHUNK)
    table = np.empty((int(counts.sum()), 2), dtype=np.int32)
    table[:, 0] = np.repeat(np.arange(len(counts)), counts)
    table[:, 1] = np.arange(len(table)) - np.repeat(np.cumsum(counts) - counts, counts)
    return table


def most_chunks(tokens: int, segments: int) -> int:
    """No row of `tokens` tokens in at most `segments` segments has more chunks than this."""
    return (tokens + segments * (CHUNK - 1)) // CHUNK


def check_flat(x: Tensor, segments: Segments) -> None:
    """Raises ValueError unless x is one sequence [1, T, …] of the tokens that `segments` divides: with a batch of several, variable-length kernels
    read boundaries of the one as those of all, and some gave wrong weight gradients without a word."""
    if x.shape[0] != 1 or x.shape[1] != segments.num_tokens:
        raise ValueError(
            f"a kernel was given {list(x.shape[:2])} where one flat sequence [1, {segments.num_tokens}] is due: rows are flattened before"
        )


class LostSegmentsError(RuntimeError):
    """A layer that mixes tokens was not told where segments end."""


def require(segments: Segments | None, layer: str) -> Segments:
    """The segments a layer was given; raises LostSegmentsError, naming the layer, where the argument was lost on the way."""
    if segments is None:
        raise LostSegmentsError(
            f"{layer} was called without `segments`, so its tokens would run from one example into the next "
            "(what calls it drops keyword arguments)."
        )
    return segments
