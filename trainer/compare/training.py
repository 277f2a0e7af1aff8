"""One run of one rung: the steps, timed; then what its weights are worth, and what a step costs.

trained = train(PACKED, setting, config, check=check, advance=lambda steps: None)
trained.held_out, trained.useful_per_s
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from packer.errors import GateError
from trainer.compare.cost import Cost, cost_of
from trainer.compare.held_out import held_out_loss
from trainer.compare.rungs import Rung, Trainee, make_trainee, work_of
from trainer.compare.setting import Setting
from trainer.config import RunConfig, warmup_steps
from trainer.kernels import Choice
from trainer.loader import Prefetch, ShardCheck, StepWork
from trainer.metrics import graphs_compiled
from trainer.optim import learning_rate
from trainer.parallel import compiling
from trainer.step import StepResult, train_step

_READ_AHEAD = 2
# Steps before the clock starts: memory is touched, kernels are compiled and tuned. A tenth of the run, at least two, and never all of it.
_UNTIMED_SHARE, _UNTIMED_LEAST = 0.1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """losses: of each step, Σ cross-entropy ÷ targets, by the weights that rows have, before its update. held_out: after the last. useful_tokens, slots, passes: of the whole run;
    timed_tokens, timed_s: of the steps after the first ones. cost: of its first step, whose useful tokens are first_tokens; None where it was not asked for."""

    rung: str
    seed: int
    losses: tuple[float, ...]
    held_out: float
    useful_tokens: int
    slots: int
    passes: int
    timed_tokens: int
    timed_s: float
    graphs: int
    peak_bytes: int | None
    cost: Cost | None
    first_tokens: int
    layers: tuple[Choice, ...]
    parameters: int

    @property
    def useful_per_s(self) -> float:
        """Tokens of examples a second, over the steps that were timed."""
        return self.timed_tokens / self.timed_s


def train(
    rung: Rung,
    setting: Setting,
    config: RunConfig,
    *,
    check: ShardCheck,
    advance: Callable[[float], None],
    replicate: int = 0,
    costs: bool = False,
) -> Trained:
    """Trains a rung from its start with the options of config, seed included, once the run before it has let go of its memory. advance: called with 1 a step.

    Raises GateError where a gradient is not finite.
    """
    _forget(setting.ranks.device)
    return _train(rung, setting, config, check=check, advance=advance, replicate=replicate, costs=costs)


def _train(
    rung: Rung,
    setting: Setting,
    config: RunConfig,
    *,
    check: ShardCheck,
    advance: Callable[[float], None],
    replicate: int,
    costs: bool,
) -> Trained:
    device, steps = setting.ranks.device, setting.prepared(config).order.steps
    graphs = graphs_compiled()
    trainee = make_trainee(rung, setting, config)
    losses: list[Tensor] = []
    finite: list[Tensor] = []
    useful: list[int] = []
    slots = passes = 0
    untimed = min(max(_UNTIMED_LEAST, round(_UNTIMED_SHARE * steps)), steps - 1)
    first: StepWork | None = None
    began = time.perf_counter()
    with Prefetch(work_of(rung, setting, config, check, replicate=replicate), depth=_READ_AHEAD) as ahead:
        for step in range(steps):
            if step == untimed:
                _wait(device)
                began = time.perf_counter()
            work = ahead.get()
            first = work if first is None and costs else first
            result = one_step(trainee, work, setting, config)
            losses.append(result.loss_sum / work.plan.loss_weight)
            finite.append(result.finite)
            useful.append(sum(batch.useful_tokens for batch in work.passes))
            slots += sum(batch.shape.slots for batch in work.passes)
            passes += len(work.passes)
            advance(1)
    _wait(device)
    seconds = time.perf_counter() - began
    check.finish()
    bad = [step for step, good in enumerate(torch.stack(finite).tolist()) if not good]
    if bad:
        raise GateError(
            f"{rung.name}, seed {config.seed}: the gradient of step {bad[0] + 1} is not finite ({len(bad)} of {steps} steps)",
            "lower --lr or lengthen --warmup; where only one rung comes to this, it does not train as the others do",
        )
    return Trained(
        rung=rung.name,
        seed=config.seed,
        losses=tuple(torch.stack(losses).tolist()),
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        graphs=graphs_compiled() - graphs,
        held_out=held_out_loss(trainee.model, setting),
        useful_tokens=sum(useful),
        slots=slots,
        passes=passes,
        timed_tokens=sum(useful[untimed:]),
        timed_s=seconds,
        cost=None if first is None else _cost(trainee, first, setting, config),
        first_tokens=useful[0],
        layers=trainee.model.layers,
        parameters=sum(parameter.numel() for parameter in trainee.model.parameters()),
    )


def one_step(trainee: Trainee, work: StepWork, setting: Setting, config: RunConfig) -> StepResult:
    """The optimiser step of a run, on whatever passes it is given."""
    steps = setting.prepared(config).order.steps
    torch.manual_seed((config.seed * 1_000_003 + work.plan.step) % 2**63)  # what a model with dropout draws
    rate = learning_rate(
        work.plan.step,
        peak=config.lr,
        warmup=warmup_steps(config.warmup, total=steps),
        steps=steps,
        schedule=config.schedule,
    )
    with compiling() if config.compile else nullcontext():
        return train_step(
            trainee.model,
            trainee.units,
            trainee.optimizer,
            work.passes,
            denominator=work.plan.denominator,
            lr=rate,
            clip=config.clip,
            reduce=config.reduce,
            device=setting.ranks.device,
        )


def _cost(trainee: Trainee, work: StepWork, setting: Setting, config: RunConfig) -> Cost:
    state = trainee.optimizer.state.values()
    resident = [
        *trainee.model.parameters(),
        *trainee.model.buffers(),
        *(value for each in state for value in each.values() if isinstance(value, Tensor)),
    ]
    return cost_of(
        lambda: one_step(trainee, work, setting, config),
        device=setting.ranks.device,
        resident=resident,
        compiled=config.compile,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget(device: torch.device) -> None:
    """Lets go of the run before: hooks of sharded modules make cycles, which only the collector ends."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
