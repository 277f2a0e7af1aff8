"""Whether two ways to train come out alike: paired differences, their t-interval, and what they are held against.

Each seed gives one pair: the held-out loss of a rung less that of the padded reference, from the same start on the same examples in the same groups. The mean
difference has the 95 % interval  mean ± t(0.975, n-1) · s / √n.  Equivalent means that this whole interval lies inside ±bound (Schuirmann's two one-sided
tests, each at 2.5 %), not that a difference could not be found; a wide interval is therefore never equivalent. The bound is the larger of

    margin   a share of the padded loss (0.5 % unless told otherwise): the difference that one is ready to live with
    floor    how far two padded runs lie apart that differ only in the order of examples inside each step, at 95 %: t(0.975, n) · rms(replicate − padded).
             Its mean is known to be 0, for the order is random in both, so n differences have n degrees of freedom. It does not shrink with more
             seeds: it is what one run differs by for no reason at all.

    >>> outcome = judge([2.001, 2.003, 1.999], [2.000, 2.004, 1.998], replicates=[2.001, 2.003, 2.000], margin_share=0.005)
    >>> outcome.equivalent, outcome.verdict
    (True, 'equivalent')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# With fewer, an interval of 95 % is so wide (12.7 standard errors with two) that it says nothing.
LEAST_SEEDS = 3
Verdict = Literal["equivalent", "not equivalent", "not shown", "too few seeds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """mean and sample standard deviation (None of one value) of a figure of each seed."""

    per_seed: tuple[float, ...]
    mean: float
    std: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """differences: of each seed. interval: of their mean, 95 %; None with one seed. margin, floor, bound: in units of the loss; floor is None without
    replicates. verdict: "not shown" where the interval is not inside the bound but does not exclude it either; that, too, is not equivalent."""

    differences: Spread
    interval: tuple[float, float] | None
    margin: float
    floor: float | None
    bound: float
    verdict: Verdict

    @property
    def equivalent(self) -> bool | None:
        """None where there are too few seeds to say."""
        return None if self.verdict == "too few seeds" else self.verdict == "equivalent"


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation; values: at least one."""
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else None
    return Spread(per_seed=tuple(values), mean=mean, std=std)


def interval_95(differences: Spread) -> tuple[float, float] | None:
    """The 95 % t-interval of the mean; None of one value."""
    if differences.std is None:
        return None
    count = len(differences.per_seed)
    half = t_quantile(0.975, count - 1) * differences.std / math.sqrt(count)
    return differences.mean - half, differences.mean + half


def floor_of(padded: Sequence[float], replicates: Sequence[float]) -> float | None:
    """How far one replicate lies from its padded run, at 95 %: of differences whose mean is known to be 0. None without replicates."""
    if not replicates:
        return None
    squares = math.fsum((again - once) ** 2 for again, once in zip(replicates, padded, strict=True))
    return t_quantile(0.975, len(replicates)) * math.sqrt(squares / len(replicates))


def judge(
    rung: Sequence[float], padded: Sequence[float], *, replicates: Sequence[float], margin_share: float
) -> Outcome:
    """Holds the losses of a rung against those of the padded reference, seed by seed. replicates: of the reference, one a seed, or none."""
    differences = spread([ours - theirs for ours, theirs in zip(rung, padded, strict=True)])
    interval, floor = interval_95(differences), floor_of(padded, replicates)
    margin = margin_share * abs(spread(padded).mean)
    bound = margin if floor is None else max(margin, floor)
    verdict: Verdict
    if interval is None or len(differences.per_seed) < LEAST_SEEDS:
        verdict = "too few seeds"
    elif -bound < interval[0] and interval[1] < bound:
        verdict = "equivalent"
    elif interval[1] < -bound or interval[0] > bound:
        verdict = "not equivalent"
    else:
        verdict = "not shown"
    return Outcome(differences=differences, interval=interval, margin=margin, floor=floor, bound=bound, verdict=verdict)


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t with a whole number of degrees of freedom, for probability in (0.5, 1), to 1e-12 of its value."""
    if not (0.5 < probability < 1 and freedom >= 1):
        raise ValueError(f"t_quantile({probability}, {freedom})")
    low, high = 0.0, 1.0
    while t_below(high, freedom) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < probability else (low, middle)
    return high


def t_below(t: float, freedom: int) -> float:
    """P(T < t), t ≥ 0, by the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    if freedom % 2:
        term = total = math.cos(angle) if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= square * (k - 1) / k
            total += term
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term = total = 1.0
        for k in range(2, freedom - 1, 2):
            term *= square * (k - 1) / k
            total += term
        inside = sine * total
    return (1 + inside) / 2
