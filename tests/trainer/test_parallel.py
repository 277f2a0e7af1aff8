"""One step computed alone, in passes, and by two ranks, against plain autograd on each example by itself in float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.support import ROOT
from tests.trainer import ranks_script
from tests.trainer.shards_fixture import VOCAB, Example, random_rows, write_corpus
from tests.trainer.stand_in import StandIn
from trainer import checkpoint
from trainer.prepare import prepare
from trainer.ranks import start_ranks
from trainer.record import read_record
from trainer.segments import Segments

ROWS, EVAL_ROWS = random_rows(7, seed=5), random_rows(5, seed=6)
WORLDS = (1, 2)


@dataclass(frozen=True)
class Outcome:
    folder: Path
    tensors: dict[str, dict[str, torch.Tensor]]
    facts: dict[str, object]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    folder = tmp_path_factory.mktemp("parallel")
    write_corpus(folder / "packed", rows=ROWS, eval_rows=EVAL_ROWS)
    for world in WORLDS:
        start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "-m"] if world > 1 else []
        command = [sys.executable, *(["-m", *start] if start else ["-m"]), "tests.trainer.ranks_script", str(folder)]
        result = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert result.returncode == 0, result.stderr[-3000:]
    return {
        world: Outcome(
            folder, torch.load(folder / f"world-{world}.pt"), json.loads((folder / f"world-{world}.json").read_text())
        )
        for world in WORLDS
    }


def summed_loss(model: StandIn, example: Example) -> torch.Tensor:
    """Of one example alone: the shift and the mask written out, no row, no batch, no FSDP."""
    ids = torch.tensor(example.ids)
    logits = model.logits(ids[None], torch.arange(len(ids))[None], Segments.from_lengths([len(ids)]))
    wanted = torch.where(torch.tensor(example.mask), ids, -100)
    return F.cross_entropy(logits[:-1], wanted[1:], ignore_index=-100, reduction="sum")


def reckoned(folder: Path) -> tuple[dict[str, torch.Tensor], float]:
    """Gradient and loss of the step, example by example, in float64."""
    model = StandIn(VOCAB).double()
    order = prepare(ranks_script.config_of(folder)).order.step(ranks_script.STEP)
    examples = [example for row in order.rows for example in ROWS[int(row)]]
    loss = sum(summed_loss(model, example) for example in examples) / sum(sum(example.mask) for example in examples)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, loss.item()  # type: ignore[misc]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", ranks_script.CASES)
def test_the_gradient_is_that_of_the_examples_one_by_one(outcomes: dict[int, Outcome], world: int, case: str) -> None:
    outcome = outcomes[world]
    expected, loss = reckoned(outcome.folder)
    got = outcome.tensors[case]
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        error = (got[name] - gradient).norm() / gradient.norm()
        assert error < 1e-5, f"{name}: {error}"
    assert outcome.facts[case]["loss"] == pytest.approx(loss, rel=1e-6)  # type: ignore[index]


@pytest.mark.parametrize("world", WORLDS)
def test_the_norm_is_that_of_the_whole_gradient(outcomes: dict[int, Outcome], world: int) -> None:
    expected, _ = reckoned(outcomes[world].folder)
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for case in ranks_script.CASES:
        assert outcomes[world].facts[case]["norm"] == pytest.approx(float(norm), rel=1e-6)  # type: ignore[index]


def test_passes_are_what_ranks_and_rows_leave(outcomes: dict[int, Outcome]) -> None:
    passes = {
        world: [outcomes[world].facts[case]["passes"] for case in ("one row a pass", "two rows a pass", "filled")]
        for world in WORLDS
    }  # type: ignore[index]
    assert passes == {1: [4, 2, 2], 2: [2, 1, 1]}


@pytest.mark.parametrize("world", WORLDS)
def test_the_eval_loss_is_per_target_over_all_rows(outcomes: dict[int, Outcome], world: int) -> None:
    model = StandIn(VOCAB).double()
    examples = [example for row in EVAL_ROWS for example in row]
    expected = sum(summed_loss(model, example).item() for example in examples) / sum(
        sum(example.mask) for example in examples
    )
    assert outcomes[world].facts["eval"] == pytest.approx(expected, rel=1e-6)


def test_three_updates_are_the_same_alone_and_by_two_ranks(outcomes: dict[int, Outcome]) -> None:
    alone, shared = (outcomes[world].tensors["trained"] for world in WORLDS)
    assert alone.keys() == shared.keys()
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_a_checkpoint_gives_back_every_tensor_bit_for_bit_and_ties_stay_tied(
    outcomes: dict[int, Outcome], world: int
) -> None:
    tensors, facts = outcomes[world].tensors, outcomes[world].facts
    assert tensors["trained"].keys() == tensors["loaded"].keys()
    assert all(torch.equal(tensors["trained"][name], tensors["loaded"][name]) for name in tensors["trained"])
    assert facts["tied"]
    assert facts["tied after loading"]


@pytest.mark.parametrize("world", WORLDS)
def test_a_record_names_every_file_of_every_rank(outcomes: dict[int, Outcome], world: int) -> None:
    saved = Path(str(outcomes[world].facts["saved"]))
    written = {path.name for path in saved.iterdir()} - {"run.json"}
    assert len(written) == world + 1
    assert read_record(saved).files.keys() == written


def test_one_rank_reads_the_checkpoint_of_two(outcomes: dict[int, Outcome]) -> None:
    with start_ranks() as ranks:
        model, _, optimizer = ranks_script.sharded(ranks_script.config_of(outcomes[2].folder), ranks, seed=2)
        checkpoint.load(Path(str(outcomes[2].facts["saved"])), model, optimizer, ranks=ranks)
        loaded = ranks_script.whole(checkpoint.state_of(model, optimizer))
    trained = outcomes[2].tensors["trained"]
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


@pytest.mark.parametrize("world", WORLDS)
def test_an_error_or_a_signal_of_one_rank_reaches_all(outcomes: dict[int, Outcome], world: int) -> None:
    assert outcomes[world].facts["all heard"]
    assert outcomes[world].facts["signal"] == 15
