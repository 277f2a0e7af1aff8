"""Examples in docstrings are run: those of the public API build and read the bundled sample, those of the modules are arithmetic. Of those that cannot
be run, the calls must be ones that can be made."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import pydoc
import types
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import packer
from tests.support import ROOT, SAMPLE

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text(encoding="utf-8")
    for room in ("packer", "trainer")
    for path in sorted((ROOT / room).rglob("*.py"))
    if path.stem != "__main__"
}
MODULES = [name for name, source in FILES.items() if ">>> " in source]
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


def calls(docstring: str) -> Iterator[ast.Call]:
    """Calls by a plain name in the lines of a docstring that are Python; those that leave arguments out with … are not meant whole."""
    for line in docstring.splitlines():
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(line.strip().removeprefix(">>> "))):
                given = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []
                left_out = any(isinstance(each, ast.Constant) and each.value is ... for each in given)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not left_out:
                    yield node


@pytest.mark.parametrize("name", FILES)
def test_an_example_calls_its_module_as_it_can_be_called(name: str) -> None:
    """Most examples cannot be run (they want a model, ranks, a folder), but what they call must be there and take what they give it."""
    module = importlib.import_module(name)
    for call in calls(module.__doc__ or ""):
        assert isinstance(call.func, ast.Name)
        called = getattr(module, call.func.id, None)
        if getattr(called, "__module__", None) == name:
            keywords = {str(each.arg): each.value for each in call.keywords}
            inspect.signature(called).bind(*call.args, **keywords)
