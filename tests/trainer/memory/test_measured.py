"""A plan against what real steps took: total and parts to a tenth, on one rank and on two."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, TINY
from tests.trainer.memory.step_script import row
from tests.trainer.tiny_models import CONFIGS, write_config
from trainer.memory import plan as planning
from trainer.memory.config import PlanConfig
from trainer.memory.moments import Moment
from trainer.memory.plan import make_plan
from trainer.memory.work import Rows

CLOSE = 0.1
CASE: dict[str, Any] = {
    "dtype": "fp32",
    "activation_checkpointing": "none",
    "capacity": 128,
    "segments": 3,
    "micro_rows": 1,
    "passes": 2,
    "reduce": "pass",
    "replicas": 1,
}
TINY_CASES: list[dict[str, Any]] = [
    {"model": "hybrid"},
    {"model": "hybrid", "activation_checkpointing": "full", "dtype": "bf16", "capacity": 64},
    {"model": "qwen3", "activation_checkpointing": "full"},
    {"model": "qwen3", "dtype": "bf16", "reduce": "step"},
]
MORE_TINY_CASES: list[dict[str, Any]] = [
    {"model": "hybrid", "activation_checkpointing": "selective", "passes": 1},
    {"model": "hybrid", "capacity": 64, "reduce": "step"},
    {"model": "qwen3", "micro_rows": 2},
    {"model": "qwen3", "activation_checkpointing": "full", "capacity": 64},
]
# 13 layers of width 1,024 (qwen3), and 16 of which 12 are of the gated delta rule: 197 and 212 million parameters.
LARGE: dict[str, dict[str, object]] = {
    "qwen3 200 M": {
        **CONFIGS["qwen3"],
        "vocab_size": 32_000,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 13,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "hybrid 200 M": {
        **CONFIGS["qwen3_5"],
        "vocab_size": 32_000,
        "hidden_size": 1024,
        "intermediate_size": 2560,
        "num_hidden_layers": 16,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "tie_word_embeddings": False,
    },
}
LARGE_CASES = [
    {"model": "qwen3 200 M", "capacity": 256},
    {"model": "qwen3 200 M", "capacity": 256, "dtype": "bf16", "activation_checkpointing": "full"},
    {"model": "hybrid 200 M", "capacity": 256, "activation_checkpointing": "selective"},
]


def source(name: str, folder: Path) -> str:
    if name == "hybrid":
        return str(TINY)
    wider = {**CONFIGS["qwen3"], "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 2_000}
    return write_config(folder / name.replace(" ", "-"), LARGE.get(name, wider))


def measure(cases: list[dict[str, Any]], *, ranks: int) -> list[list[dict[str, int]]]:
    """Of each case, of each rank: what a step took."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    result = subprocess.run(
        [sys.executable, "-m", *launcher, "tests.trainer.memory.step_script", json.dumps(cases)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[{")]
    assert len(lines) == len(cases)
    return lines


def planned(case: dict[str, Any], *, ranks: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Moment, ...]:
    """The largest moment of each phase, for rows like those of the script."""
    made = row(case["capacity"], case["segments"], 100, 0)
    rows = Rows(
        capacity=case["capacity"],
        segments=made.num_segments,
        supervised=made.num_supervised,
        max_segments=case["segments"],
        vocabulary=1,
    )
    monkeypatch.setattr(planning, "rows_of", lambda *_: rows)
    config = PlanConfig(
        model=case["model"],
        capacity=case["capacity"],
        ranks=ranks,
        replicas=case["replicas"],
        device="cpu",
        dtype=case["dtype"],
        activation_checkpointing=case["activation_checkpointing"],
        micro_rows=case["micro_rows"],
        rows_per_step=case["micro_rows"] * case["passes"] * ranks,
        reduce=case["reduce"],
    )
    plan = make_plan(config)
    assert plan.passes == case["passes"]
    return plan.phases


def compare(some: list[dict[str, Any]], ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [{**CASE, **case, "model": source(case["model"], folder)} for case in some]
    for case, every in zip(cases, measure(cases, ranks=ranks), strict=True):
        phases = planned(case, ranks=ranks, monkeypatch=monkeypatch)
        peak = max((moment.parts for moment in phases), key=lambda parts: parts.total)
        update = next(moment.parts for moment in phases if moment.phase == "update")
        for found in every:
            assert peak.total == pytest.approx(found["peak"], rel=CLOSE), case
            assert peak.parameters == pytest.approx(found["parameters"], rel=0.01), case
            assert peak.optimizer == pytest.approx(found["optimizer"], rel=0.01), case
            assert update.gradients == pytest.approx(found["gradients"], rel=0.01), case
            assert peak.batch == found["batch"], case


@pytest.mark.parametrize("ranks", [1, 2])
def test_tiny_models_take_what_was_planned(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(TINY_CASES, ranks, tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_tiny_models_take_what_was_planned_in_every_way(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated = [{"model": "hybrid", "replicas": 2}] if ranks == 2 else []
    compare(MORE_TINY_CASES + replicated, ranks, tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_models_of_200_million_parameters_take_what_was_planned(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(LARGE_CASES, ranks, tmp_path, monkeypatch)


def test_a_plan_for_more_ranks_than_rows_of_a_weight_counts_the_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {**CASE, "model": source("qwen3", tmp_path)}
    few, many = (
        max(planned(case, ranks=ranks, monkeypatch=monkeypatch), key=lambda moment: moment.parts.total)
        for ranks in (2_000, 4_000)
    )
    # The embedding has 2,000 rows: half of 4,000 ranks hold one that is padding.
    assert dataclasses.replace(few.parts, batch=0).parameters == dataclasses.replace(many.parts, batch=0).parameters
