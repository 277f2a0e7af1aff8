"""Gradients of a model, sharded or not, as the step of a run adds them up, and how far apart two of them are.

before = gradient_of(model, units, passes, targets=57, ranks=ranks)
norms_of(before, ranks)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainer import step
from trainer.batch import Batch
from trainer.parallel import reduce_gradients
from trainer.ranks import Ranks


def gradient_of(
    model: nn.Module, units: Sequence[FSDPModule], passes: Sequence[Batch], *, targets: float, ranks: Ranks
) -> list[Tensor]:
    """What a step over these passes of this rank leaves in each parameter's gradient: this rank's part. targets: of the step, over all ranks, or
    what they count."""
    model.zero_grad(set_to_none=True)
    # Through its module, so that what is checked is what a run calls.
    step.accumulate(model, units, passes, denominator=targets, reduce="pass", device=ranks.device)
    return take_gradients(model)


def plain_gradient(
    model: nn.Module, units: Sequence[FSDPModule], passes: Sequence[Batch], *, divisor: float, ranks: Ranks
) -> list[Tensor]:
    """The gradient of the sum of the losses of these passes ÷ divisor, summed over ranks, without the step of a run: what that is held against."""
    model.zero_grad(set_to_none=True)
    reduce_gradients(units, True)
    for batch in passes:
        torch.autograd.backward(step.optimised(step.loss_of(model, batch.to(ranks.device))) / divisor)
    return take_gradients(model)


def take_gradients(model: nn.Module) -> list[Tensor]:
    """This rank's part of every parameter's gradient, taken from the model."""
    taken = []
    for parameter in model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        taken.append((gradient.to_local() if isinstance(gradient, DTensor) else gradient).detach())
    model.zero_grad(set_to_none=True)
    return taken


def norms_of(gradients: Sequence[Tensor], ranks: Ranks) -> list[float]:
    """The norm of each over all ranks. Where ranks hold replicas of a part it counts as often, in every norm alike."""
    squares = torch.stack([gradient.double().square().sum() for gradient in gradients]).tolist()
    norms: list[float] = ranks.gather(squares).sum(dim=0).sqrt().tolist()
    return norms


def distances(ours: Sequence[Tensor], theirs: Sequence[Tensor], ranks: Ranks) -> list[float]:
    """The norm of the difference of each pair, over all ranks."""
    return norms_of([a.double() - b.double() for a, b in zip(ours, theirs, strict=True)], ranks)


def relative(errors: Sequence[float], norms: Sequence[float]) -> list[float]:
    """Each error ÷ its norm; where that is less than a millionth of the whole gradient's, ÷ that: what cancels to 0 has no relative error."""
    least = 1e-6 * sum(norm**2 for norm in norms) ** 0.5
    return [error / max(norm, least) if error else 0.0 for error, norm in zip(errors, norms, strict=True)]
