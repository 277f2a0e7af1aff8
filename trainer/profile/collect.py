"""Runs the trainer's own steps: some to warm up, some by the clock alone, two to look at, and those that the profiler records.

The steps that are looked at find what costs too much to find in a recorded one: which source lines wait for the device, and every allocation. The steps by
the clock tell how much the profiler itself slows a step. Rows are read ahead, so that a few steps do not show a loader that is too slow for many: how long
it takes to read a step's rows is measured where they are read.

    recording = collect(ready, padded=False, warm_up=2, steps=3, trace=None)
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from packer.errors import UserError
from trainer.config import warmup_steps
from trainer.loader import Prefetch, ShardCheck, StepWork, plan_step, read_steps
from trainer.loop import READ_AHEAD, take_step
from trainer.optim import learning_rate
from trainer.phases import Phase, unnamed
from trainer.profile.about import About, Compiled, Sync
from trainer.profile.annotate import phase, watched
from trainer.profile.compiling import Known
from trainer.profile.events import STEP, Event
from trainer.profile.kineto import events_of
from trainer.profile.memory import peaks
from trainer.profile.padded import padded_steps
from trainer.profile.sources import Sources
from trainer.setup import Ready

_LOOKED_AT = 2


def steps_made(warm_up: int, steps: int) -> int:
    """How many steps `collect` makes in all."""
    return warm_up + steps + _LOOKED_AT + steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """events: of the recorded steps, on the first rank. syncs: a step's, most first. compiled: in the window. memory: bytes at most in each part of a step."""

    about: About
    events: list[Event]
    syncs: tuple[Sync, ...]
    compiled: tuple[Compiled, ...]
    memory: dict[str, int]


def collect(ready: Ready, *, padded: bool, warm_up: int, steps: int, trace: Path | None) -> Recording:
    """Makes `steps_made` steps, of which the last `steps` are recorded. Every rank calls it. trace: where to write what the profiler recorded.

    Raises UserError where a step cannot be made or the trace cannot be written.
    """
    ranks, config = ready.ranks, ready.prepared.config
    check = ShardCheck(ready.prepared.corpus, local_rank=ranks.local_rank, local_world=ranks.local_world)
    try:
        reads: list[float] = []
        with Prefetch(_clocked(_work(ready, check, padded=padded), reads), depth=READ_AHEAD) as ahead:
            for _ in range(warm_up):
                _step(ready, ahead, unnamed)
            plain = _by_the_clock(ready, ahead, steps)
            with watched(ready.model, whole_blocks=config.compile):
                syncs = _waiting_lines(ready, ahead)
                memory = _memory(ready, ahead)
                known = Known.now()
                with _profiler(ranks.device, memory=False) as profiler:
                    done = [_recorded(ready, ahead) for _ in range(steps)]
                    _wait(ranks.device)
                compiled = known.since()
        # Reading goes on while steps are made: the usual time, not that of a read that a busy moment held up.
        plain = plain.with_reads_of(statistics.median(reads))
    finally:
        check.close()
    if trace is not None:
        ranks.together(lambda: _export(profiler, trace) if ranks.first else None)
    return Recording(
        about=_about(ready, done, padded=padded, warm_up=warm_up, plain=plain),
        events=events_of(profiler, device=ranks.device) if ranks.first else [],
        syncs=syncs,
        compiled=compiled,
        memory=memory,
    )


def _work(ready: Ready, check: ShardCheck, *, padded: bool) -> Iterator[StepWork]:
    prepared, ranks = ready.prepared, ready.ranks
    plans = (plan_step(prepared, ready.counts, step, world=ranks.world) for step in range(prepared.order.steps))
    pin = ranks.device.type == "cuda"
    if padded:
        return padded_steps(plans, prepared.corpus, seed=prepared.config.seed, weighted=ready.shape.weighted, pin=pin)
    return read_steps(plans, prepared.corpus, rank=ranks.rank, shape=ready.shape, pin=pin, check=check)


def _clocked(source: Iterator[StepWork], seconds: list[float]) -> Iterator[StepWork]:
    """The same work; notes how long each step's takes to be read."""
    while True:
        began = time.perf_counter()
        work = next(source, None)
        if work is None:
            return
        seconds.append(time.perf_counter() - began)
        yield work


def _step(ready: Ready, ahead: Prefetch[StepWork], named: Phase) -> StepWork:
    """One step of a run: rows, agreement of the ranks, the update."""
    config, error, work = ready.prepared.config, None, None
    with named("data"):
        try:
            work = ahead.get()
        except UserError as raised:
            error = raised
    ready.ranks.agree(error=error)
    assert work is not None  # agree has raised where there is none
    steps = ready.prepared.order.steps
    warmup = warmup_steps(config.warmup, total=steps)
    rate = learning_rate(work.plan.step, peak=config.lr, warmup=warmup, steps=steps, schedule=config.schedule)
    take_step(ready, work, rate=rate, phase=named)
    return work


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plain:
    """Seconds of a step by the clock, those of them that the host waited for rows, and what it takes to read a step's rows."""

    step_s: float
    data_s: float
    read_s: float = 0.0

    def with_reads_of(self, read_s: float) -> _Plain:
        """The same step in a long run: nothing is left of what was read ahead, and a step takes as long as reading its rows."""
        working = self.step_s - self.data_s
        waits = max(self.data_s, read_s - working)
        return _Plain(step_s=working + waits, data_s=waits, read_s=read_s)


def _by_the_clock(ready: Ready, ahead: Prefetch[StepWork], steps: int) -> _Plain:
    waited = 0.0

    @contextmanager
    def clocked(name: str) -> Iterator[None]:
        nonlocal waited
        began = time.perf_counter()
        yield
        if name == "data":
            waited += time.perf_counter() - began

    _wait(ready.ranks.device)
    began = time.perf_counter()
    for _ in range(steps):
        _step(ready, ahead, clocked)
    _wait(ready.ranks.device)
    return _Plain(step_s=(time.perf_counter() - began) / steps, data_s=waited / steps)


def _recorded(ready: Ready, ahead: Prefetch[StepWork]) -> StepWork:
    with phase(STEP):
        return _step(ready, ahead, phase)


def _waiting_lines(ready: Ready, ahead: Prefetch[StepWork]) -> tuple[Sync, ...]:
    """Of one step. Compiled code runs uncompiled in it: it has the same lines, and a compiled graph cannot be looked into."""
    with torch.compiler.set_stance("force_eager"), Sources(ready.ranks.device) as sources:
        _step(ready, ahead, unnamed)
    counts = Counter(event.where for event in sources.events)
    return tuple(Sync(where=where, count=count) for where, count in counts.most_common())


def _memory(ready: Ready, ahead: Prefetch[StepWork]) -> dict[str, int]:
    """Of one step."""
    device, held = ready.ranks.device, _held(ready)
    with _profiler(device, memory=True) as profiler:
        _step(ready, ahead, phase)
        _wait(device)
    return peaks(events_of(profiler, device=device), held=held)


def _held(ready: Ready) -> int:
    """Bytes on the device between two steps."""
    device = ready.ranks.device
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    states = [value for state in ready.optimizer.state.values() for value in state.values()]
    tensors = [*ready.model.parameters(), *ready.model.buffers(), *states]
    return sum(
        (each.to_local() if isinstance(each, DTensor) else each).nbytes
        for each in tensors
        if isinstance(each, torch.Tensor)
    )


def _profiler(device: torch.device, *, memory: bool) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, profile_memory=memory)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _export(profiler: profile, trace: Path) -> None:
    try:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
    except OSError as error:
        raise UserError(f"--trace {trace}: cannot be written ({error.strerror})", "give another path") from None


def _about(ready: Ready, done: list[StepWork], *, padded: bool, warm_up: int, plain: _Plain) -> About:
    prepared, device = ready.prepared, ready.ranks.device
    config, passes = prepared.config, [each for work in done for each in work.passes]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return About(
        model=prepared.model,
        device=device.type,
        device_name=name,
        dtype=config.dtype,
        world=ready.ranks.world,
        steps=len(done),
        warm_up=warm_up,
        passes=len(passes) / len(done),
        slots=sum(each.shape.slots for each in passes) / len(done),
        useful_tokens=sum(each.useful_tokens for each in passes) / len(done),
        plain_step_s=plain.step_s,
        plain_data_s=plain.data_s,
        read_s=plain.read_s,
        padded=padded,
        rows_per_step=config.rows_per_step,
        micro_rows=config.micro_rows,
        compiled=config.compile,
        reduce=config.reduce,
        checkpointing=config.activation_checkpointing,
        layers=ready.model.layers,
        at_address=prepared.corpus.verifies_itself,
        torch=torch.__version__,
    )
