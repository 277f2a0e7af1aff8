"""One pass whose gradient is thrown away, before the optimiser is made: kernels are compiled and tuned while memory is still free, and before any rank's step
could make the others wait for longer than their network lets them.

warm_up(model, units, first_pass(prepared, counts, step=0, shape=shape, sources=None, ranks=ranks), ranks, say, compiled=False)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainer.batch import Batch, Shape
from trainer.by_source import Sources
from trainer.loader import plan_step, read_pass
from trainer.parallel import compiling
from trainer.prepare import Counts, Prepared
from trainer.ranks import Ranks
from trainer.say import Say
from trainer.step import accumulate


def first_pass(
    prepared: Prepared, counts: Counts, *, step: int, shape: Shape, sources: Sources | None, ranks: Ranks
) -> Batch:
    """The first pass of step `step` (from 0) of this rank; every rank calls it."""

    def read() -> Batch:
        deal = plan_step(prepared, counts, step, world=ranks.world).deal
        pin = ranks.device.type == "cuda"
        rows, weights = deal.rows[0, ranks.rank], deal.weights[0, ranks.rank]
        return read_pass(prepared.corpus, rows, weights, shape=shape, pin=pin, sources=sources)

    return ranks.together(read)


def warm_up(
    model: nn.Module, units: Sequence[FSDPModule], batch: Batch, ranks: Ranks, say: Say, *, compiled: bool
) -> None:
    """Every rank calls it, and none leaves before all have done it. compiled: whether blocks are; what cannot be is a UserError."""
    say("warm-up", "first pass: kernels are compiled and tuned, which may take minutes")
    began = time.perf_counter()
    with compiling() if compiled else nullcontext():
        accumulate(model, units, [batch], denominator=1, reduce="pass", device=ranks.device)
    model.zero_grad(set_to_none=True)
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    ranks.barrier()
    say("warm-up", f"done in {time.perf_counter() - began:.1f} s, not counted in the rates")
