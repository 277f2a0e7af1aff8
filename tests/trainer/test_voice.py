"""Errors speak with one voice: two lines, of which neither ends in a full stop and the second does not begin like a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

FILES = sorted([*(ROOT / "trainer").rglob("*.py"), *(ROOT / "packer").rglob("*.py")])


def ends(node: ast.expr) -> Iterator[tuple[str, str]]:
    """First and last words that an expression may give, as far as they stand in the source."""
    if isinstance(node, ast.IfExp):
        yield from ends(node.body)
        yield from ends(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value, node.value
    elif isinstance(node, ast.JoinedStr):
        words = [part.value if isinstance(part, ast.Constant) else "" for part in node.values]
        yield str(words[0]), str(words[-1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_line_of_an_error_is_a_sentence(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error") and len(node.args) == 2:
            for argument in node.args:
                for _, last in ends(argument):
                    assert not last.rstrip().endswith("."), f"{path.name}:{node.lineno} {last!r}"
            for first, _ in ends(node.args[1]):
                assert not first[:1].isupper(), f"{path.name}:{node.lineno} {first!r}"
