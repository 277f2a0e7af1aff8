"""Every planted fault is caught by the check that is there for it, and called by its name; the models without one pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.check.benches import case_of, deeper, proved, stock_case
from tests.trainer.check.zoo import (
    ALL,
    HYBRIDS,
    ZOO,
    attention_that_sees,
    stock_with_cu_seqlens,
    whole_row,
)
from tests.trainer.tiny_models import CONFIGS, packed_model
from trainer import step
from trainer.check.report import Finding
from trainer.isolate import register_attention
from trainer.kernels import attention
from trainer.segments import Segments

# Every fault in one family in each run of the tests, each family in turn; all pairs under `full`.
PAIRS = [
    pytest.param(name, family, marks=[] if family == plant.families[place % len(plant.families)] else pytest.mark.full)
    for place, (name, plant) in enumerate(ZOO.items())
    for family in plant.families
]


def failure(findings: tuple[Finding, ...]) -> Finding:
    assert [finding.passed for finding in findings] == [*[True] * (len(findings) - 1), False]
    return findings[-1]


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_a_planted_fault_is_caught_and_named(name: str, family: str, tmp_path: Path) -> None:
    plant = ZOO[name]
    report, said = proved(plant.plant(case_of(packed_model(family, tmp_path), tmp_path)))
    assert not report.passed
    found = failure(report.findings)
    assert found.name == plant.check
    for words in plant.says:
        assert words in found.where
    assert found.advice
    assert any(found.where in line for line in said)


@pytest.mark.parametrize(
    "family",
    [name if name in ("qwen3_5", "mistral") else pytest.param(name, marks=pytest.mark.full) for name in CONFIGS],
)
def test_a_model_without_a_fault_passes(family: str, tmp_path: Path) -> None:
    report, _ = proved(case_of(packed_model(family, tmp_path), tmp_path))
    # The rows of the fixture hold random tokens, so the last check, of what they teach, is not asked.
    assert [(finding.name, finding.passed) for finding in report.findings[:4]] == [
        ("batch", True),
        ("isolation", True),
        ("equality", True),
        ("normalisation", True),
    ]
    assert report.isolation is not None
    assert report.isolation.gradient_leak == report.isolation.perturbation_leak == report.isolation.length_leak == 0
    assert report.equality is not None
    assert report.equality.max_grad_error < 1e-9


@pytest.mark.parametrize("family", [HYBRIDS[0], *(pytest.param(name, marks=pytest.mark.full) for name in HYBRIDS[1:])])
def test_a_stock_hybrid_that_is_given_position_ids_only_leaks_first_in_its_convolution(
    family: str, tmp_path: Path
) -> None:
    report, _ = proved(stock_case(family, tmp_path))
    where = failure(report.findings).where
    assert "model.layers.0.linear_attn (convolution, in its kernel causal_conv1d_fn)" in where
    assert report.isolation is not None
    assert report.isolation.leak is not None
    assert report.isolation.leak.module == "model.layers.0.linear_attn"


@pytest.mark.parametrize("family", [HYBRIDS[1], *(pytest.param(name, marks=pytest.mark.full) for name in HYBRIDS[::2])])
def test_cu_seqlens_without_seq_idx_leak_in_the_convolution(family: str, tmp_path: Path) -> None:
    report, _ = proved(stock_with_cu_seqlens(stock_case(family, tmp_path)))
    assert "linear_attn (convolution, in its kernel causal_conv1d_fn)" in failure(report.findings).where


def test_a_stock_model_of_full_attention_is_isolated_by_its_position_ids(tmp_path: Path) -> None:
    report, _ = proved(stock_case("qwen3", tmp_path))
    assert [finding.name for finding in report.findings[:2] if finding.passed] == ["batch", "isolation"]


def test_the_one_layer_of_four_that_leaks_is_named(tmp_path: Path) -> None:
    with deeper("qwen3", 4):
        plant = attention_that_sees(whole_row, layer=3)
        report, _ = proved(plant(case_of(packed_model("qwen3", tmp_path), tmp_path)))
    assert report.isolation is not None
    assert report.isolation.leak is not None
    assert report.isolation.leak.module == "model.layers.3.self_attn"


def test_a_window_that_ignores_boundaries_is_called_a_sliding_window(tmp_path: Path) -> None:
    report, _ = proved(attention_that_sees(whole_row)(case_of(packed_model("mistral", tmp_path), tmp_path)))
    assert "self_attn (sliding window)" in failure(report.findings).where


@pytest.mark.parametrize("family", [ALL[3], *(pytest.param(name, marks=pytest.mark.full) for name in HYBRIDS)])
def test_a_loss_that_is_divided_by_the_number_of_passes_is_caught(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = step.accumulate

    def divided(model: nn.Module, units: object, passes: object, *, denominator: int, **more: object) -> torch.Tensor:
        return right(model, units, passes, denominator=denominator * len(passes), **more)  # type: ignore[arg-type]

    case = case_of(packed_model(family, tmp_path), tmp_path)
    monkeypatch.setattr(step, "accumulate", divided)
    report, _ = proved(case)
    found = failure(report.findings)
    assert found.name == "normalisation"
    assert "split over passes of 1 and of 2 of 2 rows, the gradient is 0.5 times as large" in found.said


def test_a_mean_of_each_pass_in_place_of_its_sum_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = step.accumulate

    def averaged(model: nn.Module, units: object, passes: object, **more: object) -> torch.Tensor:
        more.pop("denominator")
        for each in passes:  # type: ignore[attr-defined]
            right(model, units, [each], denominator=each.count * len(passes), **more)  # type: ignore[arg-type]
        return torch.zeros(())

    case = case_of(packed_model("qwen3", tmp_path), tmp_path)
    monkeypatch.setattr(step, "accumulate", averaged)
    assert failure(proved(case)[0].findings).name == "normalisation"


def test_a_kernel_that_is_right_alone_but_not_among_others_is_caught_without_a_leak(tmp_path: Path) -> None:
    def rounder(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
        right = attention.reference(q, k, v, segments=segments, scale=scale, window=window)
        return right * 1.001 if segments.num_segments > 7 else right

    case = case_of(packed_model("qwen3", tmp_path), tmp_path)
    assert case.model is not None
    case.model.model.set_attn_implementation(register_attention(rounder, "planted"))
    found = failure(proved(case)[0].findings)
    assert found.name == "equality"
    assert "times what rounding explains" in found.where
