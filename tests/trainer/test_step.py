"""What a step minimises, by hand: a model whose cross-entropy for a target is the target's own id, times one parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from packer.errors import UserError
from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, Example, random_rows, write_corpus, write_model
from trainer import RunConfig, run
from trainer.batch import Shape
from trainer.loader import ShardCheck, plan_step, read_steps
from trainer.prepare import Counts, prepare
from trainer.segments import Segments
from trainer.step import accumulate

# Seven targets that cost 3 each, two that cost 30, and an example in which nothing is a target.
LONG = Example(ids=(9, *[3] * 7), mask=(False, *[True] * 7))
SHORT = Example(ids=(9, 9, 30, 30), mask=(False, False, True, True))
SILENT = Example(ids=(9, 9), mask=(False, False))


class CostsItsId(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(
        self,
        _ids: Tensor,
        _places: Tensor,
        _segments: Segments,
        _positions: Tensor,
        targets: Tensor,
        count: int,
        weights: Tensor | None = None,
    ) -> Tensor:
        costs = targets[:count] * self.scale
        return costs.sum() if weights is None else torch.stack([(costs * weights[:count]).sum(), costs.sum().detach()])


# (7·3 + 2·30) ÷ 9 targets; (3 + 30) ÷ 2 examples.
@pytest.mark.parametrize(("weighting", "objective"), [("token", 9.0), ("example", 16.5)])
@pytest.mark.parametrize("rows", [[[LONG, SILENT, SHORT]], [[LONG], [SILENT, SHORT]]])
def test_examples_of_seven_and_two_targets_weigh_as_they_are_told_to(
    tmp_path: Path, weighting: str, objective: float, rows: list[list[Example]]
) -> None:
    write_corpus(tmp_path, rows=rows)
    options = {"rows_per_step": len(rows), "loss_weighting": weighting}
    prepared = prepare(RunConfig(shards=str(tmp_path), model="none", **options))  # type: ignore[arg-type]
    plan = plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)
    weighted = weighting == "example"
    shape = Shape(rows=1, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY, weighted=weighted)
    check = ShardCheck(prepared.corpus, local_rank=0, local_world=1)
    work = next(read_steps(iter([plan]), prepared.corpus, rank=0, shape=shape, pin=False, check=check))
    model = CostsItsId()
    device = torch.device("cpu")
    sums = accumulate(model, [], work.passes, denominator=plan.denominator, reduce="pass", device=device)
    assert (plan.supervised, plan.examples) == (9, 2 if weighted else None)
    assert sums[1] == 81
    assert float(sums[0]) / plan.denominator == pytest.approx(objective, rel=1e-15)
    assert float(model.scale.grad) == pytest.approx(objective, rel=1e-15)  # type: ignore[arg-type]


def test_a_row_left_out_takes_its_examples_out_of_the_number(tmp_path: Path) -> None:
    write_corpus(tmp_path, rows=[[LONG, SHORT], [SHORT, SHORT, SHORT]])
    options = {"rows_per_step": 2, "loss_weighting": "example", "skip_rows": (1,)}
    prepared = prepare(RunConfig(shards=str(tmp_path), model="none", **options))  # type: ignore[arg-type]
    assert plan_step(prepared, Counts.of(prepared.corpus), 0, world=1).examples == 2


def test_a_run_by_example_logs_both_and_does_not_go_on_by_token(tmp_path: Path) -> None:
    import json

    write_corpus(tmp_path / "packed", rows=random_rows(5, seed=0), eval_rows=random_rows(3, seed=1))
    write_model(tmp_path / "tiny")
    options = {"shards": str(tmp_path / "packed"), "model": str(tmp_path / "tiny"), "init": "random", "steps": 2}
    options |= {"rows_per_step": 2, "log_every": 1, "lr": 1e-2}
    lines = {}
    for weighting in ("token", "example"):
        out = tmp_path / weighting
        assert run(RunConfig(**options, out=str(out), loss_weighting=weighting)) == 0  # type: ignore[arg-type]
        lines[weighting] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    first, by_example = lines["token"][0], lines["example"][0]
    assert by_example["loss"] == pytest.approx(first["loss"], rel=1e-6)  # the same weights, the same targets
    assert "objective" not in first
    assert by_example["objective"] != pytest.approx(first["loss"], rel=1e-4)
    assert by_example["grad_norm"] != pytest.approx(first["grad_norm"], rel=1e-3)
    with pytest.raises(UserError, match="--loss-weighting: example then, token now"):
        run(RunConfig(**options, out=str(tmp_path / "example")))  # type: ignore[arg-type]
