"""`trainer profile` on a real model and real rows: what it counts is right, what is planted is found, and it leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from tests.support import SAMPLE, TINY, run_module, write_jsonl
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import loader, loop, parallel
from trainer.cli import main
from trainer.isolate_delta import SegmentedDelta
from trainer.model import PackedModel
from trainer.profile import annotate, collect

Report = dict[str, Any]
Profile = Callable[..., Report]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small rows and a model of one gated-delta and one attention layer."""
    folder = tmp_path_factory.mktemp("profile")
    write_corpus(folder / "packed", rows=random_rows(9, seed=0))
    write_model(folder / "model")
    return folder


@pytest.fixture
def profile(place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Profile:
    """profile("--steps", "1") runs the command in this process and reads its JSON."""
    monkeypatch.setenv("KINETO_LOG_LEVEL", "7")  # what the command sets stays no longer than the test
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")

    def run(*arguments: str) -> Report:
        command = ["profile", "--shards", str(place / "packed"), "--model", str(place / "model"), "--init", "random"]
        command += ["--no-tokenizer-check", "--rows-per-step", "2", "--steps", "2", "--warm-up", "1", "--json"]
        main([*command, *arguments], standalone_mode=False)  # of an option that is given twice the last counts
        return json.loads(capfd.readouterr().out)  # type: ignore[no-any-return]

    return run


class Working(TorchDispatchMode):
    """Counts what the dispatcher is asked for: an independent count of a step's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not func.is_view and func.namespace == "aten":
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_the_report_has_the_fields_that_are_promised_and_they_agree(profile: Profile) -> None:
    found = profile()
    assert {
        "step_s",
        "device_busy_s",
        "enqueue_s",
        "data_wait_s",
        "communication_s",
        "launches_per_step",
        "ops_per_useful_token",
        "syncs",
        "verdict",
        "advice",
    } <= found.keys()
    about = found["about"]
    assert about["slots"] == 128
    assert found["ops_per_useful_token"] == pytest.approx(found["launches_per_step"] / about["useful_tokens"])
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["verdict"] in {
        f"{name}-bound" for name in ("launch", "compute", "memory-bandwidth", "data", "padding")
    }
    assert found["share"] == pytest.approx(max(found["shares"].values()))
    assert 0 < found["device_busy_s"] <= found["step_under_profiler_s"]
    assert sum(use["launches"] for use in found["layers"]) == pytest.approx(found["launches_per_step"])
    assert sum(use["launches"] for use in found["phases"]) == pytest.approx(found["launches_per_step"], rel=0.02)
    assert {use["layer"] for use in found["layers"]} >= {
        "gated delta kernel",
        "convolution kernel",
        "Qwen3_5GatedDeltaNet",
        "Qwen3_5Attention",
        "Qwen3_5MLP",
        "Qwen3_5RMSNorm",
        "Embedding",
        "loss",
        "optimiser",
    }
    rest = next((use["launches"] for use in found["layers"] if use["layer"] == "rest of the model"), 0)
    assert rest < 0.05 * found["launches_per_step"]  # next to everything has a layer, backward included
    assert [use["phase"] for use in found["phases"]] == ["data", "forward", "loss", "backward", "optimiser"]
    assert found["syncs"] == []
    assert found["compiled"] == []


def test_operations_are_those_that_the_dispatcher_is_asked_for(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    real = loop.train_step

    def counted(*args: object, **kwargs: object) -> object:
        with Working() as working:
            result = real(*args, **kwargs)  # type: ignore[arg-type]
        made = [
            name for name in working.names if not name.startswith(("aten::empty", "aten::new_empty", "aten::_local"))
        ]
        steps.append(len(made))
        return result

    launches = profile("--rows-per-step", "1")["launches_per_step"]
    monkeypatch.setattr(loop, "train_step", counted)
    profile("--rows-per-step", "1")
    # The two do not see alike: the mode counts a mean as one operation, which on a CPU is a sum and a division, and a norm of many tensors too.
    assert launches == pytest.approx(sum(steps[-2:]) / 2, rel=0.15)


def test_a_planted_wait_is_found_in_each_layer_with_its_line(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, backward = PackedModel.forward, torch.autograd.backward
    strength = SegmentedDelta.strength

    def in_forward(self: PackedModel, *args: Any, **kwargs: Any) -> Tensor:
        _read_back(args[0])
        return forward(self, *args, **kwargs)

    def in_layer(self: SegmentedDelta, logits: Tensor) -> Tensor:
        _read_back(logits)
        logits.nonzero()
        return strength(self, logits)

    def in_backward(loss: Tensor) -> None:
        loss.register_hook(_read_back)
        backward(loss)

    monkeypatch.setattr(PackedModel, "forward", in_forward)
    monkeypatch.setattr(SegmentedDelta, "strength", in_layer)
    monkeypatch.setattr(torch.autograd, "backward", in_backward)
    lines = {each["where"]: each["count"] for each in profile()["syncs"]}
    here = f"tests/trainer/profile/{Path(__file__).name}"
    # Two passes a step, one gated-delta layer: 2 of the pass, 2 of the layer, 2 of the backward pass; and what the layer does besides.
    assert lines.pop(f"{here}:{_read_back.__code__.co_firstlineno + 2} in _read_back") == 6
    assert lines.pop(f"{here}:{in_layer.__code__.co_firstlineno + 2} in in_layer") == 2
    assert lines == {}


def _read_back(x: Tensor) -> None:
    """Waits for the device."""
    x.sum().item()


def test_a_slow_loader_is_found(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loader.read_pass
    pause = max(
        0.4, 2 * profile()["about"]["plain_step_s"]
    )  # two passes take longer to read than a step to make, however slow this machine

    def slow(*args: Any, **kwargs: Any) -> object:
        time.sleep(pause)
        return real(*args, **kwargs)

    monkeypatch.setattr(loader, "read_pass", slow)
    found = profile()
    assert found["verdict"] == "data-bound"
    assert found["about"]["read_s"] >= 2 * pause
    assert found["data_wait_s"] > pause
    assert "rows come too late" in found["advice"][0]["text"]


def test_padded_batches_of_the_same_examples_hold_more_slots_and_as_many_tokens(profile: Profile) -> None:
    packed, padded = profile("--steps", "3"), profile("--steps", "3", "--padded")
    assert padded["about"]["useful_tokens"] == pytest.approx(packed["about"]["useful_tokens"], rel=0.3)
    assert padded["about"]["padding"] > packed["about"]["padding"]


def test_activations_computed_again_are_seen(profile: Profile) -> None:
    plain, again = profile(), profile("--activation-checkpointing", "full")
    launches = [{use["phase"]: use["launches"] for use in found["phases"]} for found in (plain, again)]
    assert launches[1]["forward"] == launches[0]["forward"]
    # The blocks' forward is made again in backward, up to the last thing that backward wants of it.
    assert 0.6 < (launches[1]["backward"] - launches[0]["backward"]) / launches[0]["forward"] < 1
    assert plain["recompute_s"] == 0 < again["recompute_s"]
    layers = [{use["layer"]: use["launches"] for use in found["layers"]} for found in (plain, again)]
    assert layers[1]["gated delta kernel"] > layers[0]["gated delta kernel"]
    assert layers[1]["optimiser"] == layers[0]["optimiser"]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_a_compiled_step_is_profiled_by_its_blocks_and_compiles_nothing_more(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(parallel, "_BACKEND", backend)
    strength = SegmentedDelta.strength

    def in_layer(self: SegmentedDelta, logits: Tensor) -> Tensor:
        logits.nonzero()
        return strength(self, logits)

    monkeypatch.setattr(SegmentedDelta, "strength", in_layer)
    found = profile("--compile")
    assert [each["count"] for each in found["syncs"]] == [2]
    assert found["compiled"] == []
    assert {use["layer"] for use in found["layers"]} >= {"Qwen3_5GatedDeltaNet block", "Qwen3_5Attention block"}
    assert not any("--compile" in each["text"] for each in found["advice"])


def test_a_trace_has_the_parts_of_a_step_by_name(profile: Profile, tmp_path: Path) -> None:
    profile("--trace", str(tmp_path / "new" / "step.json"))
    trace = json.loads((tmp_path / "new" / "step.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {f"phase: {part}" for part in ("step", "data", "forward", "loss", "backward", "optimiser")} <= names
    assert "layer: gated delta kernel" in names


def test_outside_of_a_profile_a_step_has_no_hooks_and_names_nothing(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What profiling adds is there while the profiler is, and at no other time."""
    named: list[str] = []
    hooks: list[int] = []
    real_phase, real_step = torch.profiler.record_function.__init__, collect.take_step

    def seen(self: torch.profiler.record_function, name: str, *args: Any) -> None:
        named.append(name)
        real_phase(self, name, *args)

    def step(ready: Any, work: Any, **kwargs: Any) -> object:
        before = len(named)
        result = real_step(ready, work, **kwargs)
        ours = [name for name in named[before:] if name.startswith((annotate.PHASE, annotate.LAYER))]
        registered = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in ready.model.modules())
        wrapped = sum("delta_kernel" in vars(m) and m.delta_kernel.__name__ == "named" for m in ready.model.modules())
        hooks.append(registered)
        steps.append((len(ours), wrapped))
        return result

    steps: list[tuple[int, int]] = []
    monkeypatch.setattr(torch.profiler.record_function, "__init__", seen)
    monkeypatch.setattr(collect, "take_step", step)
    profile()
    # One to warm up and two by the clock, two that are looked at and two that are recorded.
    watched = [False] * 3 + [True] * 4
    assert [count > 20 for count, _ in steps] == [wrapped == 1 for _, wrapped in steps] == watched
    assert all(count == 0 for (count, _), seen in zip(steps, watched, strict=True) if not seen)
    assert [registered > hooks[0] for registered in hooks] == watched


def test_hooks_are_gone_after_a_profile(place: Path) -> None:
    from trainer.model import load_model

    model = load_model(
        str(place / "model"),
        init="random",
        seed=0,
        dtype=torch.float32,
        kernels="auto",
        device="cpu",
        vocab_at_least=97,
    )

    def state() -> list[tuple[int, int, list[str]]]:
        return [
            (len(m._forward_hooks), len(m._forward_pre_hooks), sorted(map(str, vars(m).values())))
            for m in model.modules()
        ]

    before = state()
    with annotate.watched(model, whole_blocks=False):
        assert state() != before
    assert state() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--warm-up", "0"], "--warm-up 0: must be at least 1"),
        (["--rows-per-step", "0"], "--rows-per-step 0: less than 1"),
        (["--trace", "."], "--trace .: a folder, not a file"),
    ],
)
def test_wrong_use_is_two_lines(
    place: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--shards", str(place / "packed"), "--init", "random", *arguments], prog_name="trainer")
    said = capfd.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    error, hint = said.err.splitlines()
    assert error.startswith(f"error: {message}")
    assert hint.startswith("hint: ")


def test_a_trace_that_cannot_be_written_is_told(place: Path, profile: Profile) -> None:
    with pytest.raises(UserError, match=r"--trace .*cannot be written"):
        profile("--trace", str(place / "model" / "config.json" / "step.json"))


def test_a_report_is_one_screen_and_leaves_nothing_behind(place: Path, tmp_path: Path) -> None:
    command = ["profile", "--shards", place / "packed", "--model", place / "model", "--init", "random"]
    command += ["--no-tokenizer-check", "--steps", "1", "--warm-up", "1", "--rows-per-step", "2"]
    done = run_module("trainer", command, cwd=tmp_path, COLUMNS="80", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "-bound: " in lines[0]
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert "USDT" not in done.stderr
    assert "CPUAllocator" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the bundled chats, in rows of 512 slots."""
    folder = tmp_path_factory.mktemp("sample")
    chats = [line for line in SAMPLE.read_text(encoding="utf-8").splitlines() if len(line) < 1500]
    rows = write_jsonl(folder / "chats.jsonl", chats[:30])
    packer.build(BuildConfig(datasets=(str(rows),), tokenizer=str(TINY), capacity=512, out=folder / "packed"))
    return folder / "packed"


def test_in_the_bundled_hybrid_a_planted_wait_and_a_slow_loader_are_found(
    sample: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    strength, read = SegmentedDelta.strength, loader.read_pass
    took: list[float] = []

    def in_layer(self: SegmentedDelta, logits: Tensor) -> Tensor:
        _read_back(logits)
        return strength(self, logits)

    def slow(*args: Any, **kwargs: Any) -> object:
        began = time.perf_counter()
        time.sleep(1)
        made = read(*args, **kwargs)
        took.append(time.perf_counter() - began)
        return made

    monkeypatch.setattr(SegmentedDelta, "strength", in_layer)
    monkeypatch.setattr(loader, "read_pass", slow)
    run = ("--shards", str(sample), "--model", str(TINY), "--rows-per-step", "1", "--steps", "1")
    found = profile(*run)
    (sync,) = found["syncs"]
    assert sync["count"] == 6  # its gated-delta layers
    assert sync["where"].endswith(f":{_read_back.__code__.co_firstlineno + 2} in _read_back")
    about = found["about"]
    assert min(took) <= about["read_s"] < 2 * max(took)  # a step has one pass
    # However busy this machine: in a long run a step takes at least as long as reading its rows.
    assert about["plain_step_s"] >= about["read_s"]
    assert about["plain_data_s"] >= about["read_s"] - (about["plain_step_s"] - about["plain_data_s"]) - 1e-9
    assert found["data_wait_s"] == pytest.approx(about["plain_data_s"], rel=0.05, abs=0.01)
    # Of 8 layers, what takes the most operations on a CPU is what is done chunk by chunk.
    launches = {use["layer"]: use["launches"] for use in found["layers"]}
    assert max(launches, key=lambda name: launches[name]) in ("gated delta kernel", "Qwen3_5RMSNorm")


@pytest.mark.full
def test_the_bundled_hybrid_as_padded_batches_spends_on_padding_what_packed_rows_save(
    tmp_path: Path, profile: Profile
) -> None:
    packer.build(BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=tmp_path / "packed"))
    run = ("--shards", str(tmp_path / "packed"), "--model", str(TINY), "--steps", "1", "--rows-per-step", "8")
    packed, padded = profile(*run), profile(*run, "--padded")
    assert packed["shares"]["padding"] < 0.05
    assert padded["shares"]["padding"] > 0.15
    assert padded["ops_per_useful_token"] > packed["ops_per_useful_token"]
    assert "packed rows" in padded["advice"][0]["text"]
