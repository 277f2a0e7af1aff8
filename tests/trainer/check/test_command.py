"""`trainer check` as a user runs it: what it says, what it writes, and how it ends, alone and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT, SAMPLE, TINY, run_module
from trainer.cli import main

_NAMES = {
    "isolation": {"gradient_leak", "perturbation_leak", "length_leak", "noise_floor"},
    "equality": {"dtype", "max_logit_error", "max_grad_error", "tolerance"},
}
_SMALL = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 48,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "initializer_range": 0.1,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled sample, packed, and a model small enough for a test with the same tokenizer."""
    folder = tmp_path_factory.mktemp("check")
    built = run_module(
        "packer",
        ["build", SAMPLE, "--tokenizer", TINY, "--capacity", "4096", "--limit", "60", "-o", folder / "packed"],
        cwd=folder,
    )
    assert built.returncode == 0, built.stderr
    config = json.loads((TINY / "config.json").read_text())
    rope = {**config["rope_parameters"], "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    write_model(folder / "tiny", {**config, **_SMALL, "rope_parameters": rope})
    return folder


def write_model(folder: Path, config: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((TINY / name).read_bytes())


@dataclass(frozen=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def trainer(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The command line in this process, run in that folder on its shards with random weights."""
    monkeypatch.chdir(place)

    def call(command: str, *more: str, model: str = "tiny") -> Done:
        given = [command, "--shards", "packed", "--model", model, "--init", "random", *more]
        with pytest.raises(SystemExit) as ended:
            main(given)
        said = capsys.readouterr()
        return Done(returncode=int(ended.value.code or 0), stdout=said.out, stderr=said.err)

    return call


Trainer = Callable[..., Done]


def test_a_model_that_passes_is_proved_in_five_named_steps(place: Path, trainer: Trainer) -> None:
    done = trainer("check", "--json", "--out", "runs/first")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert report["first_leak"] is None
    assert [each["name"] for each in report["checks"]] == [
        "contract",
        "batch",
        "isolation",
        "equality",
        "normalisation",
        "labels",
    ]
    assert all(each["passed"] and each["seconds"] >= 0 for each in report["checks"])
    for part, names in _NAMES.items():
        assert names <= report[part].keys()
    assert report["equality"]["max_grad_error"] < report["equality"]["tolerance"] == 1e-9
    assert {tuple(sorted(layer)) for layer in report["layers"]} == {("kernel", "type", "why")}
    assert [layer["type"] for layer in report["layers"]] == ["attention", "delta", "conv"]
    assert json.loads((place / "runs" / "first" / "check.json").read_text()) == report
    assert "label   row 0, example 0: " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("done    proved")


def test_a_run_takes_the_proof_that_check_left_for_it(trainer: Trainer) -> None:
    assert trainer("check", "--out", "proofs/one").returncode == 0
    done = trainer("run", "--steps", "1", "--rows-per-step", "1", "--out", "proofs/two", "--check", "full")
    assert done.returncode == 0, done.stderr
    assert "check   isolation was proved before" in done.stdout


def test_a_model_as_transformers_runs_it_leaks_and_the_status_says_so(trainer: Trainer) -> None:
    done = trainer("check", "--as-is")
    assert done.returncode == 1
    assert "check   isolation     FAILED" in done.stdout
    assert (
        "where: first leak at model.layers.0.linear_attn (convolution, in its kernel causal_conv1d_fn)" in done.stdout
    )
    assert "do:    " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("done    not proved: isolation failed")


def test_what_run_refuses_is_measured_and_the_truth_told(place: Path, trainer: Trainer) -> None:
    base = json.loads((place / "tiny" / "config.json").read_text())
    plain = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **{name: base[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "head_dim")},
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 8192,
    }
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 2048,
        "factor": 4.0,
    }
    write_model(place / "longrope", {**plain, "rope_parameters": rope})
    done = trainer("check", "--json", model="longrope")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert "longrope depends on the length of the whole row" in report["refused"]
    assert report["isolation"]["gradient_leak"] == 0
    assert report["isolation"]["length_leak"] > 1e-3
    assert report["leak"]["mechanism"] == "positions"
    assert report["first_leak"] == "model.rotary_emb"
    write_model(
        place / "sinks",
        {**plain, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "attention_dropout": 0.1},
    )
    done = trainer("check", "--json", model="sinks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["refused"]


def test_a_contract_that_is_broken_is_status_1_and_wrong_use_is_status_2(place: Path, trainer: Trainer) -> None:
    config = json.loads((place / "tiny" / "config.json").read_text())
    write_model(place / "narrow", {**config, "vocab_size": 300, "pad_token_id": None, "eos_token_id": None})
    done = trainer("check", model="narrow")
    assert done.returncode == 1
    assert "past the 300 rows of" in done.stdout
    for arguments in (["--kernels", "fused"], ["--kernels", "fast"], ["--shards", "nowhere"]):
        wrong = trainer("check", *arguments)
        assert wrong.returncode == 2
        assert [line.split(":")[0] for line in wrong.stderr.splitlines()[-2:]] == ["error", "hint"]


def torchrun(place: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["check", "--shards", place / "packed", "--model", place / "tiny", "--init", "random", *more]
    return subprocess.run(
        [*launcher, "-m", "trainer", *map(str, arguments)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_under_torchrun_the_proof_is_told_once_and_covers_the_split_over_ranks(place: Path) -> None:
    done = torchrun(place, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert "over 2 ranks: gradients agree" in report["checks"][4]["said"]
    assert done.stderr.count("check   isolation") == 1


def test_under_torchrun_a_leak_ends_with_a_failure_told_once(place: Path) -> None:
    done = torchrun(place, "--as-is")
    assert done.returncode == 1
    assert done.stdout.count("first leak at model.layers.0.linear_attn") == 1
    assert done.stdout.count("done    not proved") == 1
