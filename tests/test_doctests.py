"""Examples in docstrings are run: those of the public API build and read the bundled sample, those of the modules are arithmetic."""

from __future__ import annotations

import doctest
import importlib
import pydoc
import types
from fractions import Fraction
from pathlib import Path

import pytest

import packer
from tests.support import ROOT, SAMPLE

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for room in ("packer", "trainer")
    for path in (ROOT / room).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
PUBLIC = ("packer", "trainer.adapters")


def run(module: types.ModuleType) -> doctest.TestResults:
    numpy = importlib.import_module("numpy")
    # What an example may take for granted besides what its module has.
    given = {"np": numpy, "Fraction": Fraction, "typing": importlib.import_module("typing")}
    return doctest.testmod(module, extraglobs=given, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in PUBLIC])
def test_the_examples_of_a_module_are_true(name: str) -> None:
    found = run(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the sample lies where the examples say."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "data").mkdir()
    (folder / "data" / "sample").symlink_to(SAMPLE.parent, target_is_directory=True)
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_the_examples_of_the_public_api_run_as_printed(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In this order: what the first builds, the second reads."""
    monkeypatch.chdir(place)
    if name != "packer" and not (place / "data" / "packed").exists():
        run(packer)
    found = run(importlib.import_module(name))
    assert found.attempted >= 4
    assert found.failed == 0


@pytest.mark.parametrize("name", [*PUBLIC, "trainer"])
def test_the_public_api_renders_with_pydoc(name: str) -> None:
    module = importlib.import_module(name)
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)
    for public in module.__all__:
        assert public in text
        thing = getattr(module, public)
        assert isinstance(thing, int) or (thing.__doc__ or "").strip(), f"{name}.{public} says nothing"
