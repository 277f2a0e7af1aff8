"""`trainer plan` as a user runs it, and what it says of the 27B hybrid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer.memory.hybrid_27b import HYBRID_27B, parameters_27b
from tests.trainer.shards_fixture import CAPACITY, random_rows, write_corpus, write_model
from tests.trainer.tiny_models import write_config
from trainer.cli import main
from trainer.memory.config import PlanConfig, read_bytes
from trainer.memory.plan import HEADROOM, make_plan

_MEASURE = """
import json, resource, sys
from torch.utils._python_dispatch import TorchDispatchMode
from trainer.memory.config import PlanConfig
from trainer.memory.plan import make_plan
from trainer.memory.report import plan_json
class Counting(TorchDispatchMode):
    operations = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Counting() as counting:
    plan = make_plan(PlanConfig(model=sys.argv[1], capacity=8192, ranks=16, memory=80 * 10**9, activation_checkpointing="full"))
rise = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"plan": json.loads(plan_json(plan)), "rise": rise * 1024, "operations": counting.operations}))
"""


def command(*arguments: str) -> Result:
    """`trainer plan`, in this process."""
    return CliRunner().invoke(main, ["plan", *arguments], prog_name="trainer")


@pytest.fixture(scope="module")
def hybrid_27b(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    source = write_config(tmp_path_factory.mktemp("27b"), HYBRID_27B)
    result = subprocess.run(
        [sys.executable, "-c", _MEASURE, source], cwd=ROOT, capture_output=True, text=True, timeout=900, check=True
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_27b_hybrid_is_planned_in_few_operations_and_little_memory(hybrid_27b: dict[str, Any]) -> None:
    assert (
        hybrid_27b["operations"] < 15_000
    )  # 8,833, most of them to make the parameters of 64 blocks: one of each kind is traced
    assert hybrid_27b["rise"] < 500_000_000  # its weights are 54 GB in bf16


def test_a_27b_hybrids_parts_are_what_its_shapes_say(hybrid_27b: dict[str, Any]) -> None:
    plan, whole = hybrid_27b["plan"], parameters_27b()
    assert (plan["parameters"], plan["blocks"], plan["kinds_of_block"]) == (whole, 64, 2)
    parts = plan["memory_bytes"]["parts"]
    assert parts["parameters"] == pytest.approx(4 * whole / 16, rel=1e-3)
    assert parts["optimizer"] == pytest.approx(8 * whole / 16, rel=1e-3)
    assert sum(parts.values()) == plan["memory_bytes"]["total"]
    # The root alone: embedding and head whole in bf16, their gradients, and the buffer in fp32 that these are summed in.
    root = 2 * 248_320 * 5_120
    assert plan["memory_bytes"]["phases"]["reduce"] > root * (2 + 4)
    assert plan["fits"] is True


def test_checkpointing_keeps_a_hidden_state_a_block(tmp_path: Path) -> None:
    source = write_config(tmp_path, HYBRID_27B)
    plan = make_plan(PlanConfig(model=source, capacity=8192, ranks=64, activation_checkpointing="full"))
    backward = next(moment for moment in plan.phases if moment.phase == "loss")
    hidden = 8192 * 5_120 * 2
    assert backward.parts.activations == pytest.approx(65 * hidden, rel=0.05)


def test_the_fewest_ranks_fit_and_one_less_does_not(tmp_path: Path) -> None:
    source = write_config(tmp_path, HYBRID_27B)

    def plan_for(ranks: int) -> Any:
        config = PlanConfig(
            model=source,
            capacity=8192,
            ranks=ranks,
            rows_per_step=512,
            memory=80 * 10**9,
            activation_checkpointing="full",
        )
        return make_plan(config)

    fewest = plan_for(16).fewest_ranks
    assert fewest is not None
    assert plan_for(fewest).fits
    assert plan_for(fewest).peak.parts.total <= 80e9 * (1 - HEADROOM)
    assert not plan_for(fewest - 1).fits


def test_where_a_pass_alone_is_too_large_no_number_of_ranks_is_said_to_fit(tmp_path: Path) -> None:
    source = write_config(tmp_path, HYBRID_27B)
    result = command("--model", source, "--capacity", "8192", "--ranks", "64", "--memory", "80GB")
    assert result.exit_code == 1
    assert "no number of ranks fits" in result.stdout
    assert "--activation-checkpointing full" in result.stdout


def test_shards_give_rows_steps_tokens_and_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "packed", rows=random_rows(10, seed=0))
    model = write_model(tmp_path / "tiny")
    (tmp_path / "run").mkdir()
    rates = [
        {"step": 1, "useful_tokens_per_s": 1.0},
        {"step": 2, "useful_tokens_per_s": 2.5},
        {"step": 2, "eval_loss": 1.0},
    ]
    rates.append({"step": 3, "useful_tokens_per_s": 50.0})
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rates))
    monkeypatch.chdir(tmp_path)
    arguments = ["--shards", "packed", "--model", str(model), "--epochs", "3", "--rows-per-step", "4", "--json"]
    result = command(*arguments, "--run", "run")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    info = corpus.info
    assert found["capacity"] == CAPACITY
    assert found["work"]["steps"] == 8  # 30 rows, 4 a step
    assert found["work"]["useful_tokens"] == 3 * info.tokens
    assert found["work"]["supervised_tokens"] == 3 * info.supervised_tokens
    assert found["work"]["tokens_per_s"] == 2.5
    assert found["work"]["hours"] == pytest.approx(3 * info.tokens / 2.5 / 3600)
    assert found["fits"] is None
    assert found["fewest_ranks"] is None


@pytest.mark.parametrize("width", ["80", "200"])
def test_the_report_keeps_to_the_terminal_and_has_no_colour_in_a_pipe(
    width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "tiny")
    monkeypatch.setenv("COLUMNS", width)
    arguments = ["--model", str(model), "--capacity", "64", "--rows", "100", "--memory", "80GB", "--tokens-per-s", "5"]
    result = command(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= int(width)
    for word in (
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "unsharded",
        "loss",
        "workspace",
        "batch",
        "total",
    ):
        assert f"\n{word} " in result.stdout
    assert "fewest that fit: 1" in result.stdout
    assert "13 steps" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "8"], "neither --shards nor --model and --capacity"),
        (["--model", "tiny", "--capacity", "64", "--ranks", "3", "--replicas", "2"], "cannot be shared out evenly"),
        (["--model", "tiny", "--capacity", "64", "--memory", "80 bananas"], "not an amount of memory"),
        (["--model", "nowhere/at/all", "--capacity", "64"], "no such folder"),
        (["--model", "tiny", "--capacity", "64", "--run", "nowhere", "--rows", "9"], "no line of metrics.jsonl"),
        (["--model", "tiny", "--capacity", "64", "--tokens-per-s", "0"], "not a positive number"),
        (["--model", "tiny", "--capacity", "64", "--device", "cpu", "--kernels", "fused"], "needs a GPU"),
        (["--model", "tiny", "--capacity", "64", "--rank", "2"], "--ranks"),
    ],
)
def test_wrong_use_ends_in_two_lines(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "tiny")
    result = command(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_amounts_of_memory_are_read_with_their_units() -> None:
    assert [read_bytes(text) for text in ("80GB", "79.5 GiB", "141gb", "1024")] == [
        80 * 10**9,
        int(79.5 * 2**30),
        141 * 10**9,
        1024,
    ]
    with pytest.raises(UserError, match="not an amount"):
        read_bytes("GB")
