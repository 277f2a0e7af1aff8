"""Which rows a step trains on is a function of a few integers, and the number of ranks is not one of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.order import Order, StepRows, deal, permutation


def test_the_permutation_is_fixed_for_all_time() -> None:
    """Written down from one run: another numpy must give the same, or resumed runs would see other rows."""
    assert permutation(10, 3, 1).tolist() == [0, 6, 2, 1, 3, 7, 4, 9, 8, 5]
    assert sorted(permutation(1000, 5).tolist()) == list(range(1000))


@given(st.integers(1, 13), st.integers(1, 9), st.integers(1, 3), st.integers(0, 5))
def test_each_epoch_holds_every_row_once(rows: int, per_step: int, epochs: int, seed: int) -> None:
    order = Order(rows=rows, rows_per_step=per_step, positions=epochs * rows, seed=seed)
    assert order.steps == -(-epochs * rows // per_step)
    seen = Counter()
    for number in range(order.steps):
        step = order.step(number)
        assert len(step.rows) == per_step
        seen.update((int(e), int(r)) for e, r, w in zip(step.epochs, step.rows, step.weights, strict=True) if w)
    assert seen == Counter({(epoch, row): 1 for epoch in range(epochs) for row in range(rows)})


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(Order(rows=50, rows_per_step=50, positions=100, seed=seed).step(step).rows)
        for seed in (0, 1)
        for step in (0, 1)
    }
    assert len(orders) == 4


def test_a_step_outside_the_run_is_an_error() -> None:
    order = Order(rows=5, rows_per_step=2, positions=5, seed=0)
    for step in (-1, 3):
        with pytest.raises(IndexError):
            order.step(step)


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(["batch", "window", "off"]),
    st.lists(st.integers(0, 9), min_size=12, max_size=12),
)
def test_dealing_gives_every_row_of_a_step_to_exactly_one_rank(
    count: int, world: int, micro_rows: int, balance: str, costs: list[int]
) -> None:
    weights = np.arange(count) < max(1, count - 2)
    step = StepRows(rows=np.arange(100, 100 + count), epochs=np.zeros(count, dtype=np.int64), weights=weights)
    dealt = deal(step, cost=np.array(costs[:count]), world=world, micro_rows=micro_rows, balance=balance)
    assert dealt.rows.shape == dealt.weights.shape == (-(-count // (world * micro_rows)), world, micro_rows)
    assert sorted(dealt.rows[dealt.weights].tolist()) == step.rows[weights].tolist()


def test_ranks_work_on_like_rows_at_the_same_time() -> None:
    cost = np.array([1, 100, 2, 99, 3, 98, 4, 97])
    step = StepRows(rows=np.arange(8), epochs=np.zeros(8, dtype=np.int64), weights=np.ones(8, dtype=bool))
    dealt = deal(step, cost=cost, world=4, micro_rows=1, balance="batch")
    assert sorted(cost[dealt.rows[0, :, 0]].tolist()) == [97, 98, 99, 100]
    assert sorted(cost[dealt.rows[1, :, 0]].tolist()) == [1, 2, 3, 4]
    two = deal(step, cost=cost, world=2, micro_rows=2, balance="batch")
    assert cost[two.rows[0]].sum(axis=1).tolist() == [100 + 97, 99 + 98]


def windowed(rows: int, per_step: int, epochs: int, seed: int, cost: np.ndarray) -> list[StepRows]:
    order = Order(rows=rows, rows_per_step=per_step, positions=epochs * rows, seed=seed, balance="window")
    return [order.step(step, cost=cost) for step in range(order.steps)]


costs_of = st.integers(0, 2**31).map(lambda seed: np.random.Generator(np.random.PCG64(seed)).integers(0, 50, 400))


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 3), st.integers(0, 5), costs_of)
def test_a_windowed_epoch_holds_every_row_once(
    rows: int, per_step: int, epochs: int, seed: int, costs: np.ndarray
) -> None:
    seen = Counter()
    steps = windowed(rows, per_step, epochs, seed, costs[:rows])
    for step in steps:
        assert len(step.rows) == per_step
        seen.update((int(e), int(r)) for e, r, w in zip(step.epochs, step.rows, step.weights, strict=True) if w)
    assert seen == Counter({(epoch, row): 1 for epoch in range(epochs) for row in range(rows)})
    plain = Order(rows=rows, rows_per_step=per_step, positions=epochs * rows, seed=seed)
    assert [int(step.weights.sum()) for step in steps] == [
        int(plain.step(step).weights.sum()) for step in range(plain.steps)
    ]


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 9), st.integers(0, 5), costs_of)
def test_a_step_that_spans_epochs_keeps_its_rows_and_no_other_has_a_row_twice(
    rows: int, per_step: int, seed: int, costs: np.ndarray
) -> None:
    plain = Order(rows=rows, rows_per_step=per_step, positions=3 * rows, seed=seed)
    for number, step in enumerate(windowed(rows, per_step, 3, seed, costs[:rows])):
        epochs = {place // rows for place in range(number * per_step, (number + 1) * per_step)}
        if len(epochs) > 1:
            assert step.rows.tolist() == plain.step(number).rows.tolist()
        else:
            assert set(step.epochs.tolist()) == epochs
            assert len(set(step.rows.tolist())) == per_step


def test_windows_by_hand() -> None:
    """70 rows, 2 a step: an epoch has 35 steps, so windows of 16, 16 and 3 steps. The cost of a row is its number, so each step gets neighbours."""
    cost = np.arange(70)
    stream = Order(rows=70, rows_per_step=2, positions=140, seed=4)
    steps = windowed(70, 2, 2, 4, cost)
    for first, end in ((0, 16), (16, 32), (32, 35), (35, 51), (51, 67), (67, 70)):
        inside = sorted(row for step in range(first, end) for row in stream.step(step).rows.tolist())
        pairs = [inside[place : place + 2] for place in range(0, len(inside), 2)]
        assert sorted(steps[step].rows.tolist() for step in range(first, end)) == pairs
    # Which step gets which is drawn: not in the order of cost, nor in the same order in each window.
    ranks = [np.argsort([steps[first + step].rows[0] for step in range(16)]).tolist() for first in (0, 16, 35, 51)]
    assert len({tuple(rank) for rank in ranks}) == 4
    assert list(range(16)) not in ranks


def test_windows_follow_the_epochs_where_steps_do_not_divide_them() -> None:
    """33 rows, 2 a step: step 16 spans epochs 0 and 1, so epoch 1 has its whole steps from step 17 (position 34) to step 32 (65)."""
    cost = np.arange(33)
    stream = Order(rows=33, rows_per_step=2, positions=66, seed=1)
    steps = windowed(33, 2, 2, 1, cost)
    assert steps[16].rows.tolist() == stream.step(16).rows.tolist()
    assert sorted(steps[16].epochs.tolist()) == [0, 1]
    for first, end in ((0, 16), (17, 33)):
        inside = sorted(row for step in range(first, end) for row in stream.step(step).rows.tolist())
        assert sorted(steps[step].rows.tolist() for step in range(first, end)) == [
            inside[place : place + 2] for place in range(0, 32, 2)
        ]


def test_a_window_does_not_know_where_the_run_ends() -> None:
    cost = np.random.Generator(np.random.PCG64(0)).integers(0, 1000, 500)
    long, short = (
        Order(rows=500, rows_per_step=4, positions=positions, seed=2, balance="window") for positions in (2000, 40)
    )
    for step in range(short.steps):
        assert short.step(step, cost=cost).rows.tolist() == long.step(step, cost=cost).rows.tolist()


def test_a_window_without_costs_is_an_error() -> None:
    order = Order(rows=5, rows_per_step=2, positions=5, seed=0, balance="window")
    for cost in (None, np.arange(4)):
        with pytest.raises(ValueError, match="cost of every row"):
            order.step(0, cost=cost)


def test_the_permutation_breaks_ties_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal 64-bit keys never came up; here all are."""

    class Constant:
        def __init__(self, _: object) -> None: ...

        def random_raw(self, size: int) -> np.ndarray:
            return np.arange(size, dtype=np.uint64) % 3

    monkeypatch.setattr(np.random, "PCG64", Constant)
    assert permutation(300, 0).tolist() == sorted(range(300), key=lambda place: (place % 3, place))


def test_windows_take_away_most_of_the_waiting_of_one_row_a_rank() -> None:
    """8 ranks, a row each, rows of one to many examples: a step takes as long as its most expensive row."""
    rng = np.random.Generator(np.random.PCG64(3))
    cost = np.array([(rng.multinomial(8192, rng.dirichlet(np.ones(k))) ** 2).sum() for k in rng.integers(1, 12, 4000)])
    waiting = {}
    for balance in ("off", "batch", "window"):
        order = Order(rows=4000, rows_per_step=8, positions=4000, seed=0, balance=balance)
        lost = 0
        for step in range(order.steps):
            rows = order.step(step, cost=cost)
            dealt = deal(rows, cost=cost[rows.rows], world=8, micro_rows=1, balance=balance)
            busy = cost[dealt.rows].sum(axis=2)
            lost += (busy.max(axis=1, keepdims=True) - busy).sum()
        waiting[balance] = lost
    assert waiting["batch"] == waiting["off"], "with one row a rank there is nothing to deal"
    assert waiting["window"] < 0.25 * waiting["off"]
