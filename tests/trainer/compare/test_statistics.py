"""The statistics of a comparison, against printed tables and sums done by hand."""

from __future__ import annotations

import math

import pytest

from trainer.compare.statistics import floor_of, interval_95, judge, spread, t_below, t_quantile

# Two-sided 95 %, from the tables of any textbook.
TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    9: 2.262,
    10: 2.228,
    29: 2.045,
    30: 2.042,
    120: 1.980,
}


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8])
def test_the_share_below_is_the_integral_of_the_density(freedom: int) -> None:
    def density(x: float) -> float:
        scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    points, width = 20_000, 2.3 / 20_000
    simpson = sum(
        density(place * width) * (1 if place in (0, points) else 4 if place % 2 else 2) for place in range(points + 1)
    )
    assert t_below(2.3, freedom) == pytest.approx(0.5 + simpson * width / 3, abs=1e-10)


def test_the_interval_of_three_differences_by_hand() -> None:
    # mean 2, deviations -1, 0, 1: s = 1, standard error 1 / √3 = 0.57735, times 4.30265 = 2.48414
    interval = interval_95(spread([1.0, 2.0, 3.0]))
    assert interval == (pytest.approx(2 - 2.48414, abs=1e-4), pytest.approx(2 + 2.48414, abs=1e-4))
    assert interval_95(spread([1.0])) is None
    assert spread([1.0]).std is None


def test_the_floor_is_that_of_differences_around_a_known_mean_of_0() -> None:
    # differences 3, 4, 0: rms √(25 / 3) = 2.88675, times t(0.975, 3) = 3.18245
    assert floor_of([0.0, 1.0, 2.0], [3.0, 5.0, 2.0]) == pytest.approx(2.88675 * 3.18245, rel=1e-5)
    assert floor_of([1.0, 2.0, 3.0], []) is None


def test_equivalent_means_that_the_whole_interval_lies_inside_the_bound() -> None:
    padded = [10.0, 10.0, 10.0]
    # interval of differences (-0.001, 0, 0.001): ±0.00248, margin 0.05
    near = judge([9.999, 10.0, 10.001], padded, replicates=[], margin_share=0.005)
    assert (near.verdict, near.equivalent, near.margin, near.bound, near.floor) == (
        "equivalent",
        True,
        0.05,
        0.05,
        None,
    )
    # mean 0, but s = 0.1: ±0.248
    wide = judge([9.9, 10.0, 10.1], padded, replicates=[], margin_share=0.005)
    assert (wide.verdict, wide.equivalent) == ("not shown", False)
    # 0.2 ± 0.00248 lies outside altogether, on either side
    for sign in (-1, 1):
        far = judge([10 + sign * each for each in (0.199, 0.2, 0.201)], padded, replicates=[], margin_share=0.005)
        assert (far.verdict, far.equivalent) == ("not equivalent", False)


def test_an_interval_that_reaches_the_bound_by_a_hair_is_not_inside_it() -> None:
    padded = [10.0, 10.0, 10.0]
    half = t_quantile(0.975, 2) * 0.01 / math.sqrt(3)
    for shift, expected in ((0.05 - half - 1e-6, "equivalent"), (0.05 - half + 1e-6, "not shown")):
        rung = [10 + shift + each for each in (-0.01, 0.0, 0.01)]
        assert judge(rung, padded, replicates=[], margin_share=0.005).verdict == expected


def test_noise_of_replicates_widens_the_bound_and_quiet_replicates_do_not_narrow_it() -> None:
    padded, rung = [10.0, 10.0, 10.0], [10.06, 10.07, 10.08]
    # 0.07 ± 0.0248 is outside 0.05
    assert judge(rung, padded, replicates=[10.0, 10.0, 10.0], margin_share=0.005).equivalent is False
    loud = judge(rung, padded, replicates=[10.1, 9.9, 10.1], margin_share=0.005)
    assert loud.bound == loud.floor == pytest.approx(0.318245, rel=1e-5)
    assert loud.equivalent is True


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_say_nothing(seeds: int) -> None:
    outcome = judge([2.0, 2.1][:seeds], [2.0, 2.0][:seeds], replicates=[], margin_share=0.005)
    assert (outcome.verdict, outcome.equivalent) == ("too few seeds", None)
    assert (outcome.interval is None) == (seeds == 1)
