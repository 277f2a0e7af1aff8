"""`trainer check` proves the weights of targets: a model and rows that have them pass, and what drops, moves or forgets them is caught by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.types import Row
from tests.trainer.check.benches import case_of, proved, windows
from tests.trainer.shards_fixture import CAPACITY, random_rows, weighted, write_corpus
from tests.trainer.tiny_models import packed_model
from trainer import batch as batches
from trainer import loader, step
from trainer.batch import Batch
from trainer.check import equality
from trainer.check.proof import Case
from trainer.check.report import Finding, Report
from trainer.check.windows import Piece, Window, assemble, cut_windows
from trainer.kernels.loss import cross_entropy_sum

DRAWN = np.array([1.0, 0.5, 0.25, 1 / 3, 3.0], np.float32)


def with_weights(window: Window, seed: int) -> Window:
    rng = np.random.default_rng(seed)
    pieces = [
        Piece(ids=one.ids, mask=one.mask, weights=rng.choice(DRAWN, len(one)) * one.mask) for one in window.pieces
    ]
    return assemble(pieces, slots=len(window.row.input_ids), pad_id=0)


def weighted_case(folder: Path) -> Case:
    made = [with_weights(window, seed) for seed, window in enumerate(windows())]
    return dataclasses.replace(case_of(packed_model("qwen3", folder), folder), windows=made)


def last(report: Report) -> Finding:
    assert not report.passed
    return report.findings[-1]


def test_a_right_model_passes_with_weights(tmp_path: Path) -> None:
    report, _ = proved(weighted_case(tmp_path))
    assert [(finding.name, finding.passed) for finding in report.findings[:4]] == [
        ("batch", True),
        ("isolation", True),
        ("equality", True),
        ("normalisation", True),
    ]
    assert "targets and their weights of a pass" in report.findings[0].said
    assert report.equality is not None
    assert report.equality.loss_error < 1e-12


def planted(change: Callable[[Batch], Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass that batch making gives is changed, as it would be by a fault in it."""
    right = batches.make_batch
    monkeypatch.setattr(batches, "make_batch", lambda *args, **more: change(right(*args, **more)))


def dropped(batch: Batch) -> Batch:
    return dataclasses.replace(batch, target_weights=None)


def all_one(batch: Batch) -> Batch:
    weights = torch.zeros_like(batch.target_weights)
    weights[:, : batch.count] = 1
    return dataclasses.replace(batch, target_weights=weights)


def shifted(batch: Batch) -> Batch:
    """Each target counts what the one before it does."""
    weights = batch.target_weights.clone()
    weights[:, : batch.count] = batch.target_weights[:, : batch.count].roll(1, dims=1)
    return dataclasses.replace(batch, target_weights=weights)


def of_the_first_line_alone(batch: Batch) -> Batch:
    """Right in what is optimised, wrong in what is reported."""
    return dataclasses.replace(
        batch, target_weights=torch.stack([batch.target_weights[0], all_one(batch).target_weights[1]])
    )


@pytest.mark.parametrize("change", [dropped, all_one, shifted, of_the_first_line_alone])
def test_a_pass_whose_targets_count_something_else_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Batch], Batch]
) -> None:
    case = weighted_case(tmp_path)
    planted(change, monkeypatch)
    found = last(proved(case)[0])
    assert found.name == "batch"
    assert found.where.startswith("weights: the target in slot ")
    assert "where its row says" in found.where


def test_a_count_in_place_of_what_a_pass_counts_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = weighted_case(tmp_path)
    planted(lambda batch: dataclasses.replace(batch, loss_weight=float(batch.count)), monkeypatch)
    found = last(proved(case)[0])
    assert (found.name, found.where.startswith("weights: the targets of a pass count ")) == ("batch", True)


def test_a_loss_that_leaves_the_weights_out_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(*args: object, target_weights: Tensor | None = None, **more: object) -> Tensor:
        return cross_entropy_sum(*args, target_weights=torch.ones_like(target_weights), **more)  # type: ignore[arg-type]

    case = weighted_case(tmp_path)
    monkeypatch.setattr("trainer.model.cross_entropy_sum", plain)
    found = last(proved(case)[0])
    assert found.name == "equality"


def test_a_loss_that_uses_the_weights_in_its_value_alone_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward_only(*args: object, target_weights: Tensor | None = None, **more: object) -> Tensor:
        right = cross_entropy_sum(*args, target_weights=target_weights, **more)  # type: ignore[arg-type]
        wrong = cross_entropy_sum(*args, target_weights=torch.ones_like(target_weights), **more)  # type: ignore[arg-type]
        return wrong + (right - wrong).detach()

    case = weighted_case(tmp_path)
    monkeypatch.setattr("trainer.model.cross_entropy_sum", forward_only)
    found = last(proved(case)[0])
    assert found.name == "equality"
    assert "the gradient of" in found.where


def test_a_step_that_is_divided_by_the_number_of_its_targets_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(rows: Iterable[Row]) -> tuple[float, float]:
        rows = list(rows)
        return float(sum(row.num_examples for row in rows)), float(sum(row.num_supervised for row in rows))

    case = weighted_case(tmp_path)
    targets = sum(window.row.num_supervised for window in case.windows)
    weight = sum(float(piece.weights.sum()) for window in case.windows for piece in window.pieces)  # type: ignore[union-attr]
    monkeypatch.setattr(loader, "weigh", counts)
    found = last(proved(case)[0])
    assert found.name == "normalisation"
    assert f"the gradient is {weight / targets:.4g} times as large" in found.said


def test_a_pass_that_is_divided_by_its_own_weight_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = step.accumulate

    def averaged(model: object, units: object, passes: object, **more: object) -> Tensor:
        more.pop("denominator")
        for each in passes:  # type: ignore[attr-defined]
            right(model, units, [each], denominator=each.loss_weight * len(passes), **more)  # type: ignore[arg-type]
        return torch.zeros(())

    case = weighted_case(tmp_path)
    monkeypatch.setattr(step, "accumulate", averaged)
    assert last(proved(case)[0]).name == "normalisation"


def test_the_proof_that_examples_alone_count_their_weights_is_no_echo_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the examples alone to forget the weights as well, nothing would be seen: so they must not."""
    case = weighted_case(tmp_path)
    monkeypatch.setattr(equality, "counted", lambda piece: piece.mask.astype(np.float32))
    assert last(proved(case)[0]).name == "equality"


def test_windows_of_a_corpus_with_weights_have_those_of_their_tokens(tmp_path: Path) -> None:
    rows = weighted(random_rows(5, seed=0), seed=1)
    corpus = write_corpus(tmp_path, rows=rows)
    known = {
        (example.ids[at - 1], example.ids[at], example.counted[at])
        for row in rows
        for example in row
        for at in range(1, len(example.ids))
    }
    seen = set()
    for window in cut_windows(corpus):
        assert window.row.loss_weights is not None
        assert len(window.row.loss_weights) == CAPACITY
        assert ((window.row.loss_weights != 0) == window.row.loss_mask).all()
        for piece in window.pieces:
            assert piece.weights is not None
            for at in np.flatnonzero(piece.mask).tolist():
                # Pieces of several examples one behind the other have pairs that no example has.
                seen.add((int(piece.ids[at - 1]), int(piece.ids[at]), float(piece.weights[at])))
    tokens = {(token, weight) for _, token, weight in known}
    assert {(token, weight) for _, token, weight in seen} <= tokens
    assert len({weight for _, _, weight in seen}) > 3
    plain = write_corpus(tmp_path / "plain", rows=random_rows(5, seed=0))
    assert all(window.row.loss_weights is None for window in cut_windows(plain))
