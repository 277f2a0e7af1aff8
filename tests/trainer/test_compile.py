"""Compiled blocks: the same losses, graphs that are made once, names that stay, and an error where nothing can be compiled."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from packer.errors import UserError
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from tests.trainer.tiny_models import CONFIGS, VOCABULARY, packed_model, write_config
from trainer import RunConfig, parallel, run
from trainer.float64 import float32_means_float64
from trainer.model import PackedModel, load_model
from trainer.parallel import checkpoint_blocks, compile_blocks
from trainer.segments import Segments

T = 128
CUTS = ([60, 68], [128], [10, 20, 30, 68], [1, 2, 3, 4, 118])
HALF_EPS = 2.0**-24  # what one operation in float32 is off by at most, as a share of its result


@pytest.fixture(autouse=True)
def _afresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of other tests are forgotten. The quick tests leave out the last stage, machine code: it takes a minute a model here."""
    torch._dynamo.reset()
    counters.clear()
    if request.node.get_closest_marker("full") is None:
        monkeypatch.setattr(parallel, "_BACKEND", "aot_eager")


def gradients(model: PackedModel, cut: list[int], seed: int) -> tuple[float, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    segments = Segments.from_lengths(cut, max_segments=8, max_segment_len=T)
    ids = torch.randint(1, VOCABULARY, (1, T), generator=generator)
    places = torch.cat([torch.arange(length) for length in cut])[None]
    model.zero_grad()
    loss = model(ids, places, segments, torch.arange(T - 1), ids[0, 1:].clone(), T - 1)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def distance(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    return float((gradient.double() - exact).norm() / exact.norm())


def exact_gradients(weights: dict[str, torch.Tensor], name: str, folder: Path) -> list[tuple[torch.Tensor, float]]:
    """For each of the CUTS the gradient in float64, and how far it may be from one in float32, whatever CPU made that.

    That depends on the model: where a gated delta layer is ill-conditioned, the last bit of a weight already moves the gradient by 4e-5. So it is
    measured: every weight is moved by half an eps, the largest effect of three draws is kept, and the 64 or so operations that a value passes through
    in two layers, forward and backward, are allowed to add up as independent errors do.
    """
    moved = []
    for seed in (None, 0, 1, 2):
        model = packed_model(name, folder, torch.float64)
        model.load_state_dict(weights)
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            for weight in model.parameters():
                signs = torch.randint(0, 2, weight.shape, generator=generator, dtype=torch.float64) * 2 - 1
                weight.data.mul_(1 + HALF_EPS * signs)
        with float32_means_float64():
            moved.append([gradients(model, cut, number)[1] for number, cut in enumerate(CUTS)])
    exact, *others = moved
    assert exact[0].dtype == torch.float64
    return [
        (each, math.sqrt(64) * max(distance(other[number], each) for other in others))
        for number, each in enumerate(exact)
    ]


def compare(name: str, folder: Path, checkpointing: str) -> None:
    """Compiled blocks are as near to the gradient in float64 as the same blocks not compiled: a compiler may change the order of a sum, and no more."""
    eager, compiled = packed_model(name, folder), packed_model(name, folder)
    exact = exact_gradients(eager.state_dict(), name, folder)
    names = list(compiled.state_dict())
    compile_blocks(compiled.blocks)
    checkpoint_blocks(compiled.blocks, checkpointing)  # type: ignore[arg-type]
    graphs = []
    for seed, cut in enumerate(CUTS):
        (loss, gradient), (its_loss, its_gradient) = (gradients(model, cut, seed) for model in (eager, compiled))
        assert its_loss == pytest.approx(loss, rel=T * HALF_EPS)  # a sum of T terms
        expected, rounding = exact[seed]
        assert rounding < 1e-3, "a gradient that rounding moves so far shows nothing"
        assert distance(gradient, expected) < rounding
        assert distance(its_gradient, expected) < rounding
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] >= 2, "nothing was compiled"
    assert graphs == graphs[:1] * len(CUTS)
    assert list(compiled.state_dict()) == names


@pytest.mark.parametrize(
    ("name", "checkpointing"), [("qwen3", "none"), ("qwen3_5", "full"), ("lfm2", "none"), ("falcon_h1", "full")]
)
def test_compiled_blocks_give_the_same_gradients_and_one_set_of_graphs(
    tmp_path: Path, name: str, checkpointing: str
) -> None:
    compare(name, tmp_path, checkpointing)


@pytest.mark.full
@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "lfm2", "bamba", "falcon_h1"])
def test_machine_code_gives_the_same_gradients_and_one_set_of_graphs(tmp_path: Path, name: str) -> None:
    compare(name, tmp_path, "none")


@pytest.mark.parametrize(
    "name", ["qwen3_5", "lfm2", *(pytest.param(name, marks=pytest.mark.full) for name in ("qwen3", "bamba"))]
)
def test_layers_of_one_kind_share_their_graphs(tmp_path: Path, name: str) -> None:
    """With a graph a layer, a model of many layers would take hours to compile."""
    made = {}
    for layers in (2, 6):
        torch._dynamo.reset()
        counters.clear()
        config = {**CONFIGS[name], "num_hidden_layers": layers}
        if isinstance(kinds := config.get("layer_types"), list):
            config["layer_types"] = kinds * (layers // 2)
        if "attn_layer_indices" in config:
            config["attn_layer_indices"] = list(range(1, layers, 2))
        source = write_config(tmp_path / str(layers), config)
        model = load_model(
            source, init="random", seed=0, dtype=torch.float32, kernels="auto", device="cpu", vocab_at_least=VOCABULARY
        )
        compile_blocks(model.blocks)
        gradients(model, CUTS[0], 0)
        made[layers] = counters["stats"]["unique_graphs"]
    assert made[2] == made[6] > 0


@pytest.mark.parametrize(
    ("weighting", "checkpointing"),
    [pytest.param("token", "full", marks=pytest.mark.full), ("example", "selective")],
)
def test_a_compiled_run_logs_the_same_losses_and_no_recompiles(
    tmp_path: Path, weighting: str, checkpointing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(9, seed=0), eval_rows=random_rows(3, seed=1))
    source = write_model(tmp_path / "tiny")
    options = {"shards": str(tmp_path / "packed"), "model": str(source), "init": "random", "steps": 5, "lr": 1e-2}
    options |= {"rows_per_step": 2, "log_every": 1, "eval_every": 2, "loss_weighting": weighting}
    options["activation_checkpointing"] = checkpointing
    found = {}
    for compiled in (False, True):
        out = tmp_path / f"run-{compiled}"
        assert run(RunConfig(**options, out=str(out), compile=compiled)) == 0  # type: ignore[arg-type]
        found[compiled] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert counters["stats"]["unique_graphs"] > 3
    said = capsys.readouterr().out
    assert said.count("warm-up first pass: kernels are compiled") == 1
    assert said.index("warm-up done in") < said.rindex("step 1/5")
    for eager, compiled in zip(found[False], found[True], strict=True):
        for name in ("loss", "eval_loss", "objective"):
            # Adam divides by the size of a gradient, so its rounding grows a little with every step.
            assert compiled.get(name, 0.0) == pytest.approx(eager.get(name, 0.0), rel=1e-4)
        assert compiled.get("recompiles", 0) == 0


def test_a_graph_made_after_the_first_step_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import loop

    original, made = loop.train_step, iter(range(100))

    def growing(*args: object, **options: object) -> object:
        if next(made) == 2:
            torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(3))
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "train_step", growing)
    write_corpus(tmp_path / "packed", rows=random_rows(9, seed=0))
    source = write_model(tmp_path / "tiny")
    config = RunConfig(
        shards=str(tmp_path / "packed"), model=str(source), init="random", steps=4, log_every=1, out=str(tmp_path / "o")
    )
    assert run(config) == 0
    lines = [json.loads(line) for line in (tmp_path / "o" / "metrics.jsonl").read_text().splitlines()]
    assert [line["recompiles"] for line in lines] == [0, 0, 1, 1]


def test_a_missing_compiler_is_an_error_before_the_model_is_sharded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(parallel, "_BACKEND", "inductor")
    write_corpus(tmp_path / "packed", rows=random_rows(3, seed=0))
    source = write_model(tmp_path / "tiny")
    config = RunConfig(
        shards=str(tmp_path / "packed"), model=str(source), init="random", compile=True, out=str(tmp_path / "o")
    )
    # monkeypatch would take the second away when it undoes it, and with it the compiler from every test after this one.
    without = inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True})
    with without, pytest.raises(UserError, match="--compile: nothing can be compiled here"):
        run(config)


def test_code_that_changes_from_call_to_call_is_an_error_and_not_left_uncompiled(tmp_path: Path) -> None:
    model = packed_model("qwen3", tmp_path)
    block = model.blocks[0]
    original, calls = block.forward, [0]

    def changing(*args: object, **options: object) -> object:
        calls[0] += 1
        return original(*args, **options) if calls[0] > -1 else None

    block.forward = changing
    compile_blocks(model.blocks)

    def train() -> None:
        with parallel.compiling():
            for seed in range(30):
                gradients(model, CUTS[0], seed)

    with pytest.raises(UserError, match="--compile: the model cannot be compiled"):
        train()


def test_fp64_is_not_compiled() -> None:
    with pytest.raises(UserError, match="--compile and --dtype fp64"):
        RunConfig(shards="x", compile=True, dtype="fp64")
