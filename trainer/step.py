"""One optimiser step: passes, one update. The loss is scaled here and nowhere else.

The gradient of a step is that of one number, whatever the ranks and passes that compute it. With --loss-weighting

    token      Σ cross-entropy over all targets of the step ÷ their number: a long answer weighs more than a short one
    example    Σ over examples of (Σ cross-entropy over the example's targets ÷ their number) ÷ number of examples with a target

Each pass adds its own sum ÷ the step's denominator (known on the host beforehand), and ranks are summed. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.batch import Batch
from trainer.config import Reduce
from trainer.optim import gradient_norm, update
from trainer.parallel import reduce_gradients
from trainer.phases import Phase, unnamed


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """On the device: loss_sum (float64 [], this rank's cross-entropy summed over its targets), objective_sum (float64 [], the same with each target's
    weight), grad_norm (fp32 [], all ranks), finite (bool [])."""

    loss_sum: Tensor
    objective_sum: Tensor
    grad_norm: Tensor
    finite: Tensor


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of cross-entropy over a pass's targets, fp32 []; where targets have weights [2]: the weighted sum and the plain one."""
    inputs = (batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count)
    loss: Tensor = model(*inputs) if batch.target_weights is None else model(*inputs, batch.target_weights)
    return loss


def accumulate(
    model: nn.Module,
    units: Sequence[FSDPModule],
    passes: Sequence[Batch],
    *,
    denominator: int,
    reduce: Reduce,
    device: torch.device,
    phase: Phase = unnamed,
) -> Tensor:
    """Adds the step's gradient to `.grad`, summed over ranks; returns this rank's weighted and plain loss sums, float64 [2] (equal without weights).

    denominator: targets of the step, or its examples, over all ranks. reduce: "pass" sums after each pass into fp32 shards; "step" sums once, at the last pass,
    and until then holds the whole gradient on every rank (27B parameters: 108 GB).
    """
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for place, batch in enumerate(passes):
        reduce_gradients(units, reduce == "pass" or place == len(passes) - 1)
        with phase("forward"):
            loss = loss_of(model, batch.to(device))
        with phase("backward"):
            torch.autograd.backward((loss if loss.dim() == 0 else loss[0]) / denominator)
        total += loss.detach()
    return total


def train_step(
    model: nn.Module,
    units: Sequence[FSDPModule],
    optimizer: torch.optim.AdamW,
    passes: Sequence[Batch],
    *,
    denominator: int,
    lr: float,
    clip: float,
    reduce: Reduce,
    device: torch.device,
    phase: Phase = unnamed,
) -> StepResult:
    """One optimiser step over this rank's passes."""
    sums = accumulate(model, units, passes, denominator=denominator, reduce=reduce, device=device, phase=phase)
    with phase("optimiser"):
        norm = gradient_norm(model)
        finite = update(optimizer, norm, lr=lr, clip=clip)
    return StepResult(loss_sum=sums[1], objective_sum=sums[0], grad_norm=norm, finite=finite)
