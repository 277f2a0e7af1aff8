"""Causal attention inside each segment, with no mask ever made.

A mask over a packed row of T tokens has T² places and most of them are 0: at T=8192 with 8 segments it took 12.6 s where attention segment by segment
took 0.9. On a CPU that is what the reference does; on a GPU a variable-length kernel takes the boundaries.

    >>> import torch
    >>> from trainer.segments import Segments, check_flat
    >>> q = k = torch.zeros(1, 1, 3, 2)  # all scores equal: each token sees the mean of its segment so far
    >>> v = torch.tensor([2.0, 4.0, 8.0]).reshape(1, 1, 3, 1)
    >>> reference(q, k, v, segments=Segments.from_lengths([2, 1]), scale=1.0, window=None).flatten().tolist()
    [2.0, 3.0, 8.0]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from packer.errors import UserError
from trainer.kernels.failing import FAILURES, said
from trainer.segments import Segments, check_flat


class AttentionKernel(Protocol):
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None
    ) -> Tensor:
        """q [1, H, T, D], k [1, Hkv, T, D], v [1, Hkv, T, Dv] (H a multiple of Hkv: a key head serves H/Hkv query heads that follow one another);
        scale multiplies the scores; with a window w a token sees itself and the w-1 before it. Gives [1, H, T, Dv] of q's dtype. No dropout."""
        ...


def reference(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
    """See AttentionKernel. One scaled_dot_product_attention a segment: nothing crosses because nothing else is there."""
    check_flat(q.transpose(1, 2), segments)
    lengths = segments.lengths
    # split, not slices: the gradient of a slice is a full-length tensor of zeros, one a segment.
    pieces = zip(*(torch.split(x, lengths, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([_one_segment(*piece, scale=scale, window=window) for piece in pieces], dim=2)


def _one_segment(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
    length = q.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    place = torch.arange(length, device=q.device)
    back = place[:, None] - place[None, :]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=(back >= 0) & (back < window), scale=scale, enable_gqa=grouped
    )


def load_fused() -> tuple[AttentionKernel, str, str]:
    """torch's variable-length attention, or flash-attn where torch has none; UserError with both imports' words where neither can be had."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except FAILURES as first:
        try:
            from flash_attn import flash_attn_varlen_func
        except FAILURES as second:
            raise UserError(
                f"no fused attention can be loaded: {said(first)}; {said(second)}",
                "use torch 2.11 or newer, or install flash-attn, or run with --kernels reference",
            ) from second
        why = f"torch has none ({said(first)})"
        return _flash_attn(flash_attn_varlen_func), "flash_attn.flash_attn_varlen_func", why
    return _varlen(varlen_attn), "torch.nn.attention.varlen", f"torch {torch.__version__} has it"


def _varlen(varlen_attn: Callable[..., Tensor | tuple[Tensor, Tensor]]) -> AttentionKernel:
    # Torch 2.12 added enable_gqa and refuses fewer key heads without it; before that the kernel simply took them.
    options = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}

    def fused(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
        check_flat(q.transpose(1, 2), segments)
        heads_last = _heads_last(q, k, v)
        bounds, longest = (
            segments.boundaries,
            segments.max_segment_len,
        )  # a host integer: a tensor would stall the device
        left = -1 if window is None else window - 1
        out = varlen_attn(*heads_last, bounds, bounds, longest, longest, scale=scale, window_size=(left, 0), **options)
        assert isinstance(out, Tensor)  # not asked for anything else
        return out[..., : v.shape[-1]].transpose(0, 1)[None]

    return fused


def _flash_attn(flash_attn_varlen_func: Callable[..., Tensor]) -> AttentionKernel:
    def fused(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
        check_flat(q.transpose(1, 2), segments)
        heads_last = _heads_last(q, k, v)
        bounds, longest = segments.boundaries, segments.max_segment_len
        left = -1 if window is None else window - 1
        out = flash_attn_varlen_func(
            *heads_last,
            cu_seqlens_q=bounds,
            cu_seqlens_k=bounds,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            softmax_scale=scale,
            causal=True,
            window_size=(left, 0) if window is not None else (-1, -1),
        )
        return out[..., : v.shape[-1]].transpose(0, 1)[None]

    return fused


def _heads_last(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[1, H, T, D] to [T, H, D], values padded to the width of the keys (some models have narrower ones, the kernels have not)."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise UserError(
            f"fused attention computes in bfloat16 or float16, and the model runs in {q.dtype}",
            "use --dtype bf16, or --kernels reference",
        )
    v = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
    return q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1)


def probe(
    kernel: AttentionKernel, segments: Segments, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[list[Tensor]], Tensor], list[Tensor]]:
    """A small call of `kernel` and its token inputs [1, T, …], for the test at start."""
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(1, segments.num_tokens, heads, 64, generator=generator).to(device, dtype) for heads in (4, 2, 2)
    ]

    def call(x: list[Tensor]) -> Tensor:
        q, k, v = (tensor.transpose(1, 2) for tensor in x)
        return kernel(q, k, v, segments=segments, scale=0.125, window=None).transpose(1, 2)

    return call, inputs
