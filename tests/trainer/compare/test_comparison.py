"""What a comparison says: equivalent where packing changed nothing, not equivalent where a leak was planted; and what its ladder counts."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path

import pytest
import torch

from packer.errors import GateError
from packer.progress import Progress
from packer.shards import open_corpus
from tests.trainer.compare.benches import HYBRID, a_config, a_setting, leaking, rows_that_repeat
from tests.trainer.shards_fixture import CAPACITY, Example, random_rows
from trainer.compare import training
from trainer.compare.comparison import Comparison, Rungs, compare, ladder
from trainer.compare.cost import Cost
from trainer.compare.document import document_of
from trainer.compare.report_terminal import print_comparison
from trainer.compare.rungs import PACKED, PADDED_STOCK
from trainer.compare.training import train
from trainer.config import RunConfig


def compared(config: RunConfig, rungs: Rungs, *, seeds: int = 3, replicates: bool = True) -> Comparison:
    with a_setting(config, seeds=seeds) as (setting, check):
        return compare(setting, rungs, margin_share=0.005, replicates=replicates, check=check, progress=Progress())


@pytest.mark.parametrize("model", ["qwen3", pytest.param(HYBRID, marks=pytest.mark.full)])
def test_a_planted_leak_is_not_equivalent_where_the_packed_rung_without_it_is(tmp_path: Path, model: str) -> None:
    # What a leak costs shows where there is something to copy from a neighbour, and steps enough to learn to do so: here 13 to 18 % of the loss after 12
    # steps (the hybrid, whose state fades, 3 to 4 %). With rows of unrelated examples it may stay below any margin for as long; --strict shows it at
    # the first step, whatever the rows.
    config = a_config(
        tmp_path,
        rows_that_repeat(40, seed=0),
        eval_rows=rows_that_repeat(20, seed=1),
        model=model,
        steps=12,
        lr=6e-3,
        schedule="constant",
    )
    as_it_is = dataclasses.replace(PACKED, name="against")
    found = compared(config, [(PADDED_STOCK, config), (leaking(), config), (as_it_is, config)])
    assert found.outcomes["against"].verdict == "equivalent"
    outcome = found.outcomes["packed"]
    assert outcome.verdict == "not equivalent", outcome
    assert outcome.floor is not None
    assert outcome.floor < outcome.margin
    assert min(outcome.differences.per_seed) > 0.02 * found.held_out("padded-stock").mean
    assert not found.passed


def two_rows() -> list[list[Example]]:
    """Lengths 10 and 20 in one row, 30 and 34 in the other, every token but the first of each a target."""

    def example(length: int) -> Example:
        return Example(ids=tuple(range(1, length + 1)), mask=(False, *[True] * (length - 1)))

    return [[example(10), example(20)], [example(30), example(34)]]


def test_the_ladder_counts_slots_passes_and_tokens_as_one_would_by_hand(tmp_path: Path) -> None:
    config = a_config(tmp_path, two_rows(), eval_rows=two_rows(), model="qwen3", steps=3, rows_per_step=2)
    found = compared(config, ladder(config), seeds=1, replicates=False)
    tokens, packed_slots = 3 * (10 + 20 + 30 + 34), 3 * 2 * CAPACITY
    packed, padded = found.runs["packed"][0], found.runs["padded-stock"][0]
    assert (packed.useful_tokens, packed.slots, packed.passes) == (tokens, packed_slots, 6)
    assert padded.useful_tokens == tokens
    assert (padded.slots, padded.passes) == (
        found.runs["padded-kernels"][0].slots,
        found.runs["padded-kernels"][0].passes,
    )
    # Two of them in a batch are at most 2 · 30 = 60 slots unless one is the longest: then each is alone, or 34 · 2 = 68 > 64.
    assert padded.slots >= tokens
    assert 3 * 2 <= padded.passes <= 3 * 4
    document = document_of(found)
    rungs = {rung["name"]: rung for rung in document["ladder"]}  # type: ignore[attr-defined]
    assert rungs["packed"]["slots_per_useful"] == packed_slots / tokens
    assert rungs["packed"]["passes"] == 6
    assert rungs["packed"]["steps"] == 3
    assert rungs["padded-stock"]["ratio"] == 1
    assert rungs["packed"]["ratio"] == pytest.approx(
        rungs["packed"]["useful_tokens_per_s"] / rungs["padded-stock"]["useful_tokens_per_s"]
    )
    assert rungs["packed"]["launches_per_useful_token"] is None
    assert rungs["packed"]["graphs_compiled"] == 0
    parameters = document["setting"]["parameters"]  # type: ignore[index]
    # Weights, gradients and two moments, in float32, and then some.
    assert all(rung["peak_memory_bytes"] > 16 * parameters for rung in rungs.values())


def test_the_timed_tokens_are_those_after_the_first_steps(tmp_path: Path) -> None:
    config = a_config(tmp_path, two_rows(), eval_rows=two_rows(), model="qwen3", steps=5, rows_per_step=1)
    corpus = open_corpus(config.shards)
    with a_setting(config) as (setting, check):
        done = train(PACKED, setting, config, check=check, advance=lambda _: None)
        order = setting.prepared(config).order
        rows = [int(order.step(step).rows[0]) for step in range(5)]
    assert done.timed_tokens == sum(corpus[row].tokens for row in rows[2:])
    assert len(done.losses) == 5


def test_a_replicate_differs_from_its_padded_run_by_rounding_and_by_no_more(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(9, seed=0), eval_rows=random_rows(3, seed=1), model="qwen3", steps=4)
    found = compared(config, [(PADDED_STOCK, config), (PACKED, config)], seeds=1)
    once, again = found.runs["padded-stock"][0], found.replicates[0]
    assert once.losses != again.losses
    assert once.losses == pytest.approx(again.losses, rel=1e-5)
    assert found.outcomes["packed"].equivalent is None
    assert found.passed


def test_curves_of_all_rungs_agree_on_the_first_step_and_have_one_loss_a_step(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(9, seed=0), eval_rows=random_rows(3, seed=1), model="qwen3")
    found = compared(config, ladder(config), seeds=2, replicates=False)
    curves = document_of(found)["curves"]
    assert isinstance(curves, dict)
    assert list(curves) == ["padded-stock", "padded-kernels", "packed"]
    for seed in (0, 1):
        first = [curves[name][seed]["loss"][0] for name in curves]
        assert first == pytest.approx([first[0]] * 3, rel=1e-6)
        assert all(curves[name][seed]["steps"] == [1, 2, 3] for name in curves)
        assert all(curves[name][seed]["seed"] == seed for name in curves)
    assert curves["packed"][0]["loss"] != curves["packed"][1]["loss"]


def test_a_run_leaves_no_model_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[torch.nn.Module]] = []
    make = training.make_trainee

    def watched(*arguments: object) -> training.Trainee:
        trainee = make(*arguments)  # type: ignore[arg-type]
        alive.append(weakref.ref(trainee.model))
        return trainee

    monkeypatch.setattr(training, "make_trainee", watched)
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1), steps=2)
    compared(config, ladder(config), seeds=1)
    gc.collect()
    assert len(alive) == 4
    assert [each() for each in alive] == [None] * 4


def test_a_gradient_that_is_not_finite_ends_it_naming_rung_seed_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = training.train_step

    def broken(*arguments, **options):  # type: ignore[no-untyped-def]
        result = step(*arguments, **options)
        calls.append(None)
        return (
            result
            if len(calls) != 2
            else type(result)(
                loss_sum=result.loss_sum,
                objective_sum=result.objective_sum,
                grad_norm=result.grad_norm,
                finite=torch.tensor(False),
            )
        )

    calls: list[None] = []
    monkeypatch.setattr(training, "train_step", broken)
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1), model="qwen3", seed=4)
    with pytest.raises(GateError, match=r"packed, seed 4: the gradient of step 2 is not finite \(1 of 3 steps\)"):
        compared(config, [(PACKED, config), (PADDED_STOCK, config)], seeds=1)


def test_the_tables_fit_80_columns_with_the_columns_of_a_gpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1), model="qwen3", steps=2)
    found = compared(config, ladder(config), seeds=1)
    runs = {
        name: tuple(
            dataclasses.replace(
                run,
                cost=Cost(operations=31 * run.first_tokens, launches=17 * run.first_tokens, peak_bytes=None),
                peak_bytes=123_456_000_000,
                timed_tokens=987_654,
                timed_s=1.0,
                graphs=12,
            )
            for run in done
        )
        for name, done in found.runs.items()
    }
    monkeypatch.setenv("COLUMNS", "80")
    print_comparison(dataclasses.replace(found, runs=runs))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    first = next(line.split() for line in lines if line.startswith("padded-kernels"))
    assert first[1:3] == ["987,654", "1.00"]
    assert first[5:] == ["31.00", "17.00", "12", "123,456"]
