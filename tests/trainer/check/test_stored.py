"""A proof is taken again only where everything that it rests on is as it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from tests.trainer.tiny_models import packed_model
from trainer import RunConfig, run
from trainer.check import stored
from trainer.check.stored import find_proof, proof_key
from trainer.prepare import Prepared, prepare

CPU = torch.device("cpu")


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    write_corpus(tmp_path / "packed", rows=random_rows(4, seed=0))
    return prepare(RunConfig(shards=str(tmp_path / "packed"), model="tiny", out=str(tmp_path / "runs" / "a"), steps=1))


def test_a_key_changes_with_whatever_a_proof_rests_on(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packed_model("llama", tmp_path)

    def key(**more: object) -> str:
        given = {"prepared": prepared, "layers": model.layers, "config_digest": "a", **more}
        return proof_key(given.pop("prepared"), model, device=CPU, **given)  # type: ignore[arg-type]

    keys = {key(), key(config_digest="b"), key(layers=(dataclasses.replace(model.layers[0], kernel="fused"),))}
    keys.add(key(prepared=dataclasses.replace(prepared, config=dataclasses.replace(prepared.config, dtype="bf16"))))
    other = write_corpus(tmp_path / "other", rows=random_rows(4, seed=1))
    keys.add(key(prepared=dataclasses.replace(prepared, corpus=other)))
    assert key() == key()
    monkeypatch.setattr(stored, "_version", lambda name: "9.9" if name == "transformers" else "none")
    keys.add(key())
    monkeypatch.undo()
    monkeypatch.setattr(stored, "digest_file", lambda path: "changed" if path.name == "modeling_llama.py" else "")
    keys.add(key())
    monkeypatch.setattr(stored, "digest_file", lambda path: "changed" if path.name == "delta.py" else "")
    keys.add(key())
    assert len(keys) == 8


def write(folder: Path, **document: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "check.json").write_text(json.dumps({"key": "k", "passed": True, "form": "quick", **document}))
    return folder / "check.json"


def test_a_proof_is_found_in_the_run_s_folder_or_beside_it(tmp_path: Path) -> None:
    here, beside = tmp_path / "runs" / "a", tmp_path / "runs" / "b"
    assert find_proof(here, "k", form="quick") is None
    written = write(beside)
    assert find_proof(here, "k", form="quick") == written
    assert find_proof(here, "other", form="quick") is None
    assert find_proof(here, "k", form="full") is None
    own = write(here)
    assert find_proof(here, "k", form="quick") == own
    full = write(beside, form="full")
    assert find_proof(here, "k", form="full") == full


@pytest.mark.parametrize(
    "text", ["", "[]", '{"key": "k"}', '{"key": "k", "passed": false}', '{"key": "k", "passed": "yes"}', "\xff"]
)
def test_what_is_no_proof_is_not_taken_for_one(tmp_path: Path, text: str) -> None:
    write(tmp_path / "runs" / "a").write_bytes(text.encode("latin-1"))
    assert find_proof(tmp_path / "runs" / "a", "k", form="quick") is None


def lines(
    folder: Path, capsys: pytest.CaptureFixture[str], **more: object
) -> tuple[int, list[str], list[dict[str, float]]]:
    config = RunConfig(
        shards=str(folder / "packed"),
        model=str(folder / "tiny"),
        init="random",
        steps=2,
        rows_per_step=2,
        log_every=1,
        **more,
    )  # type: ignore[arg-type]
    status = run(config)
    metrics = [json.loads(line) for line in (Path(str(more["out"])) / "metrics.jsonl").read_text().splitlines()]
    return status, [line for line in capsys.readouterr().out.splitlines() if line.startswith("check ")], metrics


def test_a_run_proves_isolation_once_and_trains_as_if_it_had_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(8, seed=0))
    write_model(tmp_path / "tiny")
    runs = tmp_path / "runs"
    status, first, trained = lines(tmp_path, capsys, out=str(runs / "a"))
    assert status == 0
    assert ["passed" in line for line in first] == [True, True]
    assert "isolation" in first[1]
    report = json.loads((runs / "a" / "check.json").read_text())
    assert report["passed"] is True
    assert report["isolation"]["gradient_leak"] == 0
    _, second, _ = lines(tmp_path, capsys, out=str(runs / "b"))
    assert second == [
        f"check   isolation was proved before, for the same model code, kernels, versions and rows ({runs / 'a' / 'check.json'})"
    ]
    _, third, untouched = lines(tmp_path, capsys, out=str(tmp_path / "elsewhere" / "c"), check="off")
    assert "off" in third[0]
    assert [line["loss"] for line in trained] == [line["loss"] for line in untouched]
    assert [line["grad_norm"] for line in trained] == [line["grad_norm"] for line in untouched]
