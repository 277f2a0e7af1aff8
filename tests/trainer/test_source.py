"""Where a model's files are found: in a folder, on the hub, in its cache without a network; and what is said where they are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from packer.errors import UserError
from tests.support import run_module
from tests.trainer.checkpoints import saved, vision_language
from tests.trainer.shards_fixture import VOCAB, random_rows, write_corpus
from trainer import source
from trainer.source import INDEX, WEIGHTS, companion_files, weight_files

HUB_NAME = "owner/tiny"


class Hub:
    """A hub that has the files of a folder; or none that can be reached."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def cached(self, _source: str, _name: str) -> None:
        """Nothing is: every file is asked for."""

    def download(self, source: str, name: str) -> str:
        assert source == HUB_NAME
        self.asked.append(name)
        if self.folder is None:
            raise LocalEntryNotFoundError("outgoing traffic has been disabled")
        if not (self.folder / name).is_file():
            raise EntryNotFoundError(f"404: no {name}")
        return str(self.folder / name)


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> Hub:
    hub = Hub(folder)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", hub.cached)
    monkeypatch.setattr(source, "look_for", lambda _what: None)
    monkeypatch.setattr(source, "silence", lambda: None)
    return hub


def test_only_the_files_that_hold_the_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved("llama", tmp_path, shard_size="20KB")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights once more, for another program")
    names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    hub = serve(monkeypatch, folder)
    assert [path.name for path in weight_files(HUB_NAME)] == names
    assert hub.asked == [WEIGHTS, INDEX, *names]
    whole = saved("llama", tmp_path / "whole")
    assert weight_files(str(whole)) == [whole / WEIGHTS]


def test_a_hub_out_of_reach_is_two_lines_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, None)
    with pytest.raises(UserError, match=rf"{WEIGHTS} of {HUB_NAME} cannot be fetched: outgoing traffic") as error:
        weight_files(HUB_NAME)
    assert "network" in error.value.hint
    assert "--init random" in error.value.hint


def test_a_hub_model_without_weights_and_one_with_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, tmp_path)
    with pytest.raises(UserError, match="no weights"):
        weight_files(HUB_NAME)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"pytorch_model\.bin"):
        weight_files(HUB_NAME)


def test_what_goes_with_a_model_is_not_its_weights_nor_their_other_forms(tmp_path: Path) -> None:
    folder = vision_language(tmp_path / "vision")
    for name in ("preprocessor_config.json", "chat_template.jinja", "merges.txt", "pytorch_model.bin.index.json"):
        (folder / name).write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / "README.md").write_text("of somebody else's model")
    (folder / "original").mkdir()
    assert {path.name for path in companion_files(str(folder))} == {
        "config.json",
        "generation_config.json",
        INDEX,
        "preprocessor_config.json",
        "chat_template.jinja",
        "merges.txt",
    }


def cached(home: Path, folder: Path) -> None:
    """A folder as the hub's cache holds it."""
    snapshot = home / "hub" / f"models--{HUB_NAME.replace('/', '--')}" / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)


def test_a_cached_model_is_trained_without_a_network_and_another_is_not(tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(4, seed=0))
    cached(tmp_path / "home", saved("llama", tmp_path, shard_size="20KB", vocab_size=VOCAB))
    flags = ["run", "--shards", tmp_path / "packed", "--steps", "1", "--rows-per-step", "1"]
    home = {"HF_HOME": str(tmp_path / "home")}
    done = run_module("trainer", [*flags, "--model", HUB_NAME, "--out", tmp_path / "run"], cwd=tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model" / "config.json").is_file()
    missing = run_module("trainer", [*flags, "--model", "owner/other", "--out", tmp_path / "no"], cwd=tmp_path, **home)
    assert missing.returncode == 2
    assert [line.split(":")[0] for line in missing.stderr.splitlines()] == ["error", "hint"]
    assert not (tmp_path / "no" / "checkpoints").exists()
