"""Causal depthwise convolution over short reach (usually 4 tokens) that never reaches into the segment before.

`F.conv1d` over a packed row lets the last K-1 tokens of one example into the first K-1 outputs of the next. Here an output is the sum of K shifted
products, and a product whose two ends lie in different segments is multiplied by 0, forward and backward.

    >>> import torch
    >>> from trainer.segments import Segments
    >>> x, weight = torch.ones(1, 5, 1), torch.ones(1, 3)
    >>> reference(x, weight, None, None, segments=Segments.from_lengths([3, 2])).flatten().tolist()
    [1.0, 2.0, 3.0, 1.0, 2.0]
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from packer.errors import UserError
from trainer.kernels.failing import FAILURES, said
from trainer.segments import CHUNK, Segments, check_flat

# Bytes of one block of rows of x. The K passes over a block stay in the core's own cache: at T=8192, D=1024 in float32 blocks made forward and
# backward 2 times faster than whole-length passes, and 6 times faster than F.conv1d.
_BLOCK_BYTES = 256 * 1024


class ConvKernel(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *, segments: Segments
    ) -> Tensor:
        """x [1, T, D], weight [D, K] (the last column meets the token itself), bias [D] or None, activation None or "silu"; gives [1, T, D] of
        x's dtype: y[t] = activation(bias + Σ_k weight[:, K-1-k] · x[t-k]) over those t-k that lie in t's segment."""
        ...


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *, segments: Segments) -> Tensor:
    """See ConvKernel. Computes in float32 (float64 where x is float64)."""
    check_flat(x, segments)
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation {activation!r}: the short convolution knows silu and None")
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    y: Tensor = _ShiftedSum.apply(x.to(dtype), weight.to(dtype), segments.seq_idx)  # type: ignore[no-untyped-call]  # untyped in torch
    if bias is not None:
        y = y + bias.to(dtype)
    return (y if activation is None else F.silu(y)).to(x.dtype)


class _ShiftedSum(torch.autograd.Function):
    """y[t] = Σ_k w[K-1-k] · x[t-k] · same(t, t-k), in blocks of rows, with its gradients written out."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, seq_idx: Tensor) -> Tensor:
        taps = weight.t().flip(0).contiguous()  # [K, D]: taps[k] meets the token k places back
        ctx.save_for_backward(x, taps, seq_idx)
        rows, same = x[0], _same_segment(seq_idx, len(taps), x.dtype)
        y = torch.empty_like(rows)
        for start, end in _blocks(rows):
            block = torch.mul(rows[start:end], taps[0], out=y[start:end])
            for k in range(1, len(taps)):
                low = max(start, k)
                block[low - start :].addcmul_(rows[low - k : end - k] * same[k][low:end], taps[k])
        return y[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, taps, seq_idx = ctx.saved_tensors  # type: ignore[attr-defined]  # torch's stub for FunctionCtx lacks it
        rows, grads, same = x[0], grad[0], _same_segment(seq_idx, len(taps), x.dtype)
        length = len(rows)
        grad_x, grad_taps = torch.empty_like(rows), torch.zeros_like(taps)
        for start, end in _blocks(rows):
            block = torch.mul(grads[start:end], taps[0], out=grad_x[start:end])
            grad_taps[0] += (grads[start:end] * rows[start:end]).sum(0)
            for k in range(1, len(taps)):
                high = min(end, length - k)  # rows start … high-1 are met by the outputs k places on
                if high <= start:
                    continue
                ahead = grads[start + k : high + k] * same[k][start + k : high + k]
                block[: high - start].addcmul_(ahead, taps[k])
                grad_taps[k] += (ahead * rows[start:high]).sum(0)
        return grad_x[None], grad_taps.flip(0).t(), None


def _same_segment(seq_idx: Tensor, kernel_size: int, dtype: torch.dtype) -> list[Tensor]:
    """For each shift k, [T, 1]: 1 where t and t-k lie in one segment, else 0 (0 too where t < k)."""
    ids, masks = seq_idx[0], []
    for k in range(kernel_size):
        same = torch.zeros(len(ids), 1, dtype=dtype, device=ids.device)
        same[k:, 0] = ids[k:] == ids[: len(ids) - k]
        masks.append(same)
    return masks


def _blocks(rows: Tensor) -> list[tuple[int, int]]:
    """Row ranges of one cache's size; one range on a GPU, where every operation is a launch."""
    length = len(rows)
    size = length if rows.is_cuda else max(16, _BLOCK_BYTES // (rows.shape[1] * rows.element_size()))
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def load_fused() -> tuple[ConvKernel, str, str]:
    """causal-conv1d where it is installed, else flash-linear-attention's Triton convolution; UserError with the import's own words where the one is
    installed and broken, or neither can be had."""
    if _installed("causal_conv1d"):
        try:
            from causal_conv1d import causal_conv1d_fn
        except FAILURES as error:
            # Not taken for "not installed": a wheel built for another torch would cost its speed without a word.
            raise UserError(
                f"causal-conv1d is installed but cannot be loaded: {said(error)}",
                "build it again for this torch, or uninstall it (flash-linear-attention has a convolution too), or run with --kernels reference",
            ) from error
        return _causal_conv1d(causal_conv1d_fn), "causal_conv1d.causal_conv1d_fn", "causal-conv1d is installed"
    try:
        from fla.modules.causal_conv1d import causal_conv1d
    except FAILURES as error:
        raise UserError(
            f"the fused short convolution cannot be loaded: {said(error)}; causal-conv1d is not installed",
            "install it with `pip install flash-linear-attention`, or run with --kernels reference",
        ) from error
    return _fla(causal_conv1d), "fla.modules.causal_conv1d (triton)", "causal-conv1d is not installed"


def _installed(package: str) -> bool:
    """Whether Python would find the package, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # in sys.modules without a spec: there it is
        return True


def _causal_conv1d(function: Callable[..., Tensor]) -> ConvKernel:
    def fused(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *, segments: Segments) -> Tensor:
        check_flat(x, segments)
        channels, width = weight.shape
        if channels % 8 or not 2 <= width <= 4:
            raise UserError(
                f"causal-conv1d takes channels in multiples of 8 and kernels of 2 to 4 tokens; a layer has {channels} channels and a kernel of {width}",
                "uninstall causal-conv1d (flash-linear-attention's convolution takes any), or run with --kernels reference",
            )
        length, seq_idx = x.shape[1], segments.seq_idx
        # Its kernel with seq_idx wants channels that lie together, token by token in steps of 8: x [1, T, D] as it is. Copied as [1, T, D], that
        # stays so behind the transpose, where a copy of [1, D, T] would not.
        if x.stride(2) != 1 or x.stride(1) % 8:
            x = x.contiguous()
        short = -length % CHUNK  # it reads seq_idx by whole chunks: never past the end of a row that is made of them
        if short:
            x, seq_idx = F.pad(x, (0, 0, 0, short)), F.pad(seq_idx, (0, short), value=segments.num_segments)
        y = function(x.transpose(1, 2), weight, bias, seq_idx=seq_idx, activation=activation)
        return y.transpose(1, 2)[:, :length]

    return fused


def _fla(function: Callable[..., tuple[Tensor, None]]) -> ConvKernel:
    def fused(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *, segments: Segments) -> Tensor:
        check_flat(x, segments)
        return function(
            x=x,
            weight=weight,
            bias=bias,
            activation=activation,
            backend="triton",
            cu_seqlens=segments.boundaries,  # no repeated offsets: helpers count chunks per segment
            cu_seqlens_cpu=segments.boundaries_cpu,
            chunk_indices=segments.chunk_indices,
        )[0]

    return fused


def probe(
    kernel: ConvKernel, segments: Segments, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[list[Tensor]], Tensor], list[Tensor]]:
    """A small call of `kernel` and its token inputs [1, T, …], for the test at start."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, segments.num_tokens, 128, generator=generator).to(device, dtype)
    weight = torch.randn(128, 4, generator=generator).to(device, dtype)
    return lambda inputs: kernel(inputs[0], weight, None, "silu", segments=segments), [x]
