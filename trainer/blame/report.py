"""What `trainer blame` tells: for a person, worst example first, and as one JSON document.

print(text(blame, limit=10, width=100))
print(json_of(blame))

Text of the data is escaped here; in JSON it is the data's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from packer.console import printable
from trainer.blame.broken import RowGradient
from trainer.blame.losses import ExampleLoss

_INDENT = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Blamed:
    """An example: its loss, where it came from (origin for a person; source and source_row, the place in it), and what its targets say, cut short."""

    measured: ExampleLoss
    origin: str
    source: int
    source_row: int
    text: str

    @property
    def badness(self) -> tuple[bool, float]:
        """What worst is: a loss that is not finite, then the highest a target; nothing to learn last."""
        loss = self.measured.loss
        if not self.measured.finite:
            return True, 0.0
        return False, -math.inf if loss is None else loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """A step taken apart. weights: which the losses are of. logged: the loss in metrics.jsonl, None where the step has no line. examples: worst first.
    stopped: the run's own gradient of this step was not finite. gradients: of each row, where they were computed. module: in which a loss stops being finite.
    without: the rows to go on without, and onward: the command for it, empty where it is not the rows."""

    run: str
    step: int
    steps: int
    weights: str
    updates: int | None
    logged: float | None
    left_out: tuple[int, ...]
    examples: tuple[Blamed, ...]
    stopped: bool
    gradients: tuple[RowGradient, ...]
    module: str | None
    without: tuple[int, ...]
    onward: str

    @property
    def targets(self) -> int:
        return sum(one.measured.targets * one.measured.times for one in self.examples)

    @property
    def loss(self) -> float:
        """Of the step, a target."""
        counted = sum(one.measured.target_weight * one.measured.times for one in self.examples)
        return sum(one.measured.loss_sum * one.measured.times for one in self.examples) / (counted or 1)

    @property
    def rows(self) -> dict[int, int]:
        """How often the step has each of its rows."""
        return {one.measured.row: one.measured.times for one in sorted(self.examples, key=lambda one: one.measured.row)}


def text(blame: Blame, *, limit: int, width: int) -> str:
    """Lines of at most about `width` characters; limit: examples shown (0: all)."""
    rows, examples = blame.rows, blame.examples
    again = [row for row, times in rows.items() if times > 1]
    of_them = f" ({_rows(again)} more than once: the step spans epochs)" if again else ""
    logged = "" if blame.logged is None else f"; the run logged {blame.logged:.4f}"
    lines = [
        f"step {blame.step:,} of {blame.steps:,} of {printable(blame.run)}: {_count(sum(rows.values()), 'row')}{of_them}, {_count(len(examples), 'example')}, "
        f"{_count(blame.targets, 'target')}, loss {blame.loss:.4f}{logged}",
        f"weights {printable(blame.weights)}",
    ]
    if blame.left_out:
        lines.append(f"left out by --skip-rows: {_listed(blame.left_out)}")
    lines += [printable(line) for line in _broken(blame)]
    shown = examples[:limit] if limit else examples
    lines += ["", f"{'loss':>{_INDENT - 2}}  {'targets':>7}  {'row':>6}  {'example':>8}  from"]
    for one in shown:
        found = one.measured
        loss = "-" if found.loss is None else f"{found.loss:.4f}"
        lines.append(
            f"{loss:>{_INDENT - 2}}  {found.targets:>7,}  {found.row:>6}  {found.example:>8}  {printable(one.origin)}"
        )
        lines.append(" " * _INDENT + _cut(printable(one.text), width - _INDENT))
    if len(shown) < len(examples):
        lines.append(f"{'':{_INDENT}}… {len(examples) - len(shown):,} more (--limit 0 shows all)")
    return "\n".join([*lines, "", *_onward(blame)])


def _broken(blame: Blame) -> Iterator[str]:
    """What is not finite."""
    lost = [one.measured for one in blame.examples if not one.measured.finite]
    if lost:
        whose = _listed([one.example for one in lost])
        begins = (
            f"; it begins in {blame.module}"
            if blame.module
            else "; every module's output is finite, the loss itself is not"
        )
        yield f"not finite: the loss of {_count(len(lost), 'example')} ({whose}) in {_rows([one.row for one in lost])}{begins}"
    for gradient in blame.gradients:
        if not gradient.finite:
            where = f"; going back from the loss it begins in {gradient.parameter}" if gradient.parameter else ""
            yield f"not finite: the gradient of row {gradient.row}{where}"
    if blame.gradients and all(gradient.finite for gradient in blame.gradients):
        if blame.stopped:
            yield "the run's gradient of this step, or of one logged with it, was not finite; with these weights it is (save more often: --save-every)"
        norms = ", ".join(f"row {gradient.row} {gradient.norm:.3g}" for gradient in blame.gradients)
        yield f"gradients are all finite with these weights; their norms: {norms}"


def _onward(blame: Blame) -> list[str]:
    if not blame.onward:
        return [
            "every row of the step is not finite: that is not a row's doing; lower --lr or lengthen --warmup, or look at the model's weights"
        ]
    return [f"to go on without {_rows(blame.without)}:", f"  {printable(blame.onward)}"]


def _rows(rows: Sequence[int]) -> str:
    distinct = sorted(set(rows))
    return f"row{'' if len(distinct) == 1 else 's'} {_listed(distinct)}"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, … {len(numbers)} in all"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 2]} …"


def json_of(blame: Blame) -> str:
    """The document of --json; null is a number that is not finite, and `finite` says so."""
    document = {
        "run": blame.run,
        "step": blame.step,
        "steps": blame.steps,
        "weights": blame.weights,
        "updates": blame.updates,
        "loss": _number(blame.loss),
        "logged_loss": blame.logged,
        "targets": blame.targets,
        "rows": list(blame.rows),
        "left_out": list(blame.left_out),
        "stopped": blame.stopped,
        "examples": [
            {
                **{name: value for name, value in asdict(one.measured).items() if name != "loss_sum"},
                "loss": _number(one.measured.loss),
                "loss_sum": _number(one.measured.loss_sum),
                "finite": one.measured.finite,
                "origin": one.origin,
                "source": one.source,
                "source_row": one.source_row,
                "text": one.text,
            }
            for one in blame.examples
        ],
        "gradients": [
            {"row": each.row, "norm": _number(each.norm), "finite": each.finite, "parameter": each.parameter}
            for each in blame.gradients
        ],
        "module": blame.module,
        "without": list(blame.without),
        "command": blame.onward,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
