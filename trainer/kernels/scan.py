"""Mamba-2's selective scan over packed segments: a linear recurrence whose state starts at zero in every segment.

Token by token and head by head, with state S [N, P], step size Δ > 0 and a < 0:

    S ← exp(Δ_t·a)·S + b_t ⊗ Δ_t·x_t;   y_t = Sᵀ c_t + d·x_t

The reference does it in chunks of 64 tokens (Dao and Gu, "Transformers are SSMs", 2024, section 6: state space duality). Boundaries enter as they do
in `trainer.kernels.delta`: the decay between two tokens is 0 across a boundary, its running sum starts anew at each boundary, only the segment that
ran into a chunk reads the carried state, and only the chunk's last segment writes it.

The fast path is flash-linear-attention's `simple_gla`, which is the same recurrence with c, b and Δ·x for q, k and v. Its chunks start where segments
start. mamba-ssm's `seq_idx` kernel is not used: its chunks span segments and its running sum of Δ·a runs over the boundary inside one, so that a
segment's decays are differences of sums that hold its neighbour: equal on paper, not to the last bit.

    >>> import torch
    >>> from trainer.segments import Segments
    >>> x = b = c = torch.ones(1, 3, 1, 1)
    >>> step, a, d = torch.ones(1, 3, 1), torch.zeros(1), torch.zeros(1)
    >>> reference(x, step, a, b, c, d, segments=Segments.from_lengths([2, 1])).flatten().tolist()
    [1.0, 2.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from packer.errors import UserError
from trainer.kernels.failing import FAILURES, said
from trainer.segments import CHUNK, Segments, check_flat


class ScanKernel(Protocol):
    def __call__(
        self, x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, *, segments: Segments
    ) -> Tensor:
        """x [1, T, H, P], step [1, T, H] (Δ, after its softplus), a and d [H] (a negative), b and c [1, T, G, N] (H a multiple of G: a group serves
        H/G heads that follow one another). Gives [1, T, H, P] of x's dtype."""
        ...


def reference(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, *, segments: Segments) -> Tensor:
    """See ScanKernel. Computes in float32 (float64 where x is float64); no shape depends on the number of segments.

    Letters in the shapes below: n chunks, g groups, r heads a group, c places in a chunk.
    """
    check_flat(x, segments)
    length, heads, width = x.shape[1:]
    groups = b.shape[2]
    ratio, chunks = heads // groups, -(-length // CHUNK)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32

    def chunked(t: Tensor) -> Tensor:
        t = F.pad(t[0].to(dtype), (0, 0) * (t.ndim - 2) + (0, chunks * CHUNK - length))
        return t.reshape(chunks, CHUNK, *t.shape[1:])

    steps = chunked(step).reshape(chunks, CHUNK, groups, ratio).permute(0, 2, 3, 1)  # [n, g, r, c]
    values = chunked(x).reshape(chunks, CHUNK, groups, ratio, width).permute(0, 2, 3, 1, 4) * steps[..., None]
    writes, reads = chunked(b).transpose(1, 2), chunked(c).transpose(1, 2)  # [n, g, c, N]

    ids = F.pad(segments.seq_idx[0], (0, chunks * CHUNK - length), value=-1).reshape(chunks, CHUNK)
    visible = (ids[:, :, None] == ids[:, None, :]).tril()  # [n, c, c]: j is at or before i, in i's segment
    before = torch.cat([ids.new_full((1,), -2), ids[:-1, -1]])  # the segment each chunk's carried state belongs to
    running_on = (ids == before[:, None]).to(dtype)[:, None, None]  # [n, 1, 1, c]

    # As a product with the 0/1 mask the running sum adds only what belongs to it: there is nothing of another segment to subtract again.
    decay = steps * a.to(dtype).reshape(groups, ratio, 1)
    summed = torch.einsum("nij,ngrj->ngri", visible.to(dtype), decay)
    pair_decay = (summed[..., :, None] - summed[..., None, :]).masked_fill(~visible[:, None, None], float("-inf")).exp()
    from_carried = summed.exp() * running_on  # 0 in a segment that began inside the chunk

    inside = ((reads @ writes.mT)[:, :, None] * pair_decay) @ values
    written = (writes[:, :, None] * pair_decay[..., -1, :, None]).mT @ values  # [n, g, r, N, P]: the last segment's
    carried = _carry(written, from_carried[..., -1, None, None])
    out = inside + (reads[:, :, None] * from_carried[..., None]) @ carried
    out = out.permute(0, 3, 1, 2, 4).reshape(1, chunks * CHUNK, heads, width)[:, :length]
    return (out + x.to(dtype) * d.to(dtype)[:, None]).to(x.dtype)


def _carry(written: Tensor, keep: Tensor) -> Tensor:
    """The state on entering each chunk, from what each chunk writes [n, …] and keeps of the state before it (0 where its segment ended)."""
    state, carried = torch.zeros_like(written[0]), []
    for chunk_written, chunk_keep in zip(written.unbind(), keep.unbind(), strict=True):
        carried.append(state)
        state = state * chunk_keep + chunk_written
    return torch.stack(carried)


def load_fused() -> tuple[ScanKernel, str, str]:
    """flash-linear-attention's chunked kernel; UserError with the import's own words where it cannot be had."""
    try:
        from fla.ops.simple_gla import chunk_simple_gla
    except FAILURES as error:
        raise UserError(
            f"the fused selective scan cannot be loaded: {said(error)}",
            "install it with `pip install flash-linear-attention`, or run with --kernels reference",
        ) from error

    def fused(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, *, segments: Segments) -> Tensor:
        check_flat(x, segments)
        ratio = x.shape[2] // b.shape[2]
        out: Tensor = chunk_simple_gla(
            q=c.repeat_interleave(ratio, dim=2),
            k=b.repeat_interleave(ratio, dim=2),
            v=(x * step[..., None]).to(x.dtype),
            g=step.float() * a.float(),
            scale=1.0,
            cu_seqlens=segments.boundaries,  # offsets must not repeat
            cu_seqlens_cpu=segments.boundaries_cpu,
        )[0]
        return (out + x * d[:, None]).to(x.dtype)

    return fused, "fla.ops.simple_gla", "the recurrence of Mamba-2, in chunks that start with segments"


def probe(
    kernel: ScanKernel, segments: Segments, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[list[Tensor]], Tensor], list[Tensor]]:
    """A small call of `kernel` and its token inputs [1, T, …], for the test at start."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, segments.num_tokens, *shape, generator=generator)

    inputs = [normal(4, 64), F.softplus(normal(4)), normal(2, 64), normal(2, 64)]
    a, d = -torch.arange(1.0, 5.0).to(device), torch.ones(4, device=device)
    return (
        lambda given: kernel(given[0], given[1], a, given[2], given[3], d.to(dtype), segments=segments),
        [tensor.to(device, torch.float32 if i == 1 else dtype) for i, tensor in enumerate(inputs)],
    )
