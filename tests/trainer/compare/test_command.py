"""`trainer compare` as a user runs it: what it says, its document, and how it ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.compare.benches import a_config, leaking, rows_that_repeat
from trainer.cli import main
from trainer.compare import command, comparison
from trainer.compare_page import compare_page

LADDER = {
    "name",
    "useful_tokens_per_s",
    "slots_per_useful",
    "steps",
    "ops_per_useful_token",
    "graphs_compiled",
    "peak_memory_bytes",
    "ratio",
}
LOSS = {"padded", "packed", "difference_per_seed", "interval_95", "margin", "replicate_floor", "equivalent"}


@dataclass(frozen=True, kw_only=True)
class Done:
    status: int
    stdout: str
    stderr: str


Compare = Callable[..., Done]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    a_config(folder, rows_that_repeat(20, seed=0), eval_rows=rows_that_repeat(8, seed=1), model="qwen3")
    return folder


@pytest.fixture
def compare(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Compare:
    """The command line in this process, on 80 columns."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*more: str) -> Done:
        given = ["--shards", "packed", "--model", "tiny", "--init", "random", "--no-tokenizer-check"]
        with pytest.raises(SystemExit) as ended:
            main(["compare", *given, "--rows-per-step", "2", "--lr", "3e-3", *more])
        said = capsys.readouterr()
        return Done(status=int(ended.value.code or 0), stdout=said.out, stderr=said.err)

    return call


def test_three_seeds_are_told_in_two_tables_of_80_columns_and_a_verdict(compare: Compare) -> None:
    done = compare("--steps", "2")
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Speed (2 steps, 3 seeds)")
    assert [line.split()[0] for line in lines if line.startswith("pa")][:3] == [
        "padded-stock",
        "padded-kernels",
        "packed",
    ]
    assert "packed: equivalent: the whole interval lies inside" in done.stdout
    assert "Held against the margin: 0.50% of the padded loss" in done.stdout
    assert "padded-stock, in another order" in done.stdout
    assert "seed 2  packed: loss" in done.stderr
    assert "56 of 56 examples" in done.stderr


def test_the_document_has_the_fields_that_are_promised(compare: Compare) -> None:
    (Path.cwd() / "other.toml").write_text('lr = 0.0001\nout = "runs/first"\n')
    done = compare("--steps", "2", "--seeds", "2", "--json", "--against", "other.toml", "--margin", "1%")
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"ladder", "loss", "curves", "setting", "strict"}
    names = ["padded-stock", "padded-kernels", "packed", "against"]
    assert [rung["name"] for rung in document["ladder"]] == names
    assert all(set(rung) >= LADDER for rung in document["ladder"])
    loss = document["loss"]
    assert set(loss) >= LOSS
    assert set(loss["padded"]) == set(loss["packed"]) == {"mean", "std", "per_seed"}
    assert loss["margin"] == pytest.approx(0.01 * loss["padded"]["mean"])
    assert loss["equivalent"] is None
    assert loss["verdict"] == "too few seeds"
    assert loss["difference_per_seed"] == pytest.approx(
        [ours - theirs for ours, theirs in zip(loss["packed"]["per_seed"], loss["padded"]["per_seed"], strict=True)]
    )
    assert loss["interval_95"][0] <= loss["interval_95"][1]
    assert loss["replicate_floor"] >= 0
    assert [rung["name"] for rung in loss["rungs"]] == names
    assert {name: [(curve["seed"], len(curve["loss"])) for curve in document["curves"][name]] for name in names} == {
        name: [(0, 2), (1, 2)] for name in names
    }
    setting = document["setting"]
    assert setting["corpus_digest"] == json.loads(Path("packed/manifest.json").read_text())["corpus_digest"]
    assert setting["model"] == "tiny"
    assert setting["versions"]["torch"]
    assert setting["versions"]["transformers"]
    assert setting["held_out"]["examples"] == 56
    assert setting["options"]["lr"] == 0.003
    assert setting["against"] == {"lr": 0.0001}
    assert setting["layers"]["packed"] == setting["layers"]["padded-kernels"] == ["attention: reference"]
    assert setting["layers"]["padded-stock"] == ["attention: sdpa", "other layers: transformers"]
    assert "The numbers are those of trainer compare" in compare_page(document)
    assert "out have no part in a comparison" in done.stderr


def test_a_rung_that_is_not_equivalent_is_status_1(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a planted leak costs is measured in test_comparison: here only how the command ends, so a margin next to nothing does.
    monkeypatch.setattr(comparison, "LADDER", (comparison.LADDER[0], leaking()))
    done = compare("--steps", "4", "--margin", "0.0000001", "--no-replicates", "--json")
    assert done.status == 1
    loss = json.loads(done.stdout)["loss"]
    assert loss["equivalent"] is False
    assert loss["replicate_floor"] is None
    assert loss["replicates"] == []


def test_strict_says_equal_or_the_first_step_and_parameter(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    done = compare("--steps", "2", "--seeds", "1", "--strict")
    assert done.status == 0, done.stderr
    assert "equal: 2 steps (1 seed), every parameter within 1e-07" in done.stdout
    monkeypatch.setattr(comparison, "LADDER", (comparison.LADDER[0], leaking()))
    done = compare("--steps", "2", "--seeds", "1", "--strict", "--json")
    assert done.status == 1
    document = json.loads(done.stdout)
    assert document["strict"]["equal"] is False
    assert document["strict"]["parted"]["step"] == 1
    assert document["strict"]["parted"]["parameter"].startswith(("model.", "lm_head"))
    assert document["setting"]["options"]["dtype"] == "fp64"
    done = compare("--steps", "2", "--seeds", "1", "--strict")
    assert done.status == 1
    assert "not equal: packed parts from padded-stock after step 1 (seed 0)" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--steps", "1"], "--steps"),
        (["--seeds", "0"], "--seeds"),
        (["--margin", "2"], "not a share above 0 and below 1"),
        (["--margin", "little"], "not a share above 0 and below 1"),
        (["--strict", "--against", "other.toml"], "--strict and --against"),
        (["--shards", "nowhere"], "nowhere"),
        (["--model", "./nowhere"], "no such folder"),
        (["--against", "nowhere.toml"], "--against nowhere.toml: No such file"),
        (["--kernels", "fused"], "needs a GPU"),
        (["--strict", "--kernels", "fused"], "fused kernels know no float64"),
        (["--seed", str(2**63 - 2)], "do not fit 63 bits"),
        (["--stepz", "3"], "no option --stepz"),
    ],
)
def test_wrong_use_is_two_lines_and_status_2(compare: Compare, more: list[str], said: str) -> None:
    done = compare(*more)
    assert done.status == 2
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert done.stdout == ""


def test_under_torchrun_it_is_refused(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    start = command.start_ranks

    @contextmanager
    def of_two():  # type: ignore[no-untyped-def]
        with start() as ranks:
            yield dataclasses.replace(ranks, world=2)

    monkeypatch.setattr(command, "start_ranks", of_two)
    done = compare("--steps", "2")
    assert done.status == 2
    assert "trainer compare was started as 2 processes" in done.stderr
    assert "without torchrun" in done.stderr
