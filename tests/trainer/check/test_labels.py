"""What is trained on is shown, bounded and decoded; a terminator that is not a target is a fault."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.shards_fixture import Example, write_corpus
from trainer.check.labels import labels

STOP = 1  # the fixture's stop id


def example(ids: list[int], targets: list[int]) -> Example:
    return Example(ids=tuple(ids), mask=tuple(place in targets for place in range(len(ids))))


def test_turns_that_end_with_a_terminator_have_no_fault(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "p", rows=[[example([5, 6, 7, STOP], [2, 3]), example([5, 6, STOP, 8, 9, STOP], [1, 2, 4, 5])]]
    )
    found = labels(corpus, rows=[0])
    assert (found.faults, found.turns, found.ended) == ((), 3, 3)
    assert found.shown == ("row 0, example 0: 7 1", "row 0, example 1: 6 1 ┊ 9 1")


def test_a_terminator_behind_a_turn_that_is_not_a_target_is_a_fault(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "p", rows=[[example([5, 6, 7, STOP], [2, 3]), example([5, 6, 7, STOP], [1, 2])]])
    (fault,) = labels(corpus, rows=[0]).faults
    assert fault.startswith("1 of 2 stretches of targets are followed by a terminator (1) that is not a target")


def test_where_no_turn_ends_with_one_that_is_a_fault(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "p", rows=[[example([5, 6, 7], [1, 2])], [example([5, 6, 7], [2])]])
    (fault,) = labels(corpus, rows=[0, 1]).faults
    assert fault.startswith("none of 2 stretches of targets ends with a terminator")


def test_what_is_shown_is_bounded(tmp_path: Path) -> None:
    many = [example([5, *[6, 7] * 2, STOP], [1, 3, 5]) for _ in range(5)]
    long = [example(list(range(2, 62)), list(range(1, 60)))]
    found = labels(write_corpus(tmp_path / "p", rows=[many, long]), rows=[0, 1])
    assert found.shown[0].endswith("┊ … 1 more")
    assert found.shown[3] == "row 0: … 2 more examples"
    assert max(map(len, found.shown)) < 200
