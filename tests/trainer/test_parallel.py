"""One step computed alone, in passes, and by two and four ranks, against plain autograd on each example by itself in float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.support import ROOT
from tests.trainer import ranks_script
from tests.trainer.shards_fixture import CAPACITY, VOCAB, Example, random_rows, write_corpus
from tests.trainer.stand_in import StandIn
from trainer import checkpoint
from trainer.prepare import prepare
from trainer.ranks import start_ranks
from trainer.record import read_record
from trainer.segments import Segments

ROWS, EVAL_ROWS = random_rows(7, seed=5), random_rows(5, seed=6)
SILENT = Example(
    ids=(5, 6, 7), mask=(False, False, False)
)  # an example that counts for nothing, however examples are weighed
for row in ROWS:
    if sum(len(example.ids) for example in row) < CAPACITY:
        row.insert(1, SILENT)
WORLDS = (1, 2, 4)
CASES = [
    (case, dtype, tolerance)
    for case in ranks_script.CASES
    for dtype, tolerance in (("fp32", 1e-5), ("fp64", 1e-12))  # what is wanted is 1e-4 and 1e-10
]


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
            timeout=900,
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


@cache
def reckoned(folder: Path, by_example: bool) -> tuple[dict[str, torch.Tensor], float, float]:
    """Gradient, loss and objective of the step, example by example, in float64."""
    model = StandIn(VOCAB).double()
    order = prepare(ranks_script.config_of(folder)).order.step(ranks_script.STEP)
    examples = [example for row in order.rows for example in ROWS[int(row)]]
    assert SILENT in examples
    examples = [example for example in examples if any(example.mask)]
    losses, counts = [summed_loss(model, example) for example in examples], [sum(e.mask) for e in examples]
    mean = sum(losses) / sum(counts)
    objective = sum(loss / n for loss, n in zip(losses, counts, strict=True)) / len(losses) if by_example else mean
    assert isinstance(objective, torch.Tensor)
    assert isinstance(mean, torch.Tensor)
    objective.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return gradients, mean.item(), objective.item()  # type: ignore[return-value, arg-type]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("case", "dtype", "tolerance"), CASES)
def test_the_gradient_is_that_of_the_examples_one_by_one(
    outcomes: dict[int, Outcome], world: int, case: str, dtype: str, tolerance: float
) -> None:
    outcome = outcomes[world]
    expected, loss, objective = reckoned(outcome.folder, "by example" in case)
    got, facts = outcome.tensors[f"{case}, {dtype}"], outcome.facts[f"{case}, {dtype}"]
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        error = (got[name] - gradient).norm() / gradient.norm()
        assert error < tolerance, f"{name}: {error}"
    assert facts["loss"] == pytest.approx(loss, rel=tolerance)  # type: ignore[index]
    assert facts["objective"] == pytest.approx(objective, rel=tolerance)  # type: ignore[index]


@pytest.mark.parametrize("world", WORLDS)
def test_the_norm_is_that_of_the_whole_gradient(outcomes: dict[int, Outcome], world: int) -> None:
    for case, dtype, _ in CASES:
        expected, *_ = reckoned(outcomes[world].folder, "by example" in case)
        norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
        assert outcomes[world].facts[f"{case}, {dtype}"]["norm"] == pytest.approx(float(norm), rel=1e-6)  # type: ignore[index]


def test_passes_are_what_ranks_and_rows_leave(outcomes: dict[int, Outcome]) -> None:
    passes = {
        world: [
            outcomes[world].facts[f"{case}, fp32"]["passes"]  # type: ignore[index]
            for case in ("four rows a pass", "one row a pass", "two rows a pass", "filled")
        ]
        for world in WORLDS
    }
    assert passes == {1: [1, 4, 2, 2], 2: [1, 2, 1, 1], 4: [1, 1, 1, 1]}


@pytest.mark.parametrize("world", WORLDS)
def test_the_eval_loss_is_per_target_over_all_rows(outcomes: dict[int, Outcome], world: int) -> None:
    model = StandIn(VOCAB).double()
    examples = [example for row in EVAL_ROWS for example in row]
    expected = sum(summed_loss(model, example).item() for example in examples) / sum(
        sum(example.mask) for example in examples
    )
    assert outcomes[world].facts["eval"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("world", WORLDS[1:])
def test_three_updates_are_the_same_alone_and_shared(outcomes: dict[int, Outcome], world: int) -> None:
    alone, shared = (outcomes[each].tensors["trained"] for each in (1, world))
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


@pytest.mark.parametrize("world", WORLDS[1:])
@pytest.mark.parametrize("saved", ["saved", "saved, replicated"])
def test_one_rank_reads_the_checkpoint_of_several(outcomes: dict[int, Outcome], world: int, saved: str) -> None:
    config = ranks_script.config_of(outcomes[world].folder, dtype="fp32")
    with start_ranks() as ranks:
        model, _, optimizer = ranks_script.sharded(config, ranks, seed=2)
        checkpoint.load_weights(Path(str(outcomes[world].facts[saved])), model, ranks=ranks)
        checkpoint.load_optimizer(Path(str(outcomes[world].facts[saved])), model, optimizer, ranks=ranks)
        loaded = ranks_script.whole(checkpoint.state_of(model, optimizer))
    trained = outcomes[world].tensors["trained"]
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


@pytest.mark.parametrize("world", WORLDS)
def test_a_save_that_fails_on_one_rank_behind_the_run_fails_on_all_and_leaves_nothing(
    outcomes: dict[int, Outcome], world: int
) -> None:
    assert outcomes[world].facts["no room"] == [[1.0]] * world
    assert outcomes[world].facts["left behind"] == []


@pytest.mark.parametrize("world", WORLDS)
def test_an_error_or_a_signal_of_one_rank_reaches_all(outcomes: dict[int, Outcome], world: int) -> None:
    assert outcomes[world].facts["all heard"]
    assert outcomes[world].facts["signal"] == 15


def test_on_a_gpu_offload_is_asked_of_every_unit_and_on_a_cpu_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    from trainer import parallel
    from trainer.ranks import Ranks

    asked: list[bool] = []
    monkeypatch.setattr(parallel, "init_device_mesh", lambda *_, **__: None)
    monkeypatch.setattr(
        parallel,
        "fully_shard",
        lambda *_, offload_policy, **__: asked.append(isinstance(offload_policy, CPUOffloadPolicy)),
    )
    for device, offload in (("cuda", True), ("cuda", False), ("cpu", True)):
        ranks = Ranks(rank=0, world=1, local_rank=0, local_world=1, device=torch.device(device))
        model = StandIn(VOCAB)
        parallel.shard(model, list(model.blocks), dtype=torch.float32, ranks=ranks, cpu_offload=offload)
    assert asked == [True] * 3 + [False] * 6


@pytest.mark.parametrize(("dtype", "stored"), [(torch.bfloat16, torch.bfloat16), (torch.float64, torch.float32)])
def test_weights_that_would_be_trained_in_less_than_their_due_are_refused(
    dtype: torch.dtype, stored: torch.dtype
) -> None:
    from trainer.parallel import shard

    model = StandIn(VOCAB).to(stored)
    with start_ranks() as ranks, pytest.raises(ValueError, match="master weights"):
        shard(model, list(model.blocks), dtype=dtype, ranks=ranks)
