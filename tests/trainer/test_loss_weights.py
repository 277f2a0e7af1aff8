"""Weights of targets in the loss, held against every example by itself with its weights written out, in float64."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from packer.errors import UserError
from packer.order import Order
from packer.shards import open_corpus
from tests.support import ROOT
from tests.trainer.compare.benches import HYBRID, a_config, a_setting
from tests.trainer.shards_fixture import (
    CAPACITY,
    MAX_SEGMENTS,
    VOCAB,
    Example,
    random_rows,
    weighted,
    write_corpus,
    write_model,
)
from tests.trainer.test_step import LONG, SHORT, SILENT, CostsItsId
from tests.trainer.tiny_models import packed_model
from trainer import RunConfig, run
from trainer.adapters import Collator, PackedRows, isolate
from trainer.batch import Batch, Shape, make_batch
from trainer.blame.command import blame
from trainer.compare.comparison import ladder
from trainer.compare.held_out import held_out_loss
from trainer.compare.rungs import PACKED, make_trainee
from trainer.compare.strict import train_side_by_side
from trainer.float64 import float32_means_float64
from trainer.kernels.loss import cross_entropy_sum
from trainer.loader import ShardCheck, plan_step, read_steps
from trainer.model import load_model
from trainer.optim import make_optimizer
from trainer.prepare import Counts, prepare
from trainer.profile.padded import padded_steps
from trainer.segments import Segments
from trainer.step import accumulate, train_step

NAMES = ("chat.jsonl", "code.jsonl")
ROWS, EVAL_ROWS = weighted(random_rows(7, seed=0), seed=1), weighted(random_rows(3, seed=2), seed=3)
STEPS, ROWS_A_STEP = 4, 3


def shape_of(*, rows: int = 1, by_example: bool = False, sources: int = 0) -> Shape:
    return Shape(
        rows=rows,
        capacity=CAPACITY,
        max_segments=MAX_SEGMENTS,
        max_segment_len=CAPACITY,
        weighted=by_example,
        sources=sources,
        row_weights=True,
    )


def test_two_lines_of_weights_make_two_sums_of_which_the_first_has_the_gradient() -> None:
    torch.manual_seed(0)
    hidden, head = (torch.randn(9, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64))
    positions, targets = torch.tensor([0, 3, 3, 8, 0]), torch.tensor([2, 9, 10, 0, 0])
    weights = torch.tensor([[0.5, 2.0, 0.25, 1.0, 7.0], [1.0, 0.125, 3.0, 0.5, 7.0]], dtype=torch.float64)
    ours = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    found = cross_entropy_sum(*ours, positions, targets, 4, target_weights=weights)
    theirs = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    each = F.cross_entropy((theirs[0] @ theirs[1].t())[positions[:4]], targets[:4], reduction="none")
    expected = (weights[:, :4] * each).sum(dim=1)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-14)
    torch.autograd.backward(found[0])
    torch.autograd.backward(expected[0])
    for our, their in zip(ours, theirs, strict=True):
        assert torch.allclose(our.grad, their.grad, rtol=1e-13, atol=1e-15)  # type: ignore[arg-type]


# LONG: seven targets of 3, that count 0.5 six times and 2; SHORT: two of 30, that count 1 and 0.25. Σ w = 5 + 1.25, Σ w · ce = 15 + 37.5.
HEAVY = Example(ids=LONG.ids, mask=LONG.mask, weights=(1, *[0.5] * 6, 2))
LIGHT = Example(ids=SHORT.ids, mask=SHORT.mask, weights=(1, 1, 1, 0.25))
TOKEN = 52.5 / 6.25
EXAMPLE = (15 / 7 + 37.5 / 2) / (5 / 7 + 1.25 / 2)


class Costs(CostsItsId):
    """Two lines of weights as well."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        targets, count, weights = inputs[4], int(inputs[5]), inputs[6]
        return (weights[:, :count] * targets[:count] * self.scale).sum(dim=1)


@pytest.mark.parametrize(("weighting", "objective"), [("token", TOKEN), ("example", EXAMPLE)])
@pytest.mark.parametrize("rows", [[[HEAVY, SILENT, LIGHT]], [[HEAVY], [SILENT, LIGHT]]])
def test_a_step_by_hand(tmp_path: Path, weighting: str, objective: float, rows: list[list[Example]]) -> None:
    write_corpus(tmp_path, rows=rows)
    options = {"rows_per_step": len(rows), "loss_weighting": weighting}
    prepared = prepare(RunConfig(shards=str(tmp_path), model="none", **options))  # type: ignore[arg-type]
    plan = plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)
    check = ShardCheck(prepared.corpus, local_rank=0, local_world=1)
    shape = shape_of(by_example=weighting == "example")
    work = next(read_steps(iter([plan]), prepared.corpus, rank=0, shape=shape, pin=False, check=check))
    model = Costs()
    device = torch.device("cpu")
    sums = accumulate(model, [], work.passes, denominator=plan.denominator, reduce="pass", device=device)
    assert plan.supervised == 9
    assert float(sums[1]) / plan.loss_weight == pytest.approx(TOKEN, rel=1e-15)
    assert float(sums[0]) / plan.denominator == pytest.approx(objective, rel=1e-15)
    assert float(model.scale.grad) == pytest.approx(objective, rel=1e-15)  # type: ignore[arg-type]
    assert sum(batch.loss_weight for batch in work.passes) == 6.25


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_the_scale_of_all_weights_changes_nothing(tmp_path: Path, factor: float) -> None:
    def plan_of(rows: list[list[Example]], name: str) -> float:
        write_corpus(tmp_path / name, rows=rows)
        prepared = prepare(RunConfig(shards=str(tmp_path / name), model="none", rows_per_step=1))
        plan = plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)
        check = ShardCheck(prepared.corpus, local_rank=0, local_world=1)
        work = next(read_steps(iter([plan]), prepared.corpus, rank=0, shape=shape_of(), pin=False, check=check))
        model = Costs()
        accumulate(model, [], work.passes, denominator=plan.denominator, reduce="pass", device=torch.device("cpu"))
        return float(model.scale.grad)  # type: ignore[arg-type]

    scaled = [
        Example(ids=e.ids, mask=e.mask, weights=tuple(factor * w for w in e.weights or ())) for e in (HEAVY, LIGHT)
    ]
    assert plan_of([[HEAVY, LIGHT]], "a") == pytest.approx(plan_of([scaled], "b"), rel=1e-15)


def batches_of(folder: Path, shape: Shape) -> list[Batch]:
    corpus = open_corpus(folder)
    return [make_batch([corpus[n]], numbers=[n], weights=[True], shape=shape, pin=False) for n in range(len(corpus))]


def test_a_pass_has_each_targets_weight_and_what_is_optimised_by(tmp_path: Path) -> None:
    write_corpus(tmp_path, rows=ROWS)
    for by_example in (False, True):
        for row, batch in zip(ROWS, batches_of(tmp_path, shape_of(by_example=by_example)), strict=True):
            own = [w for example in row for w in example.counted if w]
            share = [1 / sum(e.mask) if by_example else 1.0 for e in row for target in e.mask if target]
            assert batch.target_weights is not None
            assert batch.target_weights[1, : batch.count].tolist() == own
            both = [w * s for w, s in zip(own, share, strict=True)]
            assert batch.target_weights[0, : batch.count].tolist() == both
            assert not batch.target_weights[:, batch.count :].any()
            assert batch.loss_weight == pytest.approx(sum(own), rel=1e-14)
            assert batch.target_weights.untyped_storage().data_ptr() == batch.buffer.untyped_storage().data_ptr()


def test_the_weights_change_nothing_else_of_a_pass(tmp_path: Path) -> None:
    write_corpus(tmp_path / "weighted", rows=ROWS)
    write_corpus(tmp_path / "plain", rows=random_rows(7, seed=0))
    plain_shape = Shape(rows=1, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY)
    pairs = zip(batches_of(tmp_path / "weighted", shape_of()), batches_of(tmp_path / "plain", plain_shape), strict=True)
    for one, plain in pairs:
        parts = [
            [
                b.input_ids,
                b.position_ids,
                b.positions,
                b.targets,
                b.segments.seq_idx,
                b.segments.cu_seqlens,
                b.segments.chunk_indices,
            ]
            for b in (one, plain)
        ]
        assert all(torch.equal(a, b) for a, b in zip(*parts, strict=True))
        inside = [*parts[0], one.target_weights]
        starts = [tensor.data_ptr() - one.buffer.data_ptr() for tensor in inside]  # type: ignore[union-attr]
        ends = sorted((at, at + tensor.nbytes) for at, tensor in zip(starts, inside, strict=True))  # type: ignore[union-attr]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
        assert all(start % 16 == 0 for start in starts)
        # Without weights nothing is added: the buffer is as long as it was.
        assert plain.target_weights is None
        assert one.buffer.numel() - plain.buffer.numel() == 2 * CAPACITY


def test_a_pass_without_room_for_weights_refuses_a_row_that_has_them(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, rows=ROWS)
    shape = Shape(rows=1, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY)
    with pytest.raises(ValueError, match="row 3 has weights, and the pass no place for them"):
        make_batch([corpus[3]], numbers=[3], weights=[True], shape=shape, pin=False)


def test_a_step_with_weights_asks_the_device_for_no_value(tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=ROWS)
    device = torch.device("meta")
    (batch, *_) = batches_of(tmp_path / "packed", shape_of())
    model = packed_model("qwen3", tmp_path).to(device)
    optimizer = make_optimizer(model, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    result = train_step(
        model, [], optimizer, [batch, batch], denominator=9.5, lr=1.0, clip=1.0, reduce="pass", device=device
    )
    assert result.loss_sum.device.type == "meta"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights")
    write_corpus(path / "packed", rows=ROWS, eval_rows=EVAL_ROWS, sources=NAMES)
    write_model(path / "tiny")
    return path


def chosen(folder: Path, out: str, **more: object) -> RunConfig:
    options: dict[str, object] = {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": STEPS,
        "rows_per_step": ROWS_A_STEP,
        "micro_rows": 2,
        "dtype": "fp64",
        "lr": 1e-30,  # so that every step is that of the first weights
        "log_every": 1,
        "check": "off",
        "out": str(folder / out),
        **more,
    }
    return RunConfig(**options)  # type: ignore[arg-type]


def lines(folder: Path, out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]


def model_of(folder: Path) -> nn.Module:
    return load_model(
        str(folder / "tiny"),
        init="random",
        seed=0,
        dtype=torch.float64,
        kernels="reference",
        device="cpu",
        vocab_at_least=VOCAB,
    )


def alone(model: nn.Module, example: Example) -> tuple[torch.Tensor, float, int]:
    """Of one example by itself: Σ weight · cross-entropy, Σ weight, and the number of targets; the shift and the weights written out."""
    ids = torch.tensor(example.ids)
    logits = model.logits(ids[None], torch.arange(len(ids))[None], Segments.from_lengths([len(ids)]))[0]
    each = F.cross_entropy(logits[:-1], ids[1:], reduction="none")
    weights = torch.tensor(example.counted[1:], dtype=torch.float64)
    return (weights * each).sum(), float(weights.sum()), sum(example.mask)


def by_hand(folder: Path, rows: list[list[Example]], *, by_example: bool) -> dict[str, object]:
    """What a step over these rows logs."""
    model = model_of(folder)
    with float32_means_float64():
        found = [alone(model, example) for row in rows for example in row]
        loss = sum(float(total.detach()) for total, _, _ in found) / sum(weight for _, weight, _ in found)
        share = [1 / targets if by_example else 1.0 for _, _, targets in found]
        objective = sum(s * total for s, (total, _, _) in zip(share, found, strict=True)) / sum(
            s * weight for s, (_, weight, _) in zip(share, found, strict=True)
        )
        assert isinstance(objective, torch.Tensor)
        objective.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    return {
        "loss": loss,
        **({"objective": objective.item()} if by_example else {}),
        "grad_norm": float(norm),
        "supervised_tokens": sum(targets for _, _, targets in found),
    }


def by_source(folder: Path, rows: list[tuple[int, list[Example]]]) -> dict[str, float]:
    """The loss of each source over rows, each with its number; example ids count MAX_SEGMENTS rows a batch of 16, one after the other."""
    model, sums, weights = model_of(folder), dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
    corpus = open_corpus(folder / "packed")
    with torch.no_grad(), float32_means_float64():
        for number, row in rows:
            for place, example in enumerate(row):
                total, weight, _ = alone(model, example)
                name = NAMES[int(corpus[number].example_ids[place]) % len(NAMES)]
                sums[name] += float(total)
                weights[name] += weight
    return {name: sums[name] / weights[name] for name in NAMES if weights[name]}


@pytest.mark.parametrize("weighting", ["token", "example"])
def test_a_run_logs_and_optimises_what_examples_one_by_one_make(folder: Path, weighting: str) -> None:
    assert run(chosen(folder, weighting, loss_weighting=weighting)) == 0
    order = Order(rows=len(ROWS), rows_per_step=ROWS_A_STEP, positions=STEPS * ROWS_A_STEP, seed=0)
    logged = [line for line in lines(folder, weighting) if "loss" in line]
    for step, line in enumerate(logged):
        numbers = [int(row) for row in order.step(step).rows]
        expected = by_hand(folder, [ROWS[number] for number in numbers], by_example=weighting == "example")
        assert line["grad_norm"] == pytest.approx(expected.pop("grad_norm"), rel=1e-6)  # a float32
        assert {key: line[key] for key in expected} == pytest.approx(expected, rel=1e-9)
        assert ("objective" in line) == (weighting == "example")
        of_sources = by_source(folder, [(number, ROWS[number]) for number in numbers])
        assert line["loss_by_source"] == pytest.approx(of_sources, rel=1e-9)
    (last,) = [line for line in lines(folder, weighting) if "eval_loss" in line]
    assert last["eval_loss"] == pytest.approx(by_hand(folder, EVAL_ROWS, by_example=False)["loss"], rel=1e-9)
    assert last["eval_supervised_tokens"] == sum(sum(example.mask) for row in EVAL_ROWS for example in row)


def test_eval_rows_without_weights_beside_train_rows_with_them_count_each_target_once(
    folder: Path, tmp_path: Path
) -> None:
    plain = random_rows(3, seed=2)
    write_corpus(tmp_path / "plain", rows=plain)
    assert run(chosen(folder, "other-eval", eval_shards=str(tmp_path / "plain"), steps=1)) == 0
    (last,) = [line for line in lines(folder, "other-eval") if "eval_loss" in line]
    assert last["eval_loss"] == pytest.approx(by_hand(folder, plain, by_example=False)["loss"], rel=1e-9)


def test_two_ranks_make_the_same_steps(folder: Path) -> None:
    options = {"loss_weighting": "example", "lr": 1e-2}
    assert run(chosen(folder, "one", **options)) == 0
    config = chosen(folder, "two", **options)
    given = {
        "shards": config.shards, "model": config.model, "init": "random", "steps": STEPS, "rows-per-step": ROWS_A_STEP,
        "micro-rows": 2, "dtype": "fp64", "lr": "1e-2", "log-every": 1, "check": "off", "out": config.out,
        "loss-weighting": "example",
    }  # fmt: skip
    result = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "trainer", "run", *(str(word) for key, value in given.items() for word in (f"--{key}", value))),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    kept = {
        "loss": 1e-9,
        "objective": 1e-9,
        "grad_norm": 1e-6,
        "eval_loss": 1e-9,
        "supervised_tokens": 0,
        "loss_by_source": 1e-9,
    }
    for ours, theirs in zip(lines(folder, "two"), lines(folder, "one"), strict=True):
        assert ours.keys() == theirs.keys()
        for key in kept.keys() & ours.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=kept[key]), key


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_losses(folder: Path) -> None:
    config = chosen(folder, "whole", lr=1e-2, save_every=2)
    assert run(config) == 0
    before = lines(folder, "whole")
    shutil.rmtree(folder / "whole" / "checkpoints" / "step-000004")
    assert run(config) == 0
    kept = ("step", "loss", "grad_norm", "eval_loss")
    assert [{k: line.get(k) for k in kept} for line in lines(folder, "whole")] == [
        {k: line.get(k) for k in kept} for line in before
    ]


def test_weights_of_1_train_bit_for_bit_as_no_weights_do(tmp_path: Path) -> None:
    rows = random_rows(7, seed=0)
    ones = [[Example(ids=e.ids, mask=e.mask, weights=(1.0,) * len(e.ids)) for e in row] for row in rows]
    write_corpus(tmp_path / "plain/packed", rows=rows)
    write_corpus(tmp_path / "ones/packed", rows=ones)
    for name in ("plain", "ones"):
        write_model(tmp_path / name / "tiny")
        for weighting in ("token", "example"):
            options = {"lr": 1e-2, "dtype": "fp32", "loss_weighting": weighting, "eval_every": 0}
            assert run(chosen(tmp_path / name, weighting, **options)) == 0
    kept = {"loss", "objective", "grad_norm", "step"}
    for weighting in ("token", "example"):
        plain, with_ones = (
            [{k: v for k, v in line.items() if k in kept} for line in lines(tmp_path / name, weighting)]
            for name in ("plain", "ones")
        )
        assert plain == with_ones


def test_blame_tells_each_examples_loss_by_its_weights(folder: Path) -> None:
    assert run(chosen(folder, "blamed", save_every=1)) == 0
    found = blame(folder / "blamed", step=2, gradients=True)
    logged = next(line for line in lines(folder, "blamed") if line.get("step") == 2)
    assert found.loss == pytest.approx(logged["loss"], rel=1e-12)
    corpus, model = open_corpus(folder / "packed"), model_of(folder)
    with torch.no_grad(), float32_means_float64():
        for one in found.examples:
            ids = corpus[one.measured.row].example_ids.tolist()
            total, weight, targets = alone(model, ROWS[one.measured.row][ids.index(one.measured.example)])
            assert one.measured.loss_sum == pytest.approx(float(total), rel=1e-9)
            assert (one.measured.target_weight, one.measured.targets) == (pytest.approx(weight, rel=1e-12), targets)
    alone_norms = []
    for gradient in found.gradients:
        by_itself = by_hand(folder, [ROWS[gradient.row]], by_example=False)["grad_norm"]
        step_weight = sum(w for row in {g.row for g in found.gradients} for e in ROWS[row] for w in e.counted)
        own = sum(w for e in ROWS[gradient.row] for w in e.counted)
        alone_norms.append(by_itself * own / step_weight)  # type: ignore[operator]
    assert [gradient.norm for gradient in found.gradients] == pytest.approx(alone_norms, rel=1e-6)


@pytest.mark.parametrize("weighting", ["token", "example"])
def test_every_rung_of_a_comparison_trains_by_the_weights(tmp_path: Path, weighting: str) -> None:
    config = a_config(
        tmp_path, weighted(random_rows(9, seed=0), seed=1), model=HYBRID, dtype="fp64", loss_weighting=weighting
    )
    with a_setting(config) as (setting, check):
        found = train_side_by_side(setting, list(ladder(config)), check=check, advance=lambda _: None)
    assert found.equal, found.parted


def test_padded_batches_beside_the_rows_have_the_weights_too(folder: Path) -> None:
    prepared = prepare(chosen(folder, "profiled"))
    plans = [plan_step(prepared, Counts.of(prepared.corpus), step, world=1) for step in range(2)]
    works = list(padded_steps(plans, prepared.corpus, seed=0, weighted=False, pin=False))
    assert sum(work.plan.loss_weight for work in works) == pytest.approx(sum(plan.loss_weight for plan in plans))
    for work in works:
        assert sum(batch.loss_weight for batch in work.passes) == pytest.approx(work.plan.loss_weight)


def test_held_out_examples_count_what_their_weights_say(tmp_path: Path) -> None:
    config = a_config(tmp_path, ROWS, eval_rows=EVAL_ROWS, model="qwen3")
    with a_setting(config, most_held_out=10_000) as (setting, _):
        trainee = make_trainee(PACKED, setting, config)
        found = held_out_loss(trainee.model, setting)
        own = {name: each.to_local() for name, each in trainee.model.model.named_parameters()}
        stock = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(setting.base.model), attn_implementation="eager"
        ).double()
        with torch.no_grad():
            for name, parameter in stock.named_parameters():
                parameter.copy_(own[name])
            view = SimpleNamespace(logits=lambda ids, *_: stock(input_ids=ids, use_cache=False).logits)
            each = [alone(view, example) for row in EVAL_ROWS for example in row]  # type: ignore[arg-type]
    assert found == pytest.approx(sum(float(total) for total, _, _ in each) / sum(w for _, w, _ in each), rel=2e-6)


def test_a_collator_for_transformers_refuses_rows_with_weights_that_its_loss_would_leave_out(
    folder: Path, tmp_path: Path
) -> None:
    from tests.trainer.test_adapters import QWEN3, stock

    rows = PackedRows(folder / "packed")
    row = rows[2]
    assert row.loss_weights is not None
    counted = [w for example in ROWS[2] for w in example.counted]
    assert row.loss_weights.tolist()[: len(counted)] == counted
    model = stock(QWEN3)
    isolate(model, kernels="reference")
    with pytest.raises(UserError, match="targets have weights"):
        Collator(model, rows)
    write_corpus(tmp_path / "plain", rows=random_rows(3, seed=0))
    collate = Collator(model, PackedRows(tmp_path / "plain"))
    with pytest.raises(UserError, match="targets have weights"):
        collate([row])
    import pyarrow as pa

    columns = pa.ipc.open_file(folder / "packed/train/shard-00000.arrow").read_all().slice(0, 1).to_pylist()[0]
    with pytest.raises(UserError, match="targets have weights"):
        collate([{name: np.array(value) for name, value in columns.items()}])
    assert PackedRows(tmp_path / "plain")[0].loss_weights is None
