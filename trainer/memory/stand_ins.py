"""Kernels that take memory and compute nothing: what the fused ones keep for backward and use on the way, for passes on the meta device.

Triton and CUDA code has no meta device, so each stand-in makes the tensors that the kernel makes, in its order. Read off flash-linear-attention
0.6 (`fla.ops.gated_delta_rule.chunk`, `fla.ops.simple_gla.chunk`, `fla.modules.causal_conv1d`) and flash-attention 2's variable-length kernel, which is torch's
own too.

    bind_fused(model)       # the model's layers take these instead of their kernels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from trainer.kernels import Kernel, Layer
from trainer.segmented import SegmentedLayer
from trainer.segments import CHUNK, Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class _Memory:
    """forward: inputs → (output, what is kept). backward: (kept, gradient of the output) → gradients of the inputs."""

    forward: Callable[[Sequence[Tensor]], tuple[Tensor, list[Tensor]]]
    backward: Callable[[Sequence[Tensor], Tensor], tuple[Tensor | None, ...]]


class _Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, memory: _Memory, *inputs: Tensor) -> Tensor:
        out, kept = memory.forward(inputs)
        ctx.save_for_backward(*kept)
        ctx.memory = memory  # type: ignore[attr-defined]  # a context takes any
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.memory.backward(ctx.saved_tensors, grad))


def _held(memory: _Memory, *inputs: Tensor) -> Tensor:
    out: Tensor = _Held.apply(memory, *inputs)  # type: ignore[no-untyped-call]  # untyped in torch
    return out


def _float(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape, dtype=torch.float32)


def attention(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:  # noqa: ARG001
    """In place of the fused AttentionKernel."""
    width = v.shape[-1]
    heads_last = [x[0].transpose(0, 1) for x in (q, k, F.pad(v, (0, q.shape[-1] - width)))]

    def forward(given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        q, k, v = given
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        return out, [q, k, v, out, _float(q, q.shape[1], q.shape[0])]

    def backward(kept: Sequence[Tensor], _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = kept[:3]
        total = _float(q, *q.shape)  # of dq, which blocks of keys add to
        dots = _float(q, q.shape[1], q.shape[0])
        # Every query head has its own part of the gradient of the key head that serves it, added up at the end.
        parts = [q.new_empty(q.shape[0], q.shape[1], x.shape[-1]) for x in (k, v)] if q.shape[1] != k.shape[1] else []
        grads = tuple(torch.empty_like(x) for x in (q, k, v))
        del total, dots, parts
        return grads

    out = _held(_Memory(forward=forward, backward=backward), *heads_last)
    return out[..., :width].transpose(0, 1)[None]


def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None
) -> Tensor:
    """In place of the reference AttentionKernel: the operation that a CPU picks, named; by itself the meta device picks a matrix of all scores."""
    lengths = segments.lengths
    pieces = zip(*(torch.split(x, lengths, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([_flash(*piece, scale=scale, window=window) for piece in pieces], dim=2)


def _flash(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
    length = q.shape[2]
    whole = window is None or length <= window
    mask = None if whole else q.new_empty(length, length)  # a CPU makes numbers of a mask, to add them to the scores
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, whole, attn_mask=mask, scale=scale
    )[0]
    return out


def delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, segments: Segments, l2norm: bool = True
) -> Tensor:
    """In place of the fused DeltaKernel."""
    chunks, (length, key_heads, key_dim), heads = len(segments.chunk_indices), q.shape[1:], v.shape[2]

    def states(v: Tensor) -> Tensor:
        return v.new_empty(chunks, heads, key_dim, v.shape[-1])

    def forward(given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        q, k, v, g, beta = (x.contiguous() for x in given)
        kept = [torch.empty_like(q), torch.empty_like(k)] if l2norm else [q, k]
        kept += [_float(q, length * key_heads) for _ in range(2)] if l2norm else []
        kept += [v, torch.empty_like(g), beta, v.new_empty(length, heads, CHUNK)]
        on_the_way = [v.new_empty(length, heads, key_dim), torch.empty_like(v), states(v), torch.empty_like(v)]
        out = torch.empty_like(v)
        del on_the_way
        return out, kept

    def backward(kept: Sequence[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
        v, g, beta = kept[-4:-1]
        grad = grad.contiguous()
        again = [v.new_empty(length, heads, key_dim), torch.empty_like(v), states(v), torch.empty_like(v)]
        dv, dstates = torch.empty_like(v), states(v)
        dv = torch.empty_like(v)
        dq, dk, dw, dk2 = (v.new_empty(length, heads, key_dim) for _ in range(4))
        dv, dbeta, dg = torch.empty_like(v), torch.empty_like(beta), torch.empty_like(g)
        del again, dstates, dw, dk2
        if heads != key_heads:
            dq, dk = (v.new_empty(length, key_heads, key_dim) for _ in range(2))
        if l2norm:
            dq, dk = torch.empty_like(dq), torch.empty_like(dk)
        shape = (1, length, key_heads, key_dim)
        return dq.view(shape), dk.view(shape), dv, dg, dbeta

    return _held(_Memory(forward=forward, backward=backward), q, k, v, g, beta)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *, segments: Segments) -> Tensor:  # noqa: ARG001
    """In place of the fused ConvKernel: its activation is computed again in backward."""
    chunks = len(segments.chunk_indices)

    def forward(given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return torch.empty_like(given[0], memory_format=torch.contiguous_format), list(given)

    def backward(kept: Sequence[Tensor], _: Tensor) -> tuple[Tensor | None, ...]:
        parts = [_float(x, chunks, *x.shape) for x in kept[1:]]  # of the weights' gradients, a chunk each
        grads = tuple(torch.empty_like(x) for x in kept)
        del parts
        return grads

    return _held(_Memory(forward=forward, backward=backward), *((x, weight) if bias is None else (x, weight, bias)))


def scan(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, *, segments: Segments) -> Tensor:
    """In place of the fused ScanKernel."""
    ratio, chunks = x.shape[2] // b.shape[2], len(segments.chunk_indices)

    def states(k: Tensor, v: Tensor) -> Tensor:
        return v.new_empty(chunks, v.shape[2], k.shape[-1], v.shape[-1])

    def forward(given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        q, k, v, g = given
        on_the_way = states(k, v)
        out = torch.empty_like(v)
        del on_the_way
        return out, [q, k, v, torch.empty_like(g)]

    def backward(kept: Sequence[Tensor], _: Tensor) -> tuple[Tensor | None, ...]:
        k, v = kept[1:3]
        again = states(k, v), states(k, v)
        grads = tuple(torch.empty_like(x) for x in kept)
        del again
        return grads

    q, k = (t.repeat_interleave(ratio, dim=2) for t in (c, b))
    v, g = (x * step[..., None]).to(x.dtype), step.float() * a.float()
    out = _held(_Memory(forward=forward, backward=backward), q, k, v, g)
    return (out + x * d[:, None]).to(x.dtype)


_FUSED: dict[Layer, Kernel] = {"delta": delta, "conv": conv, "scan": scan}


def bind_fused(model: nn.Module) -> None:
    """Gives every layer of ours in `model` the stand-ins of its fused kernels."""
    for module in model.modules():
        if isinstance(module, SegmentedLayer):
            for kind in module.kinds:
                if kind in _FUSED:
                    module.bind(kind, _FUSED[kind])
