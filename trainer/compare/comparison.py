"""The whole comparison: every rung with every seed, one after the other, and what comes of it.

The rungs of one seed follow one another, and each seed begins with another rung, so that a machine that grows slower in the course of an hour does so for all of
them. One model is in memory at a time.

    found = compare(setting, ladder(config), margin_share=0.005, replicates=True, check=check, progress=Progress())
    found.outcomes["packed"].equivalent
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from packer.progress import Progress
from trainer.compare.rungs import AGAINST, LADDER, Rung
from trainer.compare.setting import Setting
from trainer.compare.statistics import Outcome, Spread, judge, spread
from trainer.compare.training import Trained, train
from trainer.config import RunConfig
from trainer.loader import ShardCheck

Rungs = Sequence[tuple[Rung, RunConfig]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """runs: of each rung, one a seed, the first rung being the reference. replicates: of the reference in another order, one a seed, or none.
    outcomes: of every other rung against the reference."""

    setting: Setting
    rungs: Rungs
    runs: Mapping[str, tuple[Trained, ...]]
    replicates: tuple[Trained, ...]
    margin_share: float
    outcomes: Mapping[str, Outcome]

    @property
    def passed(self) -> bool:
        """Whether no rung is not equivalent; too few seeds to say is not against it."""
        return all(outcome.equivalent is not False for outcome in self.outcomes.values())

    def held_out(self, rung: str) -> Spread:
        """Held-out losses of a rung."""
        return spread([run.held_out for run in self.runs[rung]])

    def useful_per_s(self, rung: str) -> float:
        """Useful tokens a second: the median of the seeds."""
        return statistics.median(run.useful_per_s for run in self.runs[rung])


def ladder(config: RunConfig, against: RunConfig | None = None) -> Rungs:
    """The three rungs with their options, and the fourth where there is one."""
    return [*((rung, config) for rung in LADDER), *([(AGAINST, against)] if against is not None else [])]


def total_steps(setting: Setting, rungs: Rungs, *, replicates: bool) -> int:
    """Optimiser steps of the whole comparison."""
    each = [setting.prepared(config).order.steps for _, config in rungs]
    return len(setting.seeds) * (sum(each) + (each[0] if replicates else 0))


def compare(
    setting: Setting, rungs: Rungs, *, margin_share: float, replicates: bool, check: ShardCheck, progress: Progress
) -> Comparison:
    """Trains every rung with every seed. replicates: also the reference a second time, in another order of examples inside each step."""
    runs: dict[str, list[Trained]] = {rung.name: [] for rung, _ in rungs}
    again: list[Trained] = []
    todo = [(rung, config, 0) for rung, config in rungs]
    if replicates:
        todo.append((*rungs[0], 1))
    steps = total_steps(setting, rungs, replicates=replicates)
    with _collecting(), progress.stage("compare", unit="steps", total=steps) as advance:
        for number, seed in enumerate(setting.seeds):
            first = number % len(todo)
            for rung, config, replicate in (*todo[first:], *todo[:first]):
                done = train(
                    rung,
                    setting,
                    dataclasses.replace(config, seed=seed),
                    check=check,
                    advance=advance,
                    replicate=replicate,
                    costs=number == 0 and not replicate,
                )
                (again if replicate else runs[rung.name]).append(done)
                if number == 0 and not replicate:
                    layers = ", ".join(f"{each.layer} {each.kernel}" for each in dict.fromkeys(done.layers))
                    progress.say(f"layers  {rung.name}: {layers}")
                what = f"{rung.name}{', in another order' if replicate else ''}"
                progress.say(
                    f"seed {seed}  {what}: loss {done.losses[0]:.4f} → {done.losses[-1]:.4f}, held out {done.held_out:.4f}, "
                    f"{done.useful_per_s:,.0f} useful tokens/s"
                )
    reference = [run.held_out for run in runs[rungs[0][0].name]]
    return Comparison(
        setting=setting,
        rungs=rungs,
        runs={name: tuple(done) for name, done in runs.items()},
        replicates=tuple(again),
        margin_share=margin_share,
        outcomes={
            rung.name: judge(
                [run.held_out for run in runs[rung.name]],
                reference,
                replicates=[run.held_out for run in again],
                margin_share=margin_share,
            )
            for rung, _ in rungs[1:]
        },
    )


@contextmanager
def _collecting() -> Iterator[None]:
    """While inside, the collector looks only at what has come since: a collection before each run then takes a millisecond and not a third of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
