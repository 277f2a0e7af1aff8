"""One optimiser step: passes, one update. The loss is scaled here and nowhere else.

The gradient of a step is that of one number, whatever the ranks and passes that compute it. With --loss-weighting

    token      Σ cross-entropy over all targets of the step ÷ their number: a long answer weighs more than a short one
    example    Σ over examples of (Σ cross-entropy over the example's targets ÷ their number) ÷ number of examples with a target

Where the rows say what each target counts (`loss_weights`), each of these is the mean under those weights: a target's cross-entropy is taken w times, and so is
the 1 that it adds to what is divided by: with f = 1, or 1 ÷ the targets of its example, Σ f·w·cross-entropy ÷ Σ f·w. So the loss stays one of a token and
gradients do not change their size with the scale of the weights: all of 1 are none, and all of 0.5 too. LLaMA-Factory's v1 divides by the weights as well, of each
rank's pass by itself; ms-swift's `loss_scale` divides by the number of targets, so that there a step of small weights is a small step. Here the weights
are those of the whole step, over all ranks and passes.

A router loss that was asked for (`trainer.routers`) is added: its coefficient · the mean over the step's rows of each one's.

Each pass adds its own sum ÷ the step's denominator (known on the host beforehand), and ranks are summed. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.batch import Batch
from trainer.by_source import sums_by_source
from trainer.config import Reduce
from trainer.optim import gradient_norm, update
from trainer.parallel import reduce_gradients
from trainer.phases import Phase, unnamed


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """On the device: loss_sum (float64 [], this rank's cross-entropy summed over its targets, each as often as its row says), objective_sum (float64 [], what is
    optimised), grad_norm (fp32 [], all ranks), finite (bool []). source_sums: float64 [G], loss_sum by source; G is 0 where the corpus has one.
    balance_sum: float64 [], this rank's rows' router losses, summed; None where the router loss is off."""

    loss_sum: Tensor
    objective_sum: Tensor
    grad_norm: Tensor
    finite: Tensor
    source_sums: Tensor | None = None
    balance_sum: Tensor | None = None


def loss_of(model: nn.Module, batch: Batch, each: Tensor | None = None) -> Tensor:
    """The sum of cross-entropy over a pass's targets, fp32 []; where targets have weights [2]: what is optimised and what is reported; where slots have
    weights [3]: these two (equal without the others) and the rows' router losses, summed.

    each: float64 [T], to be filled with that of every target by itself.
    """
    inputs = (batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count)
    more: tuple[Tensor | None, ...] = () if batch.target_weights is None else (batch.target_weights,)
    if each is not None or batch.slot_weights is not None:
        more = (batch.target_weights, each, batch.slot_weights)
    loss: Tensor = model(*inputs, *more)
    return loss


def reported(loss: Tensor) -> Tensor:
    """Of what `loss_of` gives: the sum over targets, each as often as its row says, fp32 []."""
    return loss if loss.dim() == 0 else loss[1]


def optimised(loss: Tensor) -> Tensor:
    """Of what `loss_of` gives: what has a gradient, fp32 []."""
    return loss if loss.dim() == 0 else loss[0]


def accumulate(
    model: nn.Module,
    units: Sequence[FSDPModule],
    passes: Sequence[Batch],
    *,
    denominator: float,
    reduce: Reduce,
    device: torch.device,
    balance: float = 0.0,
    phase: Phase = unnamed,
) -> Tensor:
    """Adds the step's gradient to `.grad`, summed over ranks; returns this rank's sums of what is optimised and what is reported (equal without weights), and
    the latter's part of each of the G sources that are told apart, and, where slots have weights, the sum of its rows' router losses: float64 [2 + G + 1].

    denominator: targets of the step, or its examples, over all ranks, or what these count (`StepPlan.denominator`). balance: what a row's router loss counts. reduce: "pass" sums after each pass into fp32 shards; "step" sums once, at the last pass,
    and until then holds the whole gradient on every rank (27B parameters: 108 GB).
    """
    shape = passes[0].shape
    total = torch.zeros(2 + shape.sources + shape.balanced, dtype=torch.float64, device=device)
    each = torch.zeros(shape.slots, dtype=torch.float64, device=device) if shape.sources else None
    for place, batch in enumerate(passes):
        reduce_gradients(units, reduce == "pass" or place == len(passes) - 1)
        with phase("forward"):
            here = batch.to(device)
            loss = loss_of(model, here) if each is None else loss_of(model, here, each)
            objective = optimised(loss) / denominator
        with phase("backward"):
            torch.autograd.backward(objective + balance * loss[2] if shape.balanced else objective)
        total[:2] += loss.detach()[:2] if loss.dim() else loss.detach()
        if each is not None:
            total[2 : 2 + shape.sources] += sums_by_source(each, here)
        if shape.balanced:
            total[-1] += loss.detach()[2]
    return total


def train_step(
    model: nn.Module,
    units: Sequence[FSDPModule],
    optimizer: torch.optim.AdamW,
    passes: Sequence[Batch],
    *,
    denominator: float,
    lr: float,
    clip: float,
    reduce: Reduce,
    device: torch.device,
    balance: float = 0.0,
    phase: Phase = unnamed,
) -> StepResult:
    """One optimiser step over this rank's passes."""
    shape = passes[0].shape
    sums = accumulate(
        model, units, passes, denominator=denominator, reduce=reduce, device=device, balance=balance, phase=phase
    )
    with phase("optimiser"):
        norm = gradient_norm(model)
        finite = update(optimizer, norm, lr=lr, clip=clip)
    return StepResult(
        loss_sum=sums[1],
        objective_sum=sums[0],
        grad_norm=norm,
        finite=finite,
        source_sums=sums[2 : 2 + shape.sources],
        balance_sum=sums[-1] if shape.balanced else None,
    )
