"""Exact duplicates in the ledger: conversations are counted by hand, however many examples become of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer
from packer.analysis.duplicates import DuplicateCounter
from packer.config import BuildConfig
from packer.verify import verify
from tests.packer.broken_folder import edit_manifest
from tests.support import TINY, chat, run_module, write_jsonl

A, B, C, D = (chat(f"Question {name}?", f"Answer {name}.", "And then?", "No more.") for name in "ABCD")
LONG = chat("Why?", "because " * 500)
REPEATS, ACROSS = "conversations that repeat an earlier one", "of them in both train and eval"


def build(tmp_path: Path, train: Sequence[object], held_out: Sequence[object] = (), **options: Any) -> Any:
    """The ledger's note of duplicates; None where there is none."""
    source = str(write_jsonl(tmp_path / "chats.jsonl", train))
    if held_out:
        options["eval_file"] = (str(write_jsonl(tmp_path / "held.jsonl", held_out)),)
    config: dict[str, Any] = {"datasets": (source,), "tokenizer": str(TINY), "capacity": 256, "workers": 1}
    manifest = packer.build(BuildConfig(**{**config, "out": tmp_path / "packed", **options}))
    return manifest.ledger.notes.get("duplicates")


@pytest.mark.parametrize(
    ("train", "held_out", "expected"),
    [
        ([A, B, C], [D], None),
        # The second and the third A; whatever else stands in the row, it says the same.
        ([A, B, {**A, "id": 7}, C, A], [], {REPEATS: 2}),
        # Two more A, one of them in eval; one more D, in eval alone.
        ([A, A, B, C], [A, D, D], {REPEATS: 3, ACROSS: 2}),
        ([A, B], [B, A], {REPEATS: 2, ACROSS: 2}),
    ],
)
def test_conversations_that_repeat_an_earlier_one_are_counted(
    tmp_path: Path, train: list[object], held_out: list[object], expected: dict[str, int] | None
) -> None:
    assert build(tmp_path, train, held_out) == expected
    assert not verify(tmp_path / "packed").findings


def test_an_eval_fraction_parts_no_duplicates(tmp_path: Path) -> None:
    rows = [chat(f"Question {number}?", "Yes.") for number in range(20)]
    assert build(tmp_path, rows * 2, eval_fraction=0.5) == {REPEATS: 20}


def test_copies_turns_and_pieces_are_no_duplicates(tmp_path: Path) -> None:
    source = str(write_jsonl(tmp_path / "mixed.jsonl", [A, B, A]))
    assert build(tmp_path, [C], datasets=(), mix=((source, 3),)) == {REPEATS: 1}
    # Each of A, B and A is two examples.
    assert build(tmp_path, [A, B, A], reasoning="every-turn", force=True) == {REPEATS: 1}
    assert build(tmp_path, [LONG, B], overlong="split", force=True) is None
    assert build(tmp_path, [LONG, B, LONG], overlong="split", force=True) == {REPEATS: 1}


def test_what_is_left_out_is_no_duplicate(tmp_path: Path) -> None:
    assert build(tmp_path, [LONG, B, LONG], overlong="drop", max_loss=1) is None


def test_the_reports_print_duplicates_and_verify_compares_them(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", [A, B, A])
    write_jsonl(tmp_path / "held.jsonl", [A])
    line = f"duplicates: {REPEATS} 2, {ACROSS} 2"
    arguments = ["build", "chats.jsonl", "--eval-file", "held.jsonl", "--tokenizer", TINY, "-o", "packed"]
    assert line in run_module("packer", arguments, cwd=tmp_path).stdout
    assert line in run_module("packer", ["stats", "packed"], cwd=tmp_path).stdout
    stats = json.loads(run_module("packer", ["stats", "packed", "--json"], cwd=tmp_path).stdout)
    assert stats["ledger"]["notes"]["duplicates"] == {REPEATS: 2, ACROSS: 2}
    edit_manifest(tmp_path / "packed", lambda document: document["ledger"].pop("notes"))
    found = verify(tmp_path / "packed").findings
    assert [one.rule for one in found] == ["the ledger's notes must be those that the token store makes"]


def test_the_counter_agrees_with_a_count_by_hash() -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 3_000, size=100_000).astype(np.uint64) * np.uint64(6_148_914_691_236_517)
    is_eval = random.random(len(hashes)) < 0.001
    counter = DuplicateCounter()
    for start in range(0, len(hashes), 7_001):
        counter.add(hashes[start : start + 7_001], is_eval[start : start + 7_001])
    sides: dict[int, list[bool]] = {}
    for content, side in zip(hashes.tolist(), is_eval.tolist(), strict=True):
        sides.setdefault(content, []).append(side)
    across = sum(len(side) - 1 for side in sides.values() if len(set(side)) == 2)
    expected = {("duplicates", REPEATS): len(hashes) - len(sides), ("duplicates", ACROSS): across}
    assert 0 < across < len(hashes) - len(sides)
    # Asked twice, as a build and its reports may.
    assert counter.notes() == counter.notes() == expected
