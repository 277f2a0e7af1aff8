"""What ranks wait for each other, against a reckoning by hand and one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.order import Order
from packer.waiting import RowCosts, autocorrelation, rank_correlation, simulate


def costs(squares: np.ndarray, capacity: int = 1024) -> RowCosts:
    return RowCosts(capacity=capacity, squares=squares.astype(np.int64), targets=np.arange(len(squares)))


def test_two_ranks_by_hand() -> None:
    """Two kinds of rows, a row a rank: a pass of unlike rows costs the cheap one's rank the difference; a window of 2 steps has none."""
    dear, cheap, capacity = 1024**2, 64 * 1024, 1024
    found = simulate(costs(np.array([dear, dear, cheap, cheap])), ranks=2, rows_per_step=2)
    steps = [Order(rows=4, rows_per_step=2, positions=4, seed=0).step(step).rows.tolist() for step in (0, 1)]
    mixed = [len({row < 2 for row in step}) == 2 for step in steps]
    slow, fast = capacity + dear / 65_536, capacity + cheap / 65_536
    lost, time = sum(slow - fast for one in mixed if one), sum(slow if one else (slow + fast) / 2 for one in mixed)
    assert found.every_layer.off == found.every_layer.batch == pytest.approx(lost / (2 * time))
    assert found.every_layer.window == 0
    assert found.steps == 2


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 12), st.integers(1, 60))
def test_waiting_by_a_slow_reckoning(seed: int, ranks: int, per_step: int, count: int) -> None:
    squares = np.random.Generator(np.random.PCG64(seed)).integers(1, 1024**2, count)
    found = simulate(costs(squares), ranks=ranks, rows_per_step=per_step)
    order = Order(rows=count, rows_per_step=per_step, positions=count, seed=0)
    busy = waited = 0.0
    for number in range(order.steps):
        rows = order.step(number).rows.tolist()
        rows += [rows[-1]] * (-len(rows) % ranks)
        for first in range(0, len(rows), ranks):
            times = [1024 + squares[row] / 65_536 for row in rows[first : first + ranks]]
            busy += sum(times)
            waited += sum(max(times) - one for one in times)
    assert found.every_layer.off == pytest.approx(waited / (busy + waited), abs=1e-12)
    for shares in (found.every_layer, found.one_layer_in_four):
        assert all(0 <= value < 1 for value in (shares.batch, shares.window, shares.off))
    assert found.one_layer_in_four.off <= found.every_layer.off + 1e-12


def test_windows_trade_waiting_for_steps_that_differ() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    squares = np.array(
        [(rng.multinomial(1024, rng.dirichlet(np.ones(k))) ** 2).sum() for k in rng.integers(1, 9, 2000)]
    )
    found = simulate(costs(squares), ranks=8, rows_per_step=8)
    assert found.every_layer.window < 0.25 * found.every_layer.off
    # Of 8 rows at random the mean has an eighth of the variance of a row.
    assert found.make_up.random.attention == pytest.approx(1 / 8, abs=0.03)
    assert found.make_up.window.attention > 0.8
    assert found.make_up.window.targets == pytest.approx(found.make_up.random.targets, abs=0.04)


def test_batch_evens_out_what_several_rows_a_rank_allow() -> None:
    squares = np.random.Generator(np.random.PCG64(2)).integers(1, 1024**2, 960)
    found = simulate(costs(squares), ranks=4, rows_per_step=32)
    assert found.every_layer.batch < 0.35 * found.every_layer.off


def test_fewer_rows_than_a_step_are_no_error() -> None:
    found = simulate(costs(np.array([5])), ranks=8, rows_per_step=16)
    assert found.every_layer.off == 0
    assert found.make_up.random.attention == 0


def slow_spearman(values: list[int]) -> float:
    ranks = [sum(other < one for other in values) + (values.count(one) + 1) / 2 for one in values]
    return float(np.corrcoef(ranks, range(len(values)))[0, 1])


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40).filter(lambda values: len(set(values)) > 1))
def test_rank_correlation_by_counting(values: list[int]) -> None:
    assert rank_correlation(np.array(values)) == pytest.approx(slow_spearman(values))


def test_correlations_by_hand() -> None:
    assert rank_correlation(np.array([1, 10, 100])) == pytest.approx(1)
    assert rank_correlation(np.array([3, 2, 1])) == pytest.approx(-1)
    assert autocorrelation(np.array([0, 1, 0, 1, 0])) == pytest.approx(-1)
    for values in ([], [1], [2, 2, 2]):
        assert rank_correlation(np.array(values)) == autocorrelation(np.array(values)) == 0


def test_work_of_ranks_leaves_what_is_waited() -> None:
    """Four ranks of a row each: the same passes by a loop over them."""
    rng = np.random.default_rng(0)
    squares = rng.integers(1, 1 << 22, size=64)
    found = simulate(RowCosts(capacity=2048, squares=squares, targets=squares), ranks=4, rows_per_step=16)
    for balance in ("batch", "window", "off"):
        work, waited = getattr(found.work, balance), getattr(found.every_layer, balance)
        assert work[0] == 1
        assert list(work) == sorted(work, reverse=True)
        assert 1 - sum(work) / 4 == pytest.approx(waited)


def test_work_of_many_ranks_is_shown_in_groups() -> None:
    squares = np.arange(1, 129) * 1000
    found = simulate(RowCosts(capacity=64, squares=squares, targets=squares), ranks=64, rows_per_step=64)
    assert len(found.work.off) == 32
    assert 1 - sum(found.work.off) / 32 == pytest.approx(found.every_layer.off)
