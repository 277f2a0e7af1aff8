"""The rungs of the ladder: how each lays examples out, what computes its layers, and a model of it at its start.

    padded-stock     2-D padded batches, layers and attention of transformers: what the others are held against
    padded-kernels   the same batches, our layers
    packed           rows, our layers: what `trainer run` does
    against          rows, our layers, other options (--against)

One process trains one rung at a time; each starts from the weights that the same seed gives all of them.

    trainee = make_trainee(PACKED, setting, config)
    next(work_of(PACKED, setting, config, check))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.distributed.fsdp import FSDPModule

from trainer.compare.groups import padded_work
from trainer.compare.setting import Setting
from trainer.compare.stock import StockModel, build_stock, stock_layers
from trainer.config import RunConfig
from trainer.loader import ShardCheck, StepWork, plan_step, read_steps
from trainer.model import PackedModel, try_out
from trainer.optim import make_optimizer
from trainer.parallel import DTYPES, master_dtype
from trainer.prepare import Prepared
from trainer.ranks import Ranks
from trainer.setup import plan_as_run, shard_as_run
from trainer.weights import Weights, fill

# padded: ids [B, L]; flat: the same batches as [1, B·L]; packed: rows.
Layout = Literal["padded", "flat", "packed"]
Build = Callable[[Prepared, Ranks], tuple[PackedModel, Weights]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """build: its model without memory, and where the weights come from."""

    name: str
    layout: Layout
    build: Build


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainee:
    """A model with its weights, its sharded units, and an optimiser that has made no step."""

    model: PackedModel
    units: Sequence[FSDPModule]
    optimizer: torch.optim.AdamW


def segmented(prepared: Prepared, ranks: Ranks) -> tuple[PackedModel, Weights]:
    """The model that `trainer run` trains."""
    return plan_as_run(prepared, ranks)


def stock(prepared: Prepared, ranks: Ranks) -> tuple[PackedModel, Weights]:
    """The model as transformers runs it. Its weights have the names of the other's, and are read or drawn by the other's plan."""
    _, weights = plan_as_run(prepared, ranks)
    model = build_stock(prepared.model, master_dtype(DTYPES[prepared.config.dtype]))
    return StockModel(model, layers=stock_layers(model)), weights


PADDED_STOCK = Rung(name="padded-stock", layout="padded", build=stock)
PADDED_KERNELS = Rung(name="padded-kernels", layout="flat", build=segmented)
PACKED = Rung(name="packed", layout="packed", build=segmented)
AGAINST = Rung(name="against", layout="packed", build=segmented)
LADDER = (PADDED_STOCK, PADDED_KERNELS, PACKED)


def make_trainee(rung: Rung, setting: Setting, config: RunConfig) -> Trainee:
    """The rung's model with the weights that it starts from; config: its options, of which the seed decides random weights."""
    ranks = setting.ranks
    prepared = setting.prepared(config)
    model, weights = rung.build(prepared, ranks)
    units = shard_as_run(model, config, ranks)
    fill(model, model.model, weights, ranks.device)
    if not isinstance(model, StockModel):
        try_out(model, prepared.model, ranks.device)
    model.train()
    optimizer = make_optimizer(model, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    return Trainee(model=model, units=units, optimizer=optimizer)


def work_of(
    rung: Rung, setting: Setting, config: RunConfig, check: ShardCheck, *, replicate: int = 0
) -> Iterator[StepWork]:
    """The steps of a run of this rung, read. replicate: another number is another order of examples inside each padded step, and nothing else."""
    prepared, shape = setting.prepared(config), setting.shape(config)
    pin = setting.ranks.device.type == "cuda"
    plans = (plan_step(prepared, setting.counts, step, world=1) for step in range(prepared.order.steps))
    if rung.layout == "packed":
        yield from read_steps(plans, prepared.corpus, rank=0, shape=shape, pin=pin, check=check)
        return
    for plan in plans:
        check.touch(plan.rows)
        yield padded_work(
            plan,
            prepared.corpus,
            slots=shape.slots,
            weighted=shape.weighted,
            two_dimensional=rung.layout == "padded",
            order=(config.seed, replicate),
            pin=pin,
        )
