"""Where a tokenizer came from is known afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packer.tokenizer import load_tokenizer
from tests.support import TINY


def test_a_tokenizer_of_the_hub_is_known_by_its_commit_and_one_of_a_folder_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--owner--tiny"  # as the hub's client lays its cache out
    shutil.copytree(TINY, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    from_hub, from_folder = load_tokenizer("owner/tiny"), load_tokenizer(str(TINY))
    assert (from_hub.name, from_hub.revision) == ("owner/tiny", commit)
    assert (from_folder.name, from_folder.revision) == ("tiny-hybrid", "")
    assert from_hub.digest == from_folder.digest
