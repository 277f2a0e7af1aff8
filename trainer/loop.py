"""A training run from its options to its last checkpoint, to be read from top to bottom.

    status = run(RunConfig(shards="data/packed", steps=100, out="runs/first"))

Every rank runs this same code; rank 0 alone prints and writes. Between two steps all ranks agree on errors and on the wish to stop, so that
none is left waiting; within a step nothing waits for the device except where a line of metrics is due.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict

import torch

from packer.errors import UserError
from trainer.alike import refuse_unlike
from trainer.bad_steps import BadSteps
from trainer.by_source import SourceWindow
from trainer.config import RunConfig, warmup_steps
from trainer.evaluate import Evaluation
from trainer.flops import flops_of, peak_flops
from trainer.interrupts import Interrupts
from trainer.keeper import Keeper
from trainer.loader import Prefetch, ShardCheck, StepWork, plan_step, read_steps
from trainer.metrics import MetricsFile, Window, graphs_compiled, step_line
from trainer.optim import learning_rate
from trainer.parallel import DTYPES, compiling
from trainer.phases import Phase, unnamed
from trainer.prepare import Prepared, prepare, row_list
from trainer.ranks import start_ranks
from trainer.record import changed_options, find, read_record, record, refuse_other_run
from trainer.run_folder import held
from trainer.say import printer
from trainer.setup import Ready, make_ready, trackers_of
from trainer.source import check_source, config_digest, read_config
from trainer.step import StepResult, train_step
from trainer.trackers import Trackers, refuse_missing

# Steps read ahead. Two: one is ready when the model asks, one is being read. A step of 128 rows of 8,192 slots takes 38 MB.
READ_AHEAD = 2


def run(config: RunConfig, *, quiet: bool = False) -> int:
    """Trains; returns 0 at the end, 128 + signal after one stopped it. Raises UserError, on every rank, for what a person can mend. quiet: only notes
    are printed."""
    with start_ranks() as ranks, ExitStack() as stack:
        prepared = ranks.together(lambda: prepare(resolve_dtype(config, ranks.device), world=ranks.world))
        ranks.together(lambda: stack.enter_context(held(prepared.folder)) if ranks.first else None)
        found = ranks.together(lambda: find(prepared))
        digest = ranks.together(lambda: digest_of_config(prepared, resumed=found is not None))
        refuse_unlike(prepared, found, config_digest=digest, ranks=ranks)
        say = printer(ranks, quiet=quiet)
        if found is not None:
            saved = ranks.together(lambda: read_record(found))
            now = record(prepared, step=saved.step, config_digest=digest)
            refuse_other_run(saved, now, checkpoint=found)
            if saved.step == saved.steps:
                for change in changed_options(saved, now):
                    say("note", f"asked for now, and not what that run did: {change}")
                say("done", f"{prepared.folder} already holds all {saved.steps:,} steps of this run: nothing to do")
                say("hint", "give another --out to train again")
                return 0
        ranks.together(lambda: refuse_missing(prepared.config.tracker) if ranks.first else None)
        ready = make_ready(prepared, ranks, say, found, config_digest=digest)
        with ranks.together(lambda: trackers_of(ready)) as trackers:
            return _Loop(ready, trackers).train()


def digest_of_config(prepared: Prepared, *, resumed: bool = False) -> str:
    """Of the model's config.json; raises UserError where the model cannot be had (resumed: its weights need not be there)."""
    check_source(prepared.model, init="random" if resumed else prepared.config.init)
    document = read_config(prepared.model, fetch=True)
    return "" if document is None else config_digest(document)  # "": loading the model will say why


def resolve_dtype(config: RunConfig, device: torch.device) -> RunConfig:
    """The options with what `--dtype auto` means on the device."""
    if config.dtype != "auto":
        return config
    return dataclasses.replace(config, dtype="bf16" if device.type == "cuda" else "fp32")


def take_step(ready: Ready, work: StepWork, *, rate: float, phase: Phase = unnamed) -> StepResult:
    """Makes one step of a run. phase: names its parts, for `trainer profile`, which watches these same steps."""
    config, ranks = ready.prepared.config, ready.ranks
    # So that a model with dropout draws the same numbers in a run that was interrupted.
    torch.manual_seed(((config.seed * 1_000_003 + work.plan.step) * 65_537 + ranks.rank) % 2**63)
    with compiling() if config.compile else nullcontext():
        return train_step(
            ready.model,
            ready.units,
            ready.optimizer,
            work.passes,
            denominator=work.plan.denominator,
            lr=rate,
            clip=config.clip,
            reduce=config.reduce,
            device=ranks.device,
            balance=config.router_aux_loss / work.plan.trained_rows,
            phase=phase,
        )


class _Loop:
    """One part of a run: from its start or a checkpoint to its end or a signal."""

    def __init__(self, ready: Ready, trackers: Trackers) -> None:
        self.ready, self.trackers = ready, trackers
        self.config, self.ranks, self.say = ready.prepared.config, ready.ranks, ready.say
        self.steps = ready.prepared.order.steps
        self.warmup = warmup_steps(self.config.warmup, total=self.steps)
        self.within_step = False
        self.done = ready.start  # steps made, whatever became of what was due after them
        self.window = Window(flops=flops_of(ready.model), peak=peak_flops(self.ranks.device, DTYPES[self.config.dtype]))
        self.last_loss = float("nan")
        self.evaluated = False
        self.bad = BadSteps(torch.device("cpu") if self.config.cpu_offload else self.ranks.device)
        self.told = 0  # how many of them have been told of
        self.keeper = Keeper(ready, self.bad)
        self.sources = None if ready.sources is None else SourceWindow(ready.sources, self.ranks.device)

    def train(self) -> int:
        """Makes the steps that are left; returns the exit status."""
        ready, ranks, corpus = self.ready, self.ranks, self.ready.prepared.corpus
        plans = (
            plan_step(ready.prepared, ready.counts, step, world=ranks.world) for step in range(ready.start, self.steps)
        )
        check = ShardCheck(corpus, local_rank=ranks.local_rank, local_world=ranks.local_world)
        pin = ranks.device.type == "cuda"
        work = read_steps(
            plans, corpus, rank=ranks.rank, shape=ready.shape, pin=pin, check=check, sources=ready.sources
        )
        evaluation = self._evaluation()
        try:
            with Interrupts() as interrupts, Prefetch(work, depth=READ_AHEAD) as ahead:
                for step in range(ready.start, self.steps):
                    wish = self._step(step, ahead, check, interrupts)
                    if wish:
                        self._stop(wish, step)
                        return 128 + wish
                    if wish := self._between(step + 1, evaluation, check, interrupts):
                        name = signal.Signals(wish).name
                        self.say(
                            "stopped",
                            f"{name} after all {self.steps:,} steps, which are saved, and before the last evaluation",
                        )
                        return 128 + wish
        except UserError as error:
            # An error within a step may be this rank's alone: the others are in the middle of it, and nothing can be done together.
            if not self.within_step:
                self.keeper.rescue(error, done=self.done)
            raise
        finally:
            check.close()
            if evaluation is not None:
                evaluation.close()
        self._farewell()
        return 0

    def _evaluation(self) -> Evaluation | None:
        corpus = self.ready.prepared.eval_corpus
        if corpus is None:
            return None
        return self.ranks.together(lambda: Evaluation(corpus, shape=self.ready.shape, ranks=self.ranks))

    def _step(self, step: int, ahead: Prefetch[StepWork], check: ShardCheck, interrupts: Interrupts) -> int:
        """Makes step `step`, unless a signal has come on some rank: then returns its number."""
        config, ranks, ready = self.config, self.ranks, self.ready
        began = time.perf_counter()
        error, work = None, None
        try:
            check.raise_if_broken()
            self.keeper.hear()
            work = ahead.get()
        except UserError as raised:
            error = raised
        waited = time.perf_counter() - began
        wish = ranks.agree(error=error, signal=interrupts.signal)
        if wish:
            return wish
        assert work is not None  # agree has raised where there is none
        rate = learning_rate(step, peak=config.lr, warmup=self.warmup, steps=self.steps, schedule=config.schedule)
        self.within_step = True
        result = take_step(ready, work, rate=rate)
        self.within_step, self.done = False, step + 1
        self.bad.add(step, result.finite)
        self.window.add(work, waited_s=waited)
        if self.sources is not None and result.source_sums is not None:
            self.sources.add(work.passes, result.source_sums)
        if step == ready.start or (step + 1) % config.log_every == 0 or step + 1 == self.steps:
            self._log(work, result, rate)
        return 0

    def _log(self, work: StepWork, result: StepResult, rate: float) -> None:
        config, order, done = self.config, self.ready.prepared.order, work.plan.step + 1
        epoch = round(min(done * order.rows_per_step, order.positions) / order.rows, 6)
        skipped = self.ready.skipped + self.bad.count
        metrics = self.window.close(work, result, epoch=epoch, lr=rate, skipped=skipped, ranks=self.ranks)
        if result.balance_sum is not None:
            evenness = float(self.ranks.gather([result.balance_sum.item()]).sum()) / work.plan.trained_rows
            objective = (
                metrics.loss if metrics.objective is None else metrics.objective
            ) + config.router_aux_loss * evenness
            metrics = dataclasses.replace(metrics, router_aux_loss=evenness, objective=objective)
        if self.sources is not None:
            metrics = self.sources.close(self.ranks).added_to(metrics)
        self.last_loss = metrics.loss
        self._write(lambda file: file.add_step(metrics))
        self.trackers.log({name: value for name, value in asdict(metrics).items() if name != "step"}, step=done)
        self.say("", step_line(metrics, steps=self.steps))
        self._refuse_non_finite()

    def _write(self, add: Callable[[MetricsFile], None]) -> None:
        file = self.ready.metrics
        self.ranks.together(lambda: add(file) if file is not None else None)

    def _refuse_non_finite(self) -> None:
        bad, skipped = self.bad.first, self.bad.count
        if skipped == self.told:
            return
        rows = plan_step(self.ready.prepared, self.ready.counts, bad, world=self.ranks.world).rows
        if self.config.non_finite == "skip":
            self.told = skipped
            self.say(
                "note",
                f"updates not made, because their gradient was not finite: {skipped:,}; the first is step {bad + 1}, rows {row_list(rows)}",
            )
            return
        raise UserError(
            f"step {bad + 1}: the gradient is not finite; its update was not made ({skipped} skipped so far). Rows: {row_list(rows)}",
            f"`trainer blame {self.ready.prepared.folder} --step {bad + 1}` names the examples, and the layer in which it begins; lower --lr or lengthen "
            "--warmup, or leave rows out with --skip-rows, and go on from the last checkpoint",
        )

    def _between(self, done: int, evaluation: Evaluation | None, check: ShardCheck, interrupts: Interrupts) -> int:
        """What is due after `done` steps besides training: none of it counts in the rates. Returns the signal that kept the last evaluation from being
        made, else 0."""
        config, began, last, wish = self.config, time.perf_counter(), done == self.steps, 0
        if last:
            self.ranks.together(check.finish)
        # Before the evaluation, which may take longer than a signal gives: what is saved need not be made again.
        if last or (config.save_every and done % config.save_every == 0):
            self._refuse_non_finite()
            self.keeper.save(done)
        if evaluation is not None and (last or (config.eval_every and done % config.eval_every == 0)):
            made = self._evaluate(done, evaluation, interrupts)
            if last and not made:
                wish = self.ranks.agree(signal=interrupts.signal)
        if last:
            self.keeper.wait()
        self.window.skip(time.perf_counter() - began)
        return wish

    def _evaluate(self, done: int, evaluation: Evaluation, interrupts: Interrupts) -> bool:
        """Whether it came to its end; a signal ends it before."""
        graphs = graphs_compiled()
        result = evaluation.losses(self.ready.model, self.ready.units, wish=lambda: interrupts.signal)
        if result is None:
            return False
        loss, found = result
        if not self.evaluated:
            self.window.expect(graphs_compiled() - graphs)
        self.evaluated = True
        supervised = evaluation.supervised
        more = {} if found is None else {"eval_loss_by_source": found.loss}
        self._write(lambda file: file.add_eval(step=done, eval_loss=loss, eval_supervised_tokens=supervised, **more))
        self.trackers.log({"eval_loss": loss, "eval_supervised_tokens": supervised, **more}, step=done)
        self.say("", f"step {done}/{self.steps}  eval loss {loss:.4f} over {supervised:,} supervised tokens")
        return True

    def _stop(self, wish: int, step: int) -> None:
        name = signal.Signals(wish).name
        if step == 0:
            self.say("stopped", f"{name} before the first step: nothing to save")
            return
        if self.keeper.begun < step:
            self._refuse_non_finite()
            self.keeper.save(step)
        self.keeper.wait()
        self.say("stopped", f"{name} after step {step:,} of {self.steps:,}; the same command goes on from there")

    def _farewell(self) -> None:
        if self.ready.metrics is None:
            return
        first = self.ready.metrics.first_loss()
        losses = f"loss {first:.4f} → {self.last_loss:.4f}" if first is not None else f"loss {self.last_loss:.4f}"
        self.say("done", f"{self.steps:,} steps, {losses}; the run lies in {self.ready.prepared.folder}")
