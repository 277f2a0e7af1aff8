"""What a run measures: one JSON line and one line for a person every --log-every steps, from rank 0.

Rates are of the window since the last line, over all ranks, and the window waits for the device at its end, so that what was merely enqueued is
not counted as done. slots: with padding and filling. useful: tokens of examples. supervised: targets.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType

import numpy as np
import torch

from packer.errors import UserError
from packer.files import write_text
from trainer.flops import Flops
from trainer.loader import StepWork
from trainer.ranks import Ranks
from trainer.step import StepResult

NAME = "metrics.jsonl"
Number = int | float
Numbers = Mapping[str, float] | Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """Of one step: step (updates done), epoch (share of the rows passed), loss (sum ÷ supervised tokens, all ranks, each as often as its row says), lr, grad_norm, slots,
    useful_tokens, supervised_tokens. Of the window: the rates, step_s and data_wait_s (seconds a step, of the rank that waited longest).
    objective: what is optimised where that is not `loss`, of the step. mfu: of useful tokens, mfu_padded: of all slots, pad
    tails and filling attending too (`trainer.flops` has the formula); None where the device's peak or the model's count is not known.
    recompiles: graphs compiled after the first step, where there should be none. skipped: updates left out since the run began because their
    gradient was not finite. The three by source are sums over the window, where the corpus has several. router_aux_loss: of
    the step, before its coefficient, where it is asked for. peak_memory_bytes: of the rank with most; on CPU the process's largest resident size.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    slots: int
    useful_tokens: int
    supervised_tokens: int
    slots_per_s: float
    useful_tokens_per_s: float
    supervised_tokens_per_s: float
    step_s: float
    data_wait_s: float
    recompiles: int
    skipped: int
    peak_memory_bytes: int
    objective: float | None = None
    mfu: float | None = None
    mfu_padded: float | None = None
    loss_by_source: Mapping[str, float] | None = None
    useful_tokens_by_source: Mapping[str, int] | None = None
    supervised_tokens_by_source: Mapping[str, int] | None = None
    router_aux_loss: float | None = None


class Window:
    """Counts between two lines. flops: of the model; peak: FLOP/s of one device; None leaves utilisation out."""

    def __init__(self, *, flops: Flops | None, peak: float | None) -> None:
        self._flops, self._peak = flops, peak
        self._expected_graphs: int | None = None  # not known before the first step is made
        self.restart()

    def restart(self) -> None:
        """Forgets what was counted."""
        self._began = time.perf_counter()
        self._steps = self._slots = self._useful = self._supervised = 0
        self._waited = self._attention = self._attention_padded = 0.0

    def add(self, work: StepWork, *, waited_s: float) -> None:
        """Counts one step of this rank, and what it waited for its rows."""
        self._steps += 1
        self._slots += sum(batch.shape.slots for batch in work.passes)
        self._useful += sum(batch.useful_tokens for batch in work.passes)
        self._supervised += work.plan.supervised
        if self._flops is not None and self._peak is not None:
            self._attention += sum(self._flops.attending(batch.lengths) for batch in work.passes)
            self._attention_padded += sum(
                self._flops.attending(np.asarray(batch.segments.lengths)) for batch in work.passes
            )
        self._waited += waited_s

    def close(
        self, work: StepWork, result: StepResult, *, epoch: float, lr: float, skipped: int, ranks: Ranks
    ) -> StepMetrics:
        """The metrics of the step just made, and a new window. Every rank calls it; waits for the device."""
        loss_sum, objective_sum = result.loss_sum.item(), result.objective_sum.item()
        grad_norm = result.grad_norm.item()
        seconds = time.perf_counter() - self._began
        slots = sum(batch.shape.slots for batch in work.passes)
        useful = sum(batch.useful_tokens for batch in work.passes)
        table = ranks.gather(
            [
                loss_sum,
                useful,
                self._useful,
                self._waited,
                self._recompiles(),
                _peak_memory(ranks.device),
                objective_sum,
                self._attention,
                self._attention_padded,
            ]
        )
        summed, largest = table.sum(dim=0).tolist(), table.max(dim=0).values.tolist()
        metrics = StepMetrics(
            step=work.plan.step + 1,
            epoch=epoch,
            loss=summed[0] / work.plan.loss_weight,
            lr=lr,
            grad_norm=grad_norm,
            slots=slots * ranks.world,
            useful_tokens=int(summed[1]),
            supervised_tokens=work.plan.supervised,
            slots_per_s=self._slots * ranks.world / seconds,
            useful_tokens_per_s=summed[2] / seconds,
            supervised_tokens_per_s=self._supervised / seconds,
            step_s=seconds / self._steps,
            data_wait_s=largest[3] / self._steps,
            recompiles=int(largest[4]),
            skipped=skipped,
            peak_memory_bytes=int(largest[5]),
            objective=None if work.plan.examples is None else summed[6] / work.plan.examples,
            mfu=self._utilisation(summed[2], summed[7], seconds * ranks.world),
            mfu_padded=self._utilisation(self._slots * ranks.world, summed[8], seconds * ranks.world),
        )
        self.restart()
        return metrics

    def _utilisation(self, tokens: float, attention: float, device_seconds: float) -> float | None:
        if self._flops is None or self._peak is None:
            return None
        done = self._flops.linear(tokens=tokens, supervised=self._supervised) + attention
        return done / (device_seconds * self._peak)

    def skip(self, seconds: float) -> None:
        """Leaves seconds out of the window that were not training: a checkpoint, an evaluation."""
        self._began += seconds

    def expect(self, graphs: int) -> None:
        """These graphs were compiled for the first time, not again: those of the first evaluation."""
        if self._expected_graphs is not None:
            self._expected_graphs += graphs

    def _recompiles(self) -> int:
        if self._expected_graphs is None:
            self._expected_graphs = graphs_compiled()
        return graphs_compiled() - self._expected_graphs


def graphs_compiled() -> int:
    """By torch.compile in this process."""
    # Looked up, not imported: importing dynamo takes seconds, and where nobody has, nothing was compiled.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class MetricsFile:
    """metrics.jsonl of a run's folder, a line at a time. `after`: the step that the run goes on from; later lines of an earlier part are cut.

    unreadable: lines found at opening that were not ours; they are cut too.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        self._path = folder / NAME
        lines = self._lines()
        read = [(line, _read_line(line)) for line in lines]
        self.unreadable = sum(document is None for _, document in read)
        kept = [line for line, document in read if document is not None and document["step"] <= after]
        write_text(self._path, "".join(line + "\n" for line in kept))

    def _lines(self) -> list[str]:
        if not self._path.is_file():
            return []
        # Not splitlines, which also ends lines at characters that JSON leaves in a string; what is no UTF-8 is no line of ours.
        text = self._path.read_text(encoding="utf-8", errors="replace")
        # A line that a kill cut short has no end.
        return text[: text.rfind("\n") + 1].split("\n")[:-1]

    def first_loss(self) -> float | None:
        """The loss of the run's first line."""
        losses = [document.get("loss") for document in map(_read_line, self._lines()) if document is not None]
        return next((loss for loss in losses if loss is not None), None)

    def add_step(self, metrics: StepMetrics) -> None:
        """Appends the line of a step; what is None is left out."""
        self._add({name: value for name, value in asdict(metrics).items() if value is not None})

    def add_eval(self, *, step: int, eval_loss: float, eval_supervised_tokens: int, **by_source: Numbers) -> None:
        """Appends the line of an evaluation after `step` updates."""
        self._add({"step": step, "eval_loss": eval_loss, "eval_supervised_tokens": eval_supervised_tokens, **by_source})

    def _add(self, document: Mapping[str, Number | Numbers]) -> None:
        # JSON has no word for what is not a number; readers stop at Python's.
        finite = {
            name: {each: _finite(one) for each, one in value.items()} if isinstance(value, Mapping) else _finite(value)
            for name, value in document.items()
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be written ({error.strerror})",
                "free space there; the same command goes on from the last checkpoint",
            ) from None


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's folder in order, those that are readable; null is what was not finite. None where there is no file."""
    path = folder / NAME
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return [document for line in text.split("\n") if (document := _read_line(line)) is not None]


def _finite(value: Number) -> Number | None:
    return value if math.isfinite(value) else None


def _read_line(line: str) -> dict[str, float] | None:
    """A line as it was written: an object of numbers (null: not finite), or objects of such, with a step; None for anything else."""
    try:
        document = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    ours = (
        isinstance(document, dict)
        and type(document.get("step")) is int
        and all(
            type(number) in (int, float, NoneType)
            for value in document.values()
            for number in (value.values() if isinstance(value, dict) else [value])
        )
    )
    return document if ours else None


def step_line(metrics: StepMetrics, *, steps: int) -> str:
    """One step for a person: always these things in this order."""
    left = (steps - metrics.step) * metrics.step_s
    return (
        f"step {metrics.step:>{len(str(steps))}}/{steps}  loss {metrics.loss:.4f}  lr {metrics.lr:.2e}  grad norm {metrics.grad_norm:.3f}  "
        f"{metrics.useful_tokens_per_s:,.0f} useful tokens/s  {_utilised(metrics)}data wait {metrics.data_wait_s / metrics.step_s:.1%}  ETA {duration(left)}"
    )


def _utilised(metrics: StepMetrics) -> str:
    if metrics.mfu is None or metrics.mfu_padded is None:
        return ""
    return f"MFU {metrics.mfu:.1%} ({metrics.mfu_padded:.1%} with padding)  "


def duration(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
