"""Which rows a step trains on is a function of a few integers, and the number of ranks is not one of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
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
    st.sampled_from(["batch", "off"]),
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
