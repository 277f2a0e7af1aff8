"""The gated delta rule over packed segments: a linear-attention layer whose state starts at zero in every segment.

Token by token, with state S [Dk, Dv], decay g ≤ 0 (in log space) and write strength β:

    S ← exp(g_t)·S;   S ← S + k_t ⊗ β_t (v_t − Sᵀk_t);   o_t = Sᵀ q_t / √Dk

The reference does it in chunks of 64 tokens (Yang et al., "Gated Delta Networks", 2024, section 3.3; the UT transform of Yang et al.,
"Parallelizing Linear Transformers with the Delta Rule", 2024). Boundaries enter the chunk form in four places, all as masks over static shapes:
the decay between two tokens of a chunk is 0 across a boundary; the running sum of g starts anew at each boundary (a plain running sum, undone by
subtraction, leaks 1e-4 by rounding); only tokens of the segment that ran into the chunk read the carried state; only tokens of the chunk's last segment
write the state that is carried on.

    >>> import torch
    >>> from trainer.segments import Segments
    >>> q = k = v = torch.ones(1, 3, 1, 1)
    >>> g, beta = torch.zeros(1, 3, 1), torch.full((1, 3, 1), 0.5)
    >>> reference(q, k, v, g, beta, segments=Segments.from_lengths([2, 1]), l2norm=False).flatten().tolist()
    [0.5, 0.75, 0.5]
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


class DeltaKernel(Protocol):
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, segments: Segments, l2norm: bool = True
    ) -> Tensor:
        """q, k [1, T, Hk, Dk], v [1, T, Hv, Dv] (Hv a multiple of Hk: a key head serves Hv/Hk value heads that follow one another), g and beta
        [1, T, Hv]; l2norm divides each q and k by its length. Gives [1, T, Hv, Dv] of v's dtype."""
        ...


def reference(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, segments: Segments, l2norm: bool = True
) -> Tensor:
    """See DeltaKernel. Computes in float32 (float64 where q is float64); no shape depends on the number of segments.

    Letters in the shapes below: n chunks, h key heads, r value heads a key head, c places in a chunk.
    """
    check_flat(q, segments)
    length, key_heads, key_dim = q.shape[1:]
    value_heads, value_dim = v.shape[2:]
    group = value_heads // key_heads
    chunks = -(-length // CHUNK)

    def chunked(x: Tensor) -> Tensor:
        x = F.pad(x[0].to(dtype), (0, 0) * (x.ndim - 2) + (0, chunks * CHUNK - length))
        return x.reshape(chunks, CHUNK, *x.shape[1:])

    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries = chunked(q).transpose(1, 2)  # [n, h, c, Dk]
    keys = chunked(k).transpose(1, 2)
    values = chunked(v).reshape(chunks, CHUNK, key_heads, group, value_dim).permute(0, 2, 3, 1, 4)  # [n, h, r, c, Dv]
    strength = chunked(beta).reshape(chunks, CHUNK, key_heads, group).permute(0, 2, 3, 1)  # [n, h, r, c]
    decay = chunked(g).reshape(chunks, CHUNK, key_heads, group).permute(0, 2, 3, 1)
    if l2norm:
        queries, keys = _unit(queries), _unit(keys)
    queries = queries * key_dim**-0.5

    ids = F.pad(segments.seq_idx[0], (0, chunks * CHUNK - length), value=-1).reshape(chunks, CHUNK)
    visible = (ids[:, :, None] == ids[:, None, :]).tril()  # [n, c, c]: j is at or before i, in i's segment
    before = torch.cat([ids.new_full((1,), -2), ids[:-1, -1]])  # the segment each chunk's carried state belongs to
    running_on = (ids == before[:, None]).to(dtype)[:, None, None]  # [n, 1, 1, c]

    # A running sum of g within chunk and segment. As a product with the 0/1 mask it adds only what belongs to it: nothing to undo.
    summed = torch.einsum("nij,nhrj->nhri", visible.to(dtype), decay)
    pair_decay = (summed[..., :, None] - summed[..., None, :]).masked_fill(~visible[:, None, None], float("-inf")).exp()
    from_carried = (
        summed.exp() * running_on
    )  # [n, h, r, c]: decay since the chunk began; 0 in a segment that began inside it

    # (I + A) X = B turns the chunk's 64 dependent updates into one triangular solve: X = [what is written if the carried state is 0 | what the carried
    # state takes away]. The diagonal of A is never read.
    mixing = (keys @ keys.mT)[:, :, None] * strength[..., None] * pair_decay
    right = torch.cat([values * strength[..., None], keys[:, :, None] * (strength * from_carried)[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(mixing, right, upper=False, unitriangular=True)
    fresh, taken = solved.split([value_dim, key_dim], dim=-1)

    carried, written = _scan(
        fresh,
        taken,
        (
            keys[:, :, None] * pair_decay[..., -1, :, None]
        ).mT,  # keys of the last segment only, decayed to the chunk's end
        from_carried[..., -1, None, None],  # 0 where the carried segment ended inside the chunk
    )
    out = (queries[:, :, None] * from_carried[..., None]) @ carried
    out = out + ((queries @ keys.mT)[:, :, None] * pair_decay) @ written
    out = out.permute(0, 3, 1, 2, 4).reshape(1, chunks * CHUNK, value_heads, value_dim)
    result: Tensor = out[:, :length].to(v.dtype)
    return result


def _scan(fresh: Tensor, taken: Tensor, write_keys: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The one sequential part: the state on entering each chunk [n, h, r, Dk, Dv] and what each token writes [n, h, r, c, Dv].

    Results are collected and stacked once. Writing each into a slice of one tensor would make autograd copy the whole tensor a chunk: at
    T=8192 that alone is three quarters of the usual fall-back's time.
    """
    state = fresh.new_zeros(*write_keys.shape[1:4], fresh.shape[-1])
    carried, written = [], []
    for chunk_fresh, chunk_taken, chunk_keys, chunk_keep in zip(
        fresh.unbind(), taken.unbind(), write_keys.unbind(), keep.unbind(), strict=True
    ):
        values = chunk_fresh - chunk_taken @ state
        carried.append(state)
        written.append(values)
        state = state * chunk_keep + chunk_keys @ values
    return torch.stack(carried), torch.stack(written)


def _unit(x: Tensor) -> Tensor:
    """x divided by its length in the last dimension, with the 1e-6 under the root that trained checkpoints expect."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def load_fused() -> tuple[DeltaKernel, str, str]:
    """flash-linear-attention's chunked kernel; UserError with the import's own words where it cannot be had."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except FAILURES as error:
        raise UserError(
            f"the fused gated delta rule cannot be loaded: {said(error)}",
            "install it with `pip install flash-linear-attention`, or run with --kernels reference",
        ) from error

    def fused(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, segments: Segments, l2norm: bool = True
    ) -> Tensor:
        check_flat(q, segments)
        out: Tensor = chunk_gated_delta_rule(
            q,
            k,
            v,
            g=g,
            beta=beta,
            use_qk_l2norm_in_kernel=l2norm,
            cu_seqlens=segments.boundaries,  # offsets must not repeat
            cu_seqlens_cpu=segments.boundaries_cpu,
            chunk_indices=segments.chunk_indices,  # the grid, planned with the batch: no layer plans it or asks the device for it
        )[0]
        return out

    return fused, "fla.ops.gated_delta_rule", "its grid planned on the host with the batch"


def probe(
    kernel: DeltaKernel, segments: Segments, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[list[Tensor]], Tensor], list[Tensor]]:
    """A small call of `kernel` and its token inputs [1, T, …], for the test at start."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, segments.num_tokens, *shape, generator=generator)

    inputs = [normal(2, 64), normal(2, 64), normal(4, 64), -F.softplus(normal(4)), normal(4).sigmoid()]
    return (
        lambda x: kernel(x[0], x[1], x[2], x[3], x[4], segments=segments),
        [x.to(device, torch.float32 if i == 3 else dtype) for i, x in enumerate(inputs)],
    )
