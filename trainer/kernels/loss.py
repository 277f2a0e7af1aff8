"""Cross-entropy of the supervised tokens, summed, without the logits of a whole row ever existing.

8192 tokens times a vocabulary of 248,000 in float32 are 8 GB of logits, and the gradient as much again. Only the supervised positions are projected,
512 at a time; each chunk's logits become its part of the loss and of both gradients at once and are gone before the next (the scheme of Hsu et
al., "Liger Kernel", 2024). The backward pass multiplies what is ready by the gradient that arrives.

    >>> import torch
    >>> hidden, weight = torch.eye(2), torch.zeros(4, 2)
    >>> loss = cross_entropy_sum(hidden, weight, torch.tensor([0, 0]), torch.tensor([3, 3]), count=1)
    >>> round(float(loss), 4), round(float(torch.tensor(4.0).log()), 4)
    (1.3863, 1.3863)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

# Rows of logits at a time: enough for a matrix product to be one, few enough for their memory (300 MB at a vocabulary of 152,000) to be less than the
# weight's own gradient.
CHUNK = 512
# Rows of the weight whose gradient is summed at a time where sum and factors differ in type: what bounds the memory of a product in float32.
_SLICE = 1 << 15


def cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    positions: Tensor,
    targets: Tensor,
    count: int,
    *,
    softcap: float | None = None,
    target_weights: Tensor | None = None,
    each: Tensor | None = None,
) -> Tensor:
    """Σ over the first `count` entries of −log softmax(weight · hidden[positions[i]])[targets[i]].

    hidden [T, H], weight [V, H], positions and targets int64 [K] of a length that never changes; what lies past `count` (a host integer) is never read.
    softcap c replaces logits x by c·tanh(x/c) (Gemma 2). Logits, softmax and sum are float32 (float64 where hidden is float64), and so is the scalar
    that is given back. target_weights w float [K]: gives [2] instead, Σ wᵢ·(−log …) and, without a gradient, the plain sum; [2, K]: Σ of each line's
    weights times that, of which only the first has a gradient. each [K]: is filled with every
    −log … by itself, up to `count`; the sum is the same bits with it and without. With count 0 the sum is 0, still connected to hidden and weight, so that a
    sharded model's backward hooks run on this rank too. Its backward pass runs once: it gives its memory away.
    """
    if not 0 <= count <= len(positions) or len(positions) != len(targets):
        raise ValueError(f"count {count}, {len(positions)} positions, {len(targets)} targets")
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss: Tensor = _CrossEntropySum.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        hidden, weight, positions, targets, count, softcap, target_weights, each, needs_grad
    )
    return loss


class _CrossEntropySum(torch.autograd.Function):
    gradients: tuple[Tensor, Tensor] | None  # of the context: what backward gives away

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        positions: Tensor,
        targets: Tensor,
        count: int,
        softcap: float | None,
        target_weights: Tensor | None,
        each: Tensor | None,
        needs_grad: bool,
    ) -> Tensor:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        # A GPU multiplies half-precision factors into float32 sums; a CPU does not, so its factors are made wide, the weight once.
        wide = hidden.to(dtype) if hidden.is_cpu else hidden
        table = weight.to(dtype) if hidden.is_cpu else weight
        loss = hidden.new_zeros(() if target_weights is None else 2, dtype=dtype)
        grad_hidden = torch.zeros_like(hidden, dtype=dtype) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if needs_grad else None
        # One buffer for all chunks' logits: fresh memory a chunk would be zeroed by the system a page at a time.
        room = hidden.new_empty(min(CHUNK, count), len(weight), dtype=dtype)
        for start in range(0, count, CHUNK):
            end = min(start + CHUNK, count)
            rows, target = positions[start:end], targets[start:end, None]
            picked = wide[rows]
            logits = _product(picked, table.t(), room[: end - start])
            if softcap is not None:
                logits.div_(softcap).tanh_().mul_(softcap)
            slope = None if softcap is None or not needs_grad else 1 - (logits / softcap).square_()
            # All in the logits' own memory, which holds softmax − one-hot at the end, their gradient.
            chosen, top = logits.gather(-1, target), logits.amax(dim=-1, keepdim=True)
            total = logits.sub_(top).exp_().sum(dim=-1, keepdim=True)
            losses = total.log() + top - chosen
            if each is not None:
                each[start:end] = losses[:, 0]
            factors = None if target_weights is None else target_weights[..., start:end, None].to(dtype)
            counted = losses
            if factors is not None and factors.dim() == 3:
                factors, counted = factors[0], factors[1] * losses
            loss += losses.sum() if factors is None else torch.stack([(factors * losses).sum(), counted.sum()])
            if grad_hidden is None or grad_weight is None:
                continue
            grad = logits.div_(total)
            grad.scatter_add_(-1, target, torch.full_like(total, -1.0))
            if slope is not None:
                grad.mul_(slope)
            if factors is not None:
                grad.mul_(factors)
            grad = grad.to(table.dtype)
            grad_hidden.index_add_(0, rows, _product(grad, table, torch.empty_like(picked, dtype=dtype)))
            _add_product(grad_weight, grad.t(), picked)
        if grad_hidden is not None and grad_weight is not None:
            ctx.gradients = (grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype))  # type: ignore[attr-defined]  # a context takes any
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        ready: tuple[Tensor, Tensor] | None = ctx.gradients  # type: ignore[attr-defined]
        if ready is None:
            raise RuntimeError(
                "the loss was differentiated a second time, but its gradients were given away the first time"
            )
        ctx.gradients = None  # type: ignore[attr-defined]
        factor = grad if grad.dim() == 0 else grad[0]  # the plain sum beside it has no gradient
        # In place: a copy of the weight's gradient would be the largest tensor of the step once more.
        return ready[0].mul_(factor), ready[1].mul_(factor), *[None] * 7


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a @ b into `out`, with sums in out's type. Half-precision results would put a grid of 0.25 on logits near 40."""
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    return torch.mm(a, b, out_dtype=out.dtype, out=out)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, with sums in total's type and nothing of total's size made beside it."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
        return
    for start in range(0, len(total), _SLICE):
        total[start : start + _SLICE] += torch.mm(a[start : start + _SLICE], b, out_dtype=total.dtype)
