"""The router loss against slow sums in float64, the library's function, and the library's own model run an example at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from packer.errors import UserError
from packer.shards import Corpus
from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, VOCAB, random_rows, write_corpus, write_model
from tests.trainer.tiny_models import CONFIGS, write_config
from trainer import RunConfig, run
from trainer.batch import Batch, Shape
from trainer.float64 import float32_means_float64
from trainer.loader import read_pass
from trainer.model import PackedModel, load_model
from trainer.routers import balance_sum
from trainer.step import accumulate, loss_of

EXPERTS, PER_TOKEN = 4, 2
MODELS: dict[str, dict[str, object]] = {
    "qwen3_moe": {
        **CONFIGS["qwen3"],
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "num_experts_per_tok": PER_TOKEN,
        "moe_intermediate_size": 16,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_5_moe": CONFIGS["qwen3_5_moe"],
}


def slow(layers: list[np.ndarray], rows: list[list[int]]) -> float:
    """layers: [slots, E] logits each. rows: the slots of each row's tokens. As it is defined, a token and an expert at a time."""
    total = 0.0
    for slots in rows:
        for logits in layers:
            sent, meant = np.zeros(logits.shape[1]), np.zeros(logits.shape[1])
            for slot in slots:
                raised = np.exp(logits[slot] - logits[slot].max())
                meant += raised / raised.sum() / len(slots)
                for expert in np.argsort(-logits[slot])[:PER_TOKEN]:
                    sent[expert] += 1 / len(slots)
            total += logits.shape[1] * float((sent * meant).sum()) / len(layers)
    return total


def random_logits(seed: int, layers: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2 * 10, EXPERTS)) for _ in range(layers)]


def test_it_is_what_it_is_defined_as_over_tokens_alone() -> None:
    logits = random_logits(0, 3)
    rows = [[0, 1, 2, 5, 6], [10, 11, 12, 13, 14, 15, 16, 18]]  # the others are pads
    weights = torch.zeros(2, 10, dtype=torch.float64)
    for slots in rows:
        weights.view(-1)[slots] = 1 / len(slots)
    found = balance_sum([torch.tensor(each) for each in logits], weights, per_token=PER_TOKEN)
    assert float(found) == pytest.approx(slow(logits, rows), rel=1e-13)
    for each in logits:
        each[[3, 4, 7, 8, 9, 17, 19]] = 1e6  # what pads are sent to changes nothing
    assert float(balance_sum([torch.tensor(each) for each in logits], weights, per_token=PER_TOKEN)) == float(found)


def test_of_one_layer_it_is_the_librarys() -> None:
    (logits,) = (torch.tensor(each) for each in random_logits(1, 1))
    mask = torch.tensor([[1.0] * 7 + [0.0] * 3])
    theirs = load_balancing_loss_func((logits[:10],), EXPERTS, PER_TOKEN, mask)
    assert float(balance_sum((logits[:10],), mask.double() / 7, per_token=PER_TOKEN)) == pytest.approx(float(theirs))


def test_an_even_router_costs_as_many_as_it_takes_experts_and_one_that_sends_all_to_one_the_number_of_experts() -> None:
    weights = torch.full((1, EXPERTS), 1 / EXPERTS)
    even = torch.eye(EXPERTS) * 1e-6  # each token to another expert, all nearly alike
    assert float(balance_sum((even,), weights, per_token=1)) == pytest.approx(1.0, rel=1e-5)
    uneven = torch.zeros(EXPERTS, EXPERTS)
    uneven[:, 2] = 50.0
    assert float(balance_sum((uneven,), weights, per_token=1)) == pytest.approx(EXPERTS, rel=1e-5)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    rows = random_rows(5, seed=2)
    rows = [[replace(e, ids=tuple(i % 61 for i in e.ids)) for e in row] for row in rows]  # of tiny_models' vocabulary
    return write_corpus(tmp_path_factory.mktemp("moe") / "packed", rows=rows)


def batch_of(corpus: Corpus, rows: list[int], weights: list[bool]) -> Batch:
    shape = Shape(rows=len(rows), capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY, balanced=True)
    return read_pass(corpus, np.array(rows), np.array(weights), shape=shape, pin=False)


def in_float64(name: str, folder: Path) -> PackedModel:
    # Tried out in float32: its experts' grouped product knows no float64 outside of float32_means_float64.
    return load_model(
        write_config(folder / name, MODELS[name]),
        init="random",
        seed=0,
        dtype=torch.float32,
        kernels="reference",
        device="cpu",
        vocab_at_least=61,
    ).double()


def one_at_a_time(name: str, folder: Path, packed: PackedModel, corpus: Corpus, rows: list[int]) -> Tensor:
    """The rows' router losses, summed, from the library's own model run on each example by itself."""
    config = AutoConfig.from_pretrained(folder / name)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
    model.load_state_dict(packed.model.state_dict())
    one_at_a_time.model = model  # type: ignore[attr-defined]  # whose gradients are looked at
    total = torch.zeros((), dtype=torch.float64)
    for number in rows:
        row = corpus[number]
        parts: list[tuple[Tensor, ...]] = []
        for place in range(row.num_examples):
            start, end = row.cu_seqlens[place : place + 2].tolist()
            ids = torch.tensor(row.input_ids[start:end].astype(np.int64))[None]
            parts.append(model(input_ids=ids, use_cache=False, output_router_logits=True).router_logits)
        for layer in zip(*parts, strict=True):
            logits = torch.cat(layer)
            sent = torch.zeros(EXPERTS, dtype=torch.float64)
            for token in logits.tolist():
                for expert in sorted(range(EXPERTS), key=lambda expert: -token[expert])[:PER_TOKEN]:
                    sent[expert] += 1 / len(logits)
            total = total + EXPERTS * (sent * logits.softmax(-1).mean(0)).sum() / len(parts[0])
    return total


@pytest.mark.parametrize("name", MODELS)
def test_a_models_router_loss_and_its_gradient_are_those_of_its_examples_alone(
    name: str, tmp_path: Path, corpus: Corpus
) -> None:
    packed = in_float64(name, tmp_path)
    batch = batch_of(corpus, [1, 4, 2], [True, True, False])
    with float32_means_float64():
        loss = loss_of(packed, batch)
        expected = one_at_a_time(name, tmp_path, packed, corpus, [1, 4])
        assert float(loss[2].detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
        torch.autograd.backward(loss[2])
        torch.autograd.backward(expected)
    theirs = dict(one_at_a_time.model.named_parameters())  # type: ignore[attr-defined]
    compared = 0
    for path, parameter in packed.model.named_parameters():
        ours, other = parameter.grad, theirs[path].grad
        if other is None:
            assert ours is None or not ours.any(), path
            continue
        assert ours is not None, path
        torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-10, msg=path)
        compared += 1
    assert compared > 10


def test_neither_passes_nor_filling_change_a_steps_gradient(tmp_path: Path, corpus: Corpus) -> None:
    found = []
    for passes in ([[0, 1], [2, 3]], [[0], [1], [2], [3]], [[3, 2, 1], [0, 0, 0]]):
        model = in_float64("qwen3_moe", tmp_path)
        seen: set[int] = set()
        batches = []
        for rows in passes:
            weights = [row not in seen and not seen.add(row) for row in rows]  # type: ignore[func-returns-value]
            batches.append(batch_of(corpus, rows, weights))
        with float32_means_float64():
            sums = accumulate(
                model, [], batches, denominator=50, reduce="pass", device=torch.device("cpu"), balance=0.3 / 4
            )
        found.append((sums, torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])))
    for sums, gradient in found[1:]:
        torch.testing.assert_close(sums, found[0][0], rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-9, atol=1e-14)


def test_the_rest_of_the_loss_is_what_it_is_without(tmp_path: Path, corpus: Corpus) -> None:
    model = in_float64("qwen3_moe", tmp_path).float()
    balanced = batch_of(corpus, [1, 2], [True, True])
    shape = Shape(rows=2, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY)
    plain = read_pass(corpus, np.array([1, 2]), np.array([True, True]), shape=shape, pin=False)
    assert torch.equal(loss_of(model, balanced)[:2], loss_of(model, plain).expand(2))


def test_a_step_with_a_router_loss_asks_the_device_for_no_value(tmp_path: Path, corpus: Corpus) -> None:
    device = torch.device("meta")
    model = (
        in_float64("qwen3_5_moe", tmp_path).bfloat16().to(device)
    )  # experts' grouped product knows nothing else there
    batch = batch_of(corpus, [1, 2], [True, True])
    sums = accumulate(model, [], [batch], denominator=9, reduce="pass", device=device, balance=0.1)
    assert sums.shape == (3,)


def options(folder: Path, out: str, **more: object) -> RunConfig:
    values: dict[str, object] = {
        "shards": str(folder / "packed"),
        "model": str(folder / "moe"),
        "init": "random",
        "steps": 12,
        "rows_per_step": 3,
        "lr": 2e-2,
        "log_every": 1,
        "check": "off",
        "out": str(folder / out),
        **more,
    }
    return RunConfig(**values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moe_run")
    write_corpus(path / "packed", rows=random_rows(6, seed=0))
    write_config(path / "moe", {**MODELS["qwen3_moe"], "vocab_size": VOCAB + 3})
    return path


def lines(folder: Path, out: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_makes_its_router_even_where_it_is_asked_to(folder: Path) -> None:
    assert run(options(folder, "off")) == 0
    assert not {"router_aux_loss", "objective"} & {name for line in lines(folder, "off") for name in line}
    for checkpointing in ("none", "full"):
        chosen = options(folder, checkpointing, router_aux_loss=0.5, activation_checkpointing=checkpointing)
        assert run(chosen) == 0
    found = lines(folder, "none")
    assert found[0]["loss"] == lines(folder, "off")[0]["loss"]
    for line in found:
        assert line["objective"] == pytest.approx(line["loss"] + 0.5 * line["router_aux_loss"], rel=1e-12)
    evenness = [line["router_aux_loss"] for line in found]
    assert PER_TOKEN <= evenness[-1] < evenness[0]
    assert [line["router_aux_loss"] for line in lines(folder, "full")] == pytest.approx(evenness, rel=1e-5)


def test_a_model_without_a_router_and_a_compiled_one_are_refused(folder: Path) -> None:
    write_model(folder / "dense")
    with pytest.raises(UserError, match="--router-aux-loss: Qwen3_5ForCausalLM has no router") as error:
        run(options(folder, "dense-run", model=str(folder / "dense"), router_aux_loss=0.1))
    assert "mixtures of experts" in error.value.hint
    with pytest.raises(UserError, match="--compile and --router-aux-loss were both given"):
        options(folder, "x", router_aux_loss=0.1, compile=True)
    with pytest.raises(UserError, match=r"--router-aux-loss -0\.1: less than 0"):
        options(folder, "x", router_aux_loss=-0.1)
