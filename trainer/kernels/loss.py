"""Cross-entropy of the supervised tokens, summed, without the logits of a whole row ever existing.

8192 tokens times a vocabulary of 248,000 in float32 are 8 GB of logits, and the gradient as much again. Only the supervised positions are projected,
1024 at a time; each chunk's logits become its part of the loss and of both gradients at once and are gone before the next (the scheme of Hsu et
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

CHUNK = 1024


def cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    positions: Tensor,
    targets: Tensor,
    count: int,
    *,
    softcap: float | None = None,
    target_weights: Tensor | None = None,
) -> Tensor:
    """Σ over the first `count` entries of −log softmax(weight · hidden[positions[i]])[targets[i]].

    hidden [T, H], weight [V, H], positions and targets int64 [K] of a length that never changes; what lies past `count` (a host integer) is never read.
    softcap c replaces logits x by c·tanh(x/c) (Gemma 2). Logits, softmax and sum are float32 (float64 where hidden is float64), and so is the scalar
    that is given back. target_weights w float64 [K]: gives [2] instead, Σ wᵢ·(−log …) and, without a gradient, the plain sum. With count 0 it is 0, still connected to hidden and weight, so that a sharded model's backward hooks run on this rank too.
    """
    if not 0 <= count <= len(positions) or len(positions) != len(targets):
        raise ValueError(f"count {count}, {len(positions)} positions, {len(targets)} targets")
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss: Tensor = _CrossEntropySum.apply(
        hidden, weight, positions, targets, count, softcap, target_weights, needs_grad
    )  # type: ignore[no-untyped-call]  # untyped in torch
    return loss


class _CrossEntropySum(torch.autograd.Function):
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
        needs_grad: bool,
    ) -> Tensor:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        loss = hidden.new_zeros(() if target_weights is None else 2, dtype=dtype)
        grad_hidden = torch.zeros_like(hidden, dtype=dtype) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if needs_grad else None
        for start in range(0, count, CHUNK):
            end = min(start + CHUNK, count)
            rows = positions[start:end]
            picked = hidden[rows]
            logits = _product(picked, weight.t(), dtype)
            if softcap is not None:
                logits = logits.div_(softcap).tanh_().mul_(softcap)
            target = targets[start:end, None]
            log_total = logits.logsumexp(dim=-1, keepdim=True)
            losses = log_total - logits.gather(-1, target)
            factors = None if target_weights is None else target_weights[start:end, None].to(dtype)
            loss += losses.sum() if factors is None else torch.stack([(factors * losses).sum(), losses.sum()])
            if grad_hidden is None or grad_weight is None:
                continue
            slope = None if softcap is None else 1 - (logits / softcap).square_()
            grad = logits.sub_(
                log_total
            ).exp_()  # from here on the logits' memory holds their gradient: softmax − one-hot
            grad.scatter_add_(-1, target, torch.full_like(log_total, -1.0))
            if slope is not None:
                grad.mul_(slope)
            if factors is not None:
                grad.mul_(factors)
            grad = grad.to(weight.dtype)
            grad_hidden.index_add_(0, rows, _product(grad, weight, dtype))
            grad_weight += _product(grad.t(), picked, dtype)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors  # type: ignore[attr-defined]  # torch's stub for FunctionCtx lacks it
        grad = grad if grad.dim() == 0 else grad[0]  # the plain sum beside it has no gradient
        return grad_hidden * grad, grad_weight * grad, None, None, None, None, None, None


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b with sums and result in `dtype`. Half-precision results would put a grid of 0.25 on logits near 40."""
    if a.dtype == dtype and b.dtype == dtype:
        return a @ b
    if a.is_cuda and a.dtype == b.dtype and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)  # half-precision factors, float32 sums and result
    return a.to(dtype) @ b.to(dtype)
