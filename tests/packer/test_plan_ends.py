"""Planning ends, and what it ends with is a plan: random small corpora, where a cap on the examples of a row matters most.

Steps are counted, not seconds. By the docstring of `packer.plan._places` the caps tried are multiples of 8 less 1 up to the fullest row or 104, and
one more for the plan without a cap; a filling takes at least one example a turn, under at most seven settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np
import pytest

import packer.exact_fill
import packer.plan
from packer.plan import Plan, lower_bound, make_plan
from packer.words import Strategy

CAPACITIES = (64, 128, 256, 512, 1024)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of the loops went round since this was last cleared; a loop that goes round more often than `allow` says fails."""
    counts: Counter[str] = Counter()

    def counted(name: str, step: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object, **named: object) -> object:
            counts[name] += 1
            assert counts[name] <= counts[f"most {name}"], f"more than {counts[f'most {name}']} {name}"
            return step(*arguments, **named)

        return counting

    monkeypatch.setattr(packer.plan, "_with_limit", counted("caps", packer.plan._with_limit))
    filling = packer.exact_fill._Filling
    monkeypatch.setattr(filling, "_one_row", counted("rows", filling._one_row))
    return counts


def allow(steps: Counter[str], examples: int, capacity: int) -> None:
    steps.clear()
    steps["most caps"] = 1 + max(104, min(examples, capacity) + 8) // 8
    steps["most rows"] = 7 * examples * steps["most caps"]


def counted_plan(
    steps: Counter[str], lengths: np.ndarray, capacity: int, align: int, strategy: Strategy, cap: int | None
) -> Plan:
    allow(steps, len(lengths), capacity // align)
    return make_plan(lengths, capacity=capacity, max_segments=cap, align=align, strategy=strategy)


def check(plan: Plan, lengths: np.ndarray, capacity: int, cap: int | None) -> None:
    assert (np.bincount(plan.members, minlength=len(lengths)) == 1).all()
    counts = np.diff(plan.offsets)
    assert plan.offsets[0] == 0
    assert plan.offsets[-1] == len(lengths)
    assert counts.min() > 0
    used = np.add.reduceat(lengths[plan.members], plan.offsets[:-1])
    assert used.max() <= capacity
    assert (counts + (used < capacity)).max() <= plan.max_segments
    assert plan.max_segments % 8 == 0
    assert not cap or counts.max() <= cap


def random_corpus(random: np.random.Generator) -> tuple[np.ndarray, int]:
    capacity = int(random.choice(CAPACITIES))
    examples = int(random.integers(1, 161))
    match random.integers(5):
        case 0:
            lengths = random.integers(1, capacity + 1, examples)
        case 1:
            lengths = random.gamma(2.0, capacity / random.choice([4, 8, 32]), examples)
        case 2:
            lengths = random.lognormal(np.log(capacity / 6), 1.0, examples)
        case 3:
            lengths = random.integers(max(1, capacity // 10), capacity // 2 + 1, examples)
        case _:  # few distinct lengths
            lengths = random.choice(random.integers(1, capacity + 1, int(random.integers(1, 7))), examples)
    return np.clip(lengths, 1, capacity).astype(np.int64), capacity


def try_random_corpora(steps: Counter[str], seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    for number in range(count):
        lengths, capacity = random_corpus(random)
        strategy: Strategy = random.choice(get_args(Strategy), p=[0.7, 0.1, 0.1, 0.1])
        cap = [None, None, 0, 1, 2, 3, 7, 15, 40][random.integers(9)]
        align = int(random.choice([1, 1, 1, 2, 8, 64]))
        rounded = -(-lengths // align) * align
        plan = partial(counted_plan, steps, lengths, capacity, align)
        try:
            made = plan(strategy, cap)
            check(made, rounded, capacity, cap)
            assert len(made) >= lower_bound(lengths, capacity, align=align)
            if strategy == "optimal":
                kept = made.max_segments - 1 if cap is None else cap
                assert len(made) <= len(plan("bfd", kept)), f"more rows than bfd under a cap of {kept}"
            if cap is None and strategy != "sequential":
                assert len(made) <= len(plan(strategy, 0)) * 1.001, "more than one row in a thousand above no cap"
        except AssertionError as error:
            error.add_note(f"{number=} {strategy=!s} {cap=} {align=} {capacity=} lengths={lengths.tolist()}")
            raise


def test_a_cap_is_found_where_rows_without_one_are_fewer_than_under_any(steps: Counter[str]) -> None:
    lengths = np.array([353, 188, 89, 247, 337, 429, 76, 91, 102, 61, 304, 206, 376, 78, 87, 149, 203, 98])
    plan = counted_plan(steps, lengths, 512, 1, "optimal", None)
    check(plan, lengths, 512, 7)
    # 3,474 tokens need 7 rows of 512.
    assert (len(plan), plan.max_segments) == (7, 8)


def test_small_corpora_get_a_valid_plan_in_few_steps(steps: Counter[str]) -> None:
    try_random_corpora(steps, seed=0, count=3000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 21))
def test_millions_of_small_corpora_get_a_valid_plan_in_few_steps(steps: Counter[str], seed: int) -> None:
    try_random_corpora(steps, seed=seed, count=100_000)
