"""One optimiser step: passes, one update. The loss is scaled here and nowhere else.

The gradient of a step is that of  Σ cross-entropy over all targets of the step ÷ their number,  whatever the ranks and passes that compute it:
each pass adds its sum ÷ the step's number (known on the host beforehand), and ranks are summed. Nothing waits for the device.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """On the device: loss_sum (float64 [], this rank's cross-entropy summed over its targets), grad_norm (fp32 [], all ranks), finite (bool [])."""

    loss_sum: Tensor
    grad_norm: Tensor
    finite: Tensor


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of cross-entropy over a pass's targets: fp32 []."""
    loss: Tensor = model(
        batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count
    )
    return loss


def accumulate(
    model: nn.Module,
    units: Sequence[FSDPModule],
    passes: Sequence[Batch],
    *,
    supervised: int,
    reduce: Reduce,
    device: torch.device,
) -> Tensor:
    """Adds the step's gradient to `.grad`, summed over ranks; returns this rank's loss sum, float64 [].

    supervised: targets of the step over all ranks. reduce: "pass" sums after each pass into fp32 shards; "step" sums once, at the last pass,
    and until then holds the whole gradient on every rank (27B parameters: 108 GB).
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for place, batch in enumerate(passes):
        reduce_gradients(units, reduce == "pass" or place == len(passes) - 1)
        loss = loss_of(model, batch.to(device))
        torch.autograd.backward(loss / supervised)
        total += loss.detach()
    return total


def train_step(
    model: nn.Module,
    units: Sequence[FSDPModule],
    optimizer: torch.optim.AdamW,
    passes: Sequence[Batch],
    *,
    supervised: int,
    lr: float,
    clip: float,
    reduce: Reduce,
    device: torch.device,
) -> StepResult:
    """One optimiser step over this rank's passes."""
    loss_sum = accumulate(model, units, passes, supervised=supervised, reduce=reduce, device=device)
    norm = gradient_norm(model)
    return StepResult(loss_sum=loss_sum, grad_norm=norm, finite=update(optimizer, norm, lr=lr, clip=clip))
