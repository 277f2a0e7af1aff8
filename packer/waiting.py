"""What ranks wait for each other, and what evening that out costs: a run's first steps simulated on the rows of a corpus, by `packer.order` itself.

Every rank computes as many slots, so ranks differ only in attention, Σ len² of their rows. A pass takes as long as its slowest rank.

    >>> rows = RowCosts(capacity=64, squares=np.array([4096, 64] * 8), targets=np.arange(16))
    >>> waiting = simulate(rows, ranks=2, rows_per_step=2)
    >>> waiting.every_layer.window
    0.0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np

from packer.order import Balance, Deal, Order, StepRows, deal
from packer.types import Int64Array

# So many tokens a token attends to before that costs as much as its way through the linear layers: in a layer of p weights with h heads of size d,
# 2·p against 2·h·d operations a token of the segment (causal, so half of it on average): 68,000 where p is 0.42e9 and h·d 6,144, as at 27B.
_PARITY = 65_536
_LAYERS = 4
COST_MODEL = (
    f"slots + Σ len² ÷ {_PARITY:,} (attention in every layer) or ÷ {_PARITY * _LAYERS:,} (in one layer of four), as in a model of about "
    "27B parameters; a pass takes as long as its slowest rank"
)
# 100 windows: by then the figures no longer move, and it takes under a second.
_STEPS = 1600
_MOST_SHOWN = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCosts:
    """C, and of every row Σ len² and its targets: int64 [R], R ≥ 1."""

    capacity: int
    squares: Int64Array
    targets: Int64Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """A share (0 to 1) for each --balance of a run."""

    batch: float
    window: float
    off: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """For each --balance, what ranks work while the slowest does, from the slowest (1.0) to the fastest: the mean pass. 1 less their mean is the share
    that is waited. Many ranks are shown as the means of at most 32 groups.
    """

    batch: tuple[float, ...]
    window: tuple[float, ...]
    off: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BetweenSteps:
    """Of the variance between rows, the share that is between the means of steps: of attention cost (Σ len²), and of targets."""

    attention: float
    targets: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeUp:
    """What steps are made of. random: in the stream's order, as "batch" and "off" leave it (about 1 ÷ rows a step); window: of like rows."""

    random: BetweenSteps
    window: BetweenSteps


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """every_layer, one_layer_in_four: the share of the ranks' time spent waiting for the slowest, by how much of the model is full attention. work: of
    ranks in the first of these two.
    """

    ranks: int
    rows_per_step: int
    steps: int
    cost_model: str
    every_layer: Shares
    one_layer_in_four: Shares
    work: Work
    make_up: MakeUp


def simulate(rows: RowCosts, *, ranks: int, rows_per_step: int) -> Waiting:
    """The first steps of an epoch (seed 0, a row a rank and pass), dealt to `ranks` ranks under each balance."""
    steps = min(_STEPS, -(-len(rows.squares) // rows_per_step))
    squares: dict[Balance, Int64Array] = {}
    between: dict[Balance, BetweenSteps] = {}
    for balance in get_args(Balance):
        made = list(_steps(rows, balance, ranks=ranks, rows_per_step=rows_per_step, steps=steps))
        squares[balance] = np.concatenate([rows.squares[dealt.rows].sum(axis=2) for _, dealt in made])
        # A step that filling completes is none of the stream's.
        whole = np.array([step.rows for step, _ in made if step.weights.all()], dtype=np.int64)
        whole = whole.reshape(-1, rows_per_step)
        between[balance] = BetweenSteps(attention=_between(rows.squares[whole]), targets=_between(rows.targets[whole]))

    def shares(parity: int) -> Shares:
        return Shares(**{balance: _waiting(rows.capacity + found / parity) for balance, found in squares.items()})

    return Waiting(
        ranks=ranks,
        rows_per_step=rows_per_step,
        steps=steps,
        cost_model=COST_MODEL,
        every_layer=shares(_PARITY),
        one_layer_in_four=shares(_PARITY * _LAYERS),
        work=Work(**{balance: _work(rows.capacity + found / _PARITY) for balance, found in squares.items()}),
        make_up=MakeUp(random=between["off"], window=between["window"]),
    )


def _steps(
    rows: RowCosts, balance: Balance, *, ranks: int, rows_per_step: int, steps: int
) -> Iterator[tuple[StepRows, Deal]]:
    count = len(rows.squares)
    order = Order(rows=count, rows_per_step=rows_per_step, positions=count, seed=0, balance=balance)
    for number in range(steps):
        step = order.step(number, cost=rows.squares)
        yield step, deal(step, cost=rows.squares[step.rows], world=ranks, micro_rows=1, balance=balance)


def _waiting(busy: np.ndarray) -> float:
    """Of passes and ranks [P, world], the share of the time that ranks do not work in."""
    return float(1 - busy.mean(axis=1).sum() / busy.max(axis=1).sum())


def _work(busy: np.ndarray) -> tuple[float, ...]:
    """Of passes and ranks [P, world]: ranks in the order of their work in each pass, what they work ÷ what the slowest does, over all passes."""
    ordered = -np.sort(-busy, axis=1)
    shares = ordered.sum(axis=0) / ordered[:, 0].sum()
    return tuple(float(group.mean()) for group in np.array_split(shares, min(len(shares), _MOST_SHOWN)))


def _between(values: Int64Array) -> float:
    """The variance of the means of steps [T, G] ÷ that of all values; 0 where they do not vary."""
    spread = float(values.var()) if values.size else 0.0
    return float(values.mean(axis=1).var()) / spread if spread else 0.0


def rank_correlation(values: np.ndarray) -> float:
    """Spearman's: of values [n] with their place in the array, -1 to 1, equal values given their mean rank; 0 where it has no meaning."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return _correlation(ranks, np.arange(len(values)))


def autocorrelation(values: np.ndarray) -> float:
    """Of values [n] with their right-hand neighbours, -1 to 1; 0 where it has no meaning."""
    return _correlation(values[:-1], values[1:])


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if len(one) < 2 or not np.ptp(one) or not np.ptp(other):
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
