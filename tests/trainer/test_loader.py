"""Reading ahead: what goes wrong in the thread, which shard is damaged, what a step is divided by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import UserError
from tests.trainer.shards_fixture import Example, random_rows, write_corpus
from trainer.config import RunConfig
from trainer.loader import Prefetch, ShardCheck, plan_step, read_pass, row_list
from trainer.prepare import Counts, Prepared, prepare


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    write_corpus(tmp_path / "packed", rows=random_rows(40, seed=1))
    return prepare(RunConfig(shards=str(tmp_path / "packed"), model="none", rows_per_step=7))


@pytest.fixture(scope="module")
def eleven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eleven") / "packed"
    write_corpus(path, rows=random_rows(11, seed=4))
    return path


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.write_bytes(data)


def test_an_error_in_the_thread_is_raised_where_the_item_is_asked_for() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise UserError("row 7 is broken", "mend it")

    with Prefetch(source(), depth=2) as ahead:
        assert ahead.get() == 1
        with pytest.raises(UserError, match="row 7"):
            ahead.get()


def test_the_thread_ends_with_the_block_however_much_is_left() -> None:
    with Prefetch(iter(range(10**9)), depth=2) as ahead:
        assert [ahead.get(), ahead.get()] == [0, 1]
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_a_shard_whose_bytes_changed_is_named(prepared: Prepared) -> None:
    shard = prepared.corpus.folder / "train/shard-00001.arrow"
    flip(shard, shard.stat().st_size // 2)
    check = ShardCheck(prepared.corpus, local_rank=0, local_world=1)
    plan = plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)
    check.touch(plan.rows)
    with pytest.raises(UserError, match=r"shard-00001\.arrow.*digest"):
        check.finish()
    with pytest.raises(UserError, match=r"shard-00001\.arrow"):
        check.raise_if_broken()
    check.close()


def test_a_shard_is_read_whole_once_and_by_one_rank_of_a_machine(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(prepared.corpus, "verify_shard", read.append)
    checks = [ShardCheck(prepared.corpus, local_rank=rank, local_world=2) for rank in range(2)]
    for _ in range(3):
        for check in checks:
            check.touch(plan_step(prepared, Counts.of(prepared.corpus), 0, world=2).rows)
    for check in checks:
        check.finish()
        check.close()
    assert sorted(read) == [0, 1, 2]


def test_a_step_is_divided_by_the_targets_of_all_its_rows_whatever_the_ranks(prepared: Prepared) -> None:
    counts, corpus = Counts.of(prepared.corpus), prepared.corpus
    for step in range(prepared.order.steps):
        rows = prepared.order.step(step)
        expected = sum(
            int(corpus[int(row)].loss_mask.sum()) for row, weight in zip(rows.rows, rows.weights, strict=True) if weight
        )
        assert {plan_step(prepared, counts, step, world=world).supervised for world in (1, 2, 5)} == {expected}


def test_windowed_steps_are_of_like_rows_whatever_the_ranks(prepared: Prepared, tmp_path: Path) -> None:
    """40 rows, 2 a step: 20 steps, two windows. The same rows as the stream has, sorted inside each window."""
    options = {"shards": str(tmp_path / "packed"), "model": "none", "rows_per_step": 2}
    plain = prepare(RunConfig(**options))
    window = prepare(RunConfig(**options, balance="window"))
    counts = Counts.of(prepared.corpus)
    cost = [row.sum_sq_len for row in prepared.corpus]
    for first, end in ((0, 16), (16, 20)):
        rows = [row for step in range(first, end) for row in plain.order.step(step).rows.tolist()]
        steps = [plan_step(window, counts, step, world=1).rows.tolist() for step in range(first, end)]
        assert sorted(row for step in steps for row in step) == sorted(rows)
        ordered = sorted(cost[row] for row in rows)
        assert sorted(sorted(cost[row] for row in step) for step in steps) == [
            ordered[place : place + 2] for place in range(0, len(rows), 2)
        ]
    for step in range(window.order.steps):
        dealt = [plan_step(window, counts, step, world=world) for world in (1, 2, 3)]
        assert len({(tuple(plan.rows.tolist()), plan.supervised) for plan in dealt}) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 25),
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["batch", "off"]),
    st.sets(st.integers(0, 10), max_size=3),
    st.sampled_from(["token", "example"]),
)
def test_whatever_the_ranks_and_passes_a_step_trains_on_its_rows_once_and_all_ranks_pass_alike(
    eleven: Path,
    rows_per_step: int,
    world: int,
    micro_rows: int,
    epochs: int,
    balance: str,
    skipped: set[int],
    weighting: str,
) -> None:
    options = {"rows_per_step": rows_per_step, "micro_rows": micro_rows, "epochs": epochs, "balance": balance}
    options |= {"skip_rows": tuple(skipped), "loss_weighting": weighting}
    prepared = prepare(RunConfig(shards=str(eleven), model="none", **options))  # type: ignore[arg-type]
    counts, rows = Counts.of(prepared.corpus), random_rows(11, seed=4)
    seen: list[int] = []
    for step in range(prepared.order.steps):
        wanted = prepared.order.step(step)
        trained = [int(r) for r, w in zip(wanted.rows, wanted.weights, strict=True) if w and int(r) not in skipped]
        if not trained:
            with pytest.raises(UserError, match="none of its rows"):
                plan_step(prepared, counts, step, world=world)
            continue
        plan = plan_step(prepared, counts, step, world=world)
        assert plan.deal.rows.shape == (-(-rows_per_step // (world * micro_rows)), world, micro_rows)
        assert sorted(plan.deal.rows[plan.deal.weights].tolist()) == sorted(trained)
        assert plan.supervised == sum(sum(example.mask) for row in trained for example in rows[row])
        examples = sum(len(rows[row]) for row in trained)
        assert plan.denominator == (examples if weighting == "example" else plan.supervised)
        seen += trained
    assert sorted(seen) == sorted(epochs * list(set(range(11)) - skipped))


def test_in_the_place_of_a_skipped_row_another_is_computed_at_no_weight(prepared: Prepared, tmp_path: Path) -> None:
    plain = plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)
    skipped = int(plain.rows[2])
    other = prepare(RunConfig(shards=str(tmp_path / "packed"), model="none", rows_per_step=7, skip_rows=(skipped,)))
    plan = plan_step(other, Counts.of(other.corpus), 0, world=1)
    assert plan.rows.tolist() == plain.rows.tolist()
    assert plan.supervised == plain.supervised - int(prepared.corpus[skipped].loss_mask.sum())
    (instead,) = plan.deal.rows[~plan.deal.weights].tolist()
    assert instead in plan.deal.rows[plan.deal.weights]
    assert skipped not in plan.deal.rows


def test_a_step_without_a_target_is_refused_with_its_rows(tmp_path: Path) -> None:
    silent = Example(ids=(5, 6, 7), mask=(False, False, False))
    write_corpus(tmp_path / "packed", rows=[[silent], [silent]])
    prepared = prepare(RunConfig(shards=str(tmp_path / "packed"), model="none", rows_per_step=2))
    with pytest.raises(UserError, match=r"step 1: none of its rows .*\(rows (0, 1|1, 0)\)"):
        plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)


def test_a_row_that_breaks_a_rule_is_named_with_shard_and_rule(prepared: Prepared) -> None:
    shard = prepared.corpus.folder / "train/shard-00000.arrow"
    row = prepared.corpus[3]
    at = shard.read_bytes().find(row.position_ids.tobytes())
    flip(shard, at)
    fresh = prepare(prepared.config)
    import numpy as np

    from trainer.batch import Shape

    shape = Shape(rows=16, capacity=64, max_segments=8, max_segment_len=64)
    with pytest.raises(UserError, match=r"shard-00000\.arrow, row 3: position_ids must restart"):
        read_pass(fresh.corpus, np.arange(16), np.ones(16, bool), shape=shape, pin=False)


def test_a_list_of_rows_stays_short() -> None:
    import numpy as np

    assert row_list(np.arange(3)) == "0, 1, 2"
    assert row_list(np.array([7, 2, 7, 7, 5, 2])) == "7, 2, 5"
    assert row_list(np.arange(100)).endswith("15, … 100 in all")
