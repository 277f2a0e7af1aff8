"""In float64 the rungs have the same weights after every step; what makes them part is named with its step and parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.compare.benches import HYBRID, a_config, a_setting, leaking
from tests.trainer.shards_fixture import random_rows
from tests.trainer.tiny_models import CONFIGS
from trainer.compare import rungs as rungs_module
from trainer.compare.comparison import ladder
from trainer.compare.groups import padded_work
from trainer.compare.rungs import PACKED, PADDED_KERNELS, PADDED_STOCK, Rung, segmented
from trainer.compare.strict import Strict, train_side_by_side
from trainer.config import RunConfig
from trainer.loader import StepWork

_QUICK = (HYBRID, "qwen3")
_OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in CONFIGS if name != "qwen3"]


def strict(
    folder: Path, *, model: str = "qwen3", rungs: Callable[[RunConfig], list[tuple[Rung, RunConfig]]], **options: object
) -> Strict:
    config = a_config(folder, random_rows(9, seed=0), model=model, dtype="fp64", **options)
    with a_setting(config) as (setting, check):
        return train_side_by_side(setting, rungs(config), check=check, advance=lambda _: None)


@pytest.mark.parametrize("model", [*_QUICK, *_OTHERS])
def test_the_three_rungs_have_the_same_weights_after_every_step(tmp_path: Path, model: str) -> None:
    found = strict(tmp_path, model=model, rungs=lambda config: list(ladder(config)), steps=4)
    assert found.equal, found.parted
    assert found.steps == 4
    assert set(found.errors) == {"padded-kernels", "packed"}
    assert 0 < max(found.errors.values()) < 1e-8


@pytest.mark.parametrize(
    "options", [{"loss_weighting": "example"}, {"micro_rows": 2}, {"activation_checkpointing": "full"}]
)
def test_they_have_with_other_weights_of_targets_passes_and_recomputation(
    tmp_path: Path, options: dict[str, object]
) -> None:
    found = strict(tmp_path, model=HYBRID, rungs=lambda config: list(ladder(config)), **options)
    assert found.equal, found.parted


@pytest.mark.parametrize("model", _QUICK)
def test_a_leak_parts_the_packed_rung_at_the_first_step(tmp_path: Path, model: str) -> None:
    found = strict(tmp_path, model=model, rungs=lambda config: [(PADDED_STOCK, config), (leaking(), config)])
    assert found.parted is not None
    assert (found.parted.rung, found.parted.step, found.steps) == ("packed", 1, 0)
    assert found.parted.error > 1e-4
    assert found.parted.parameter.startswith(("model.", "lm_head"))
    assert found.parted.parameters > found.parted.of // 2


def test_a_boundary_a_token_late_parts_it_too(tmp_path: Path) -> None:
    from tests.trainer.check.zoo import late

    found = strict(tmp_path, rungs=lambda config: [(PADDED_STOCK, config), (leaking(late), config)])
    assert found.parted is not None
    assert found.parted.step == 1


def test_a_padded_step_that_loses_an_example_parts_from_the_packed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_last_batch(*arguments: object, **options: object) -> StepWork:
        work = padded_work(*arguments, **options)  # type: ignore[arg-type]
        return dataclasses.replace(work, passes=work.passes[:-1])

    monkeypatch.setattr(rungs_module, "padded_work", without_the_last_batch)
    found = strict(tmp_path, rungs=lambda config: [(PACKED, config), (PADDED_KERNELS, config)])
    assert found.parted is not None
    assert (found.parted.rung, found.parted.step) == ("padded-kernels", 1)


def test_the_first_step_that_differs_is_named_and_not_a_later_one(tmp_path: Path) -> None:
    # Adam's first update does not depend on its betas, whose bias it corrects; the second does.
    def other_betas(config: RunConfig) -> list[tuple[Rung, RunConfig]]:
        return [(PADDED_STOCK, config), (PACKED, dataclasses.replace(config, betas=(0.8, 0.95)))]

    found = strict(tmp_path, rungs=other_betas, steps=4, schedule="constant")
    assert found.parted is not None
    assert (found.parted.step, found.steps) == (2, 1)


def test_another_start_is_told_before_any_step(tmp_path: Path) -> None:
    def of_another_seed(config: RunConfig) -> list[tuple[Rung, RunConfig]]:
        def build(prepared, ranks):  # type: ignore[no-untyped-def]
            other = dataclasses.replace(prepared, config=dataclasses.replace(prepared.config, seed=1))
            return segmented(other, ranks)

        return [(PADDED_STOCK, config), (dataclasses.replace(PACKED, build=build), config)]

    found = strict(tmp_path, rungs=of_another_seed)
    assert found.parted is not None
    assert (found.parted.step, found.steps) == (0, 0)
