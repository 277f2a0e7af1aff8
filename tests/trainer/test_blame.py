"""A step taken apart: every example's loss against that example alone in float64, by the library's own model; rows and layers that are not finite."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from packer.errors import UserError
from packer.order import Order
from packer.shards import open_corpus
from tests.trainer.shards_fixture import VOCAB, Example, random_rows, write_corpus, write_model
from trainer import RunConfig, run
from trainer.blame.broken import RowGradient, first_module
from trainer.blame.command import blame, not_finite, worst_rows
from trainer.blame.losses import ExampleLoss, Work
from trainer.blame.report import Blame, Blamed, json_of, text
from trainer.blame.start import choose
from trainer.cli import main
from trainer.cli_blame import blame as blame_command
from trainer.float64 import float32_means_float64
from trainer.model import load_model
from trainer.prepare import prepare
from trainer.ranks import start_ranks
from trainer.saved import SavedModel

ROWS, ROWS_A_STEP = 9, 4
RARE = VOCAB - 1  # a token of one example alone


def chosen(folder: Path, out: str, **more: object) -> RunConfig:
    options: dict[str, object] = {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": 4,
        "rows_per_step": ROWS_A_STEP,
        "lr": 1e-2,
        "log_every": 1,
        "save_every": 2,
        "check": "off",
        "out": str(folder / out),
        **more,
    }
    return RunConfig(**options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two sources, and a run over them in float64 with checkpoints of steps 2 and 4."""
    path = tmp_path_factory.mktemp("blame")
    write_corpus(path / "packed", rows=random_rows(ROWS, seed=0), sources=("chat.jsonl", "code.jsonl"))
    write_model(path / "tiny")
    assert run(chosen(path, "run", dtype="fp64")) == 0
    return path


def logged(folder: Path, out: str) -> dict[int, float]:
    lines = map(json.loads, (folder / out / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_every_examples_loss_is_the_one_it_has_alone(folder: Path) -> None:
    found = blame(folder / "run", step=3)
    config = AutoConfig.from_pretrained(folder / "tiny")
    saved = SavedModel(folder / "run" / "checkpoints" / "step-000002")
    with float32_means_float64(), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
        model.load_state_dict({name: saved.read(name) for name in saved.shapes})
        corpus = open_corpus(folder / "packed")
        expected = {}
        for number in Order(rows=ROWS, rows_per_step=ROWS_A_STEP, positions=16, seed=0).step(2).rows.tolist():
            row = corpus[number]
            for place in range(row.num_examples):
                start, end = row.cu_seqlens[place : place + 2].tolist()
                ids = torch.tensor(row.input_ids[start:end].astype(np.int64))
                labels = ids.where(torch.tensor(row.loss_mask[start:end]), -100)
                logits = model(input_ids=ids[None], use_cache=False).logits[0]
                loss = F.cross_entropy(logits[:-1], labels[1:], reduction="sum", ignore_index=-100)
                expected[int(row.example_ids[place])] = (number, int((labels != -100).sum()), float(loss))
    assert {one.measured.example: (one.measured.row, one.measured.targets) for one in found.examples} == {
        example: (row, targets) for example, (row, targets, _) in expected.items()
    }
    for one in found.examples:
        assert one.measured.loss_sum == pytest.approx(expected[one.measured.example][2], rel=1e-9)
    means = [one.measured.loss for one in found.examples]
    assert means == sorted(means, reverse=True)  # type: ignore[type-var]
    assert found.loss == pytest.approx(logged(folder, "run")[3], rel=1e-12)
    assert found.logged == logged(folder, "run")[3]


def test_where_an_example_came_from_is_told(folder: Path) -> None:
    for one in blame(folder / "run", step=1).examples:
        source = ("chat.jsonl", "code.jsonl")[one.measured.example % 2]
        assert one.origin == f"{source} row {10 * one.measured.example}"
        assert (one.source, one.source_row) == (one.measured.example % 2, 10 * one.measured.example)


def test_the_weights_are_the_nearest_to_what_the_step_saw(folder: Path) -> None:
    said = {step: choose(folder / "run", step=step, given=None) for step in (1, 2, 3, 4, 9)}
    assert {step: start.updates for step, start in said.items()} == {1: 0, 2: 2, 3: 2, 4: 4, 9: 4}
    assert said[1].said == "the ones the run began with, those that the step saw"
    assert said[2].said == "checkpoints/step-000002, in which the update of this very step is"
    assert said[3].said == "checkpoints/step-000002, those that the step saw"
    assert said[9].said == "checkpoints/step-000004, 4 updates before those that the step saw"
    assert choose(folder / "run", step=3, given="x/y").checkpoint is None
    # The first step is reckoned from weights that are drawn again; only a step whose weights are there is what the run logged.
    losses = logged(folder, "run")
    assert blame(folder / "run", step=1).loss == pytest.approx(losses[1], rel=1e-12)
    assert abs(blame(folder / "run", step=2).loss - losses[2]) > 1e-3


def test_the_weights_of_another_model_can_be_given(folder: Path, tmp_path: Path) -> None:
    from trainer.export import export

    export(folder / "run", tmp_path / "exported", step=2, dtype="fp32")
    given = blame(folder / "run", step=3, model=str(tmp_path / "exported"))
    assert (given.weights, given.updates) == (f"{tmp_path / 'exported'}, given with --model", None)
    assert given.loss == pytest.approx(logged(folder, "run")[3], rel=1e-6)  # through float32 and back


def test_the_base_model_need_not_be_there_any_more(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    options = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(options.replace(str(folder / "tiny"), str(tmp_path / "gone")))
    assert blame(tmp_path / "run", step=3).loss == pytest.approx(logged(folder, "run")[3], rel=1e-12)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A run that stopped: one token's embedding is near the largest float32, so that squares overflow: the loss is finite, its gradient is not.

    The folder, the row and the example.
    """
    path = tmp_path_factory.mktemp("broken")
    rows = random_rows(ROWS, seed=0)
    rows = [[Example(ids=tuple(i % (VOCAB - 2) + 1 for i in e.ids), mask=e.mask) for e in row] for row in rows]
    odd = rows[5][1]
    rows[5][1] = Example(ids=(*odd.ids[:2], RARE, *odd.ids[3:]), mask=odd.mask)
    write_corpus(path / "packed", rows=rows, sources=("chat.jsonl", "code.jsonl"))
    made = load_model(
        str(write_model(path / "made", tied=False)),
        init="random",
        seed=0,
        dtype=torch.float32,
        kernels="reference",
        device="cpu",
        vocab_at_least=VOCAB,
    )
    with torch.no_grad():
        made.model.get_input_embeddings().weight[RARE] = 3e38  # type: ignore[operator,index]
    made.model.save_pretrained(path / "tiny")
    corpus = open_corpus(path / "packed")
    return path, 5, int(corpus[5].example_ids[1])


def first_step_with(row: int) -> int:
    """From 1."""
    order = Order(rows=ROWS, rows_per_step=ROWS_A_STEP, positions=16, seed=0)
    return next(step + 1 for step in range(order.steps) if row in order.step(step).rows)


def test_a_step_that_stopped_a_run_is_traced_to_row_and_layer_and_the_run_goes_on_without(
    broken: tuple[Path, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, row, example = broken
    step = first_step_with(row)
    options = chosen(folder, "run", init="pretrained", save_every=0)
    with pytest.raises(UserError, match=f"step {step}: the gradient is not finite") as stopped:
        run(options)
    assert f"trainer blame {folder / 'run'} --step {step}" in stopped.value.hint
    found = blame(folder / "run", step=step)
    assert found.stopped
    assert [each.row for each in found.gradients if not each.finite] == [row]
    # Through the last norm what is not finite comes to the last layer's residual stream, and from it first to the layer's last matrix.
    (gradient,) = [each for each in found.gradients if not each.finite]
    assert gradient.parameter == "model.layers.1.mlp.down_proj.weight"
    assert found.without == (row,)
    assert example in [one.measured.example for one in found.examples if one.measured.row == row]
    said = text(found, limit=3, width=80)
    assert (
        f"not finite: the gradient of row {row}; going back from the loss it begins in model.layers.1.mlp.down" in said
    )
    last = said.splitlines()[-1]
    assert last == f"  trainer run --config {folder / 'run' / 'config.toml'} --skip-rows {row}"
    capsys.readouterr()
    assert main(shlex.split(last)[1:], standalone_mode=False) == 0
    out = capsys.readouterr().out
    assert f"changed since then: skip_rows: [] → [{row}]" in out or step == 1
    assert list(logged(folder, "run")) == [1, 2, 3, 4]


def test_the_first_module_that_is_not_finite_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_ranks() as ranks:
        prepared = prepare(replace(chosen(folder, "run"), dtype="fp32"))
        work = Work.of(prepared, step=1, ranks=ranks)
        model = load_model(
            str(folder / "tiny"),
            init="random",
            seed=0,
            dtype=torch.float32,
            kernels="reference",
            device="cpu",
            vocab_at_least=VOCAB,
        )
        row = work.rows[0]
        assert first_module(model, [], work, row=row, ranks=ranks) is None
        norm = model.model.get_submodule("model.layers.1.post_attention_layernorm")
        forward = norm.forward
        monkeypatch.setattr(norm, "forward", lambda hidden: forward(hidden) / 0)
        named = first_module(model, [], work, row=row, ranks=ranks)
        assert named == f"model.layers.1.post_attention_layernorm ({type(norm).__name__})"


def test_metrics_tell_whether_a_steps_gradient_was_finite() -> None:
    nan: dict[str, float] = {"step": 3, "loss": None, "grad_norm": None, "skipped": 1}  # type: ignore[dict-item]
    lines: list[dict[str, float]] = [{"step": 1, "loss": 1.0, "grad_norm": 1.0, "skipped": 0}, nan]
    assert [not_finite(lines, step) for step in (1, 2, 3, 4)] == [False, True, True, False]
    later = [*lines, {"step": 3, "eval_loss": 1.0}, {"step": 9, "loss": 1.0, "grad_norm": 1.0, "skipped": 1}]
    assert [not_finite(later, step) for step in (4, 9)] == [False, False]


def made(example: int, loss: float, *, row: int = 0, targets: int = 10, said: str = "") -> Blamed:
    measured = ExampleLoss(
        row=row,
        segment=0,
        example=example,
        start=0,
        end=20,
        targets=targets,
        loss_sum=loss * targets,
        target_weight=targets,
    )
    return Blamed(measured=measured, origin=f"a.jsonl row {example}", source=0, source_row=example, text=said)


def report(examples: list[Blamed], **more: object) -> Blame:
    values: dict[str, object] = {
        "run": "runs/a",
        "step": 12,
        "steps": 40,
        "weights": "checkpoints/step-000011, those that the step saw",
        "updates": 11,
        "logged": None,
        "left_out": (),
        "examples": tuple(sorted(examples, key=lambda one: one.badness, reverse=True)),
        "stopped": False,
        "gradients": (),
        "module": None,
        "without": (0,),
        "onward": "trainer run",
        **more,
    }
    return Blame(**values)  # type: ignore[arg-type]


def test_what_is_not_finite_is_worst_and_what_teaches_nothing_is_last() -> None:
    nan, inf = float("nan"), float("inf")
    examples = [made(0, 2.0), made(1, nan, row=3), made(2, 0.0, targets=0), made(3, 9.0), made(4, -inf, row=4)]
    found = report(examples)
    assert [one.measured.example for one in found.examples][2:] == [3, 0, 2]
    assert worst_rows(found.examples, []) == (3, 4)
    assert worst_rows([made(3, 9.0, row=7), made(0, 2.0)], []) == (7,)
    gradient = RowGradient(row=6, norm=inf, parameter="model.norm.weight")
    assert worst_rows([made(3, 9.0, row=7)], [gradient]) == (6,)
    document = json.loads(json_of(found))
    assert [(one["example"], one["loss"], one["finite"]) for one in document["examples"][2:]] == [
        (3, 9.0, True),
        (0, 2.0, True),
        (2, None, True),
    ]
    assert document["loss"] is None


def test_text_of_the_data_cannot_move_a_terminal_and_fits_it() -> None:
    sly = made(0, 2.0, said="\x1b[2J\nnew line \u202e" + "long " * 100)
    lines = text(report([sly]), limit=1, width=80).splitlines()
    assert not any(character in line for line in lines for character in "\x1b\u202e")
    (shown,) = [line for line in lines if "new line" in line]
    assert (shown.startswith(r"          \x1b[2J\nnew line \u202elong"), len(shown)) == (True, 80)


def test_no_more_examples_are_shown_than_asked_for() -> None:
    found = report([made(number, float(number)) for number in range(12)])
    said = text(found, limit=10, width=80)
    assert "a.jsonl row 11" in said
    assert "a.jsonl row 1\n" not in said
    assert "… 2 more" in said
    assert "more" not in text(found, limit=0, width=80)


def test_where_every_row_is_broken_no_row_is_blamed() -> None:
    gradients = (RowGradient(row=0, norm=float("nan"), parameter="lm_head.weight"),)
    said = text(report([made(0, 2.0)], gradients=gradients, without=(), onward=""), limit=1, width=80)
    assert "that is not a row's doing" in said
    assert "--skip-rows" not in said


def test_the_command_answers_in_two_ways(folder: Path) -> None:
    shown = CliRunner().invoke(blame_command, [str(folder / "run"), "--step", "3", "--limit", "2"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(
        f"step 3 of 4 of {folder / 'run'}: 4 rows (row 5 more than once: the step spans epochs), "
    )
    document = json.loads(
        CliRunner().invoke(blame_command, [str(folder / "run"), "--step", "3", "--gradients", "--json"]).output
    )
    assert document["loss"] == pytest.approx(document["logged_loss"], rel=1e-12)
    assert [each["row"] for each in document["gradients"]] == document["rows"]
    assert all(each["finite"] and each["norm"] > 0 for each in document["gradients"])
    worst = document["examples"][0]["row"]
    # The run is past step 3: to do it again without the row it starts from before, elsewhere.
    resume = folder / "run" / "checkpoints" / "step-000002"
    assert document["command"].endswith(f"--skip-rows {worst} --resume {resume} --out {folder / 'run'}-without-{worst}")
    assert main(shlex.split(document["command"])[1:], standalone_mode=False) == 0
    assert list(logged(folder, f"run-without-{worst}")) == [3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 5}, r"--step 5: .* is a run of 4 steps"),
        ({"step": 0}, r"--step 0: .* is a run of 4 steps"),
        ({"shards": "gone"}, r"gone: no such folder"),
        ({"run": "packed"}, r"config.toml: cannot be read"),
        ({"model": "gone/gone/gone"}, r"gone/gone/gone: no such folder"),
    ],
)
def test_wrong_use_is_told(folder: Path, change: dict[str, object], message: str) -> None:
    given = {"run": "run", "step": 3, **change}
    with pytest.raises(UserError, match=message):
        blame(folder / str(given.pop("run")), **given)  # type: ignore[arg-type]


def test_moved_shards_are_found_by_option_and_other_ones_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    options = tmp_path / "run" / "config.toml"
    options.write_text(options.read_text().replace(str(folder / "packed"), str(tmp_path / "away")))
    with pytest.raises(UserError, match="away: no such folder") as missing:
        blame(tmp_path / "run", step=3)
    assert "--shards" in missing.value.hint
    shutil.copytree(folder / "packed", tmp_path / "here")
    found = blame(tmp_path / "run", step=3, shards=str(tmp_path / "here"))
    assert found.loss == pytest.approx(logged(folder, "run")[3], rel=1e-12)
    assert f"--shards {tmp_path / 'here'}" in found.onward
    write_corpus(tmp_path / "other", rows=random_rows(ROWS, seed=1))
    with pytest.raises(UserError, match=r"not the rows that .* was trained on"):
        blame(tmp_path / "run", step=3, shards=str(tmp_path / "other"))


@pytest.mark.parametrize("what", ["shard", "checkpoint"])
def test_damage_is_found_before_anything_is_blamed(folder: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.copytree(folder / "packed", tmp_path / "packed")
    path = (
        tmp_path / "packed" / "train" / "shard-00000.arrow"
        if what == "shard"
        else next((tmp_path / "run" / "checkpoints" / "step-000002").glob("__0_*"))
    )
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="its bytes are not those that were written"):
        blame(tmp_path / "run", step=3, shards=str(tmp_path / "packed"))


def test_a_gradient_that_is_finite_again_with_older_weights_is_told_as_that() -> None:
    gradients = (RowGradient(row=0, norm=0.25, parameter=None), RowGradient(row=3, norm=1.5, parameter=None))
    said = text(report([made(0, 2.0)], stopped=True, gradients=gradients), limit=1, width=80)
    assert "was not finite; with these weights it is (save more often: --save-every)" in said
    assert "their norms: row 0 0.25, row 3 1.5" in said
    assert "was not finite" not in text(report([made(0, 2.0)], gradients=gradients), limit=1, width=80)
