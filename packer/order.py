"""Which rows a step trains on, and which rank takes which: pure functions of a few integers.

Training reads an endless stream of epochs, each a permutation of the R rows. Step s takes the G positions from s·G on; position p lies in
epoch p ÷ R. The run ends after `positions` of them, so it has ceil(positions ÷ G) steps, and what the last step lacks is filled with rows of
weight 0. Neither the number of ranks nor the rows of a pass can change which rows make up a step; they only decide who computes them (`deal`).

    >>> order = Order(rows=5, rows_per_step=4, positions=10, seed=0)
    >>> order.steps, [int(order.step(s).weights.sum()) for s in range(order.steps)]
    (3, [4, 4, 2])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from packer.types import BoolArray, Int64Array

Balance = Literal["batch", "window", "off"]
WINDOW_STEPS = 16


def permutation(size: int, *seed: int) -> Int64Array:
    """A random order of range(size): int64 [size], the same for the same seed words (each ≥ 0) in every version of numpy.

    The raw stream of PCG64 is covered by numpy's promise of stability (NEP 19), its `Generator.permutation` is not, and what order rows were
    written and trained in must not change with an upgrade. So: sort by raw 64-bit keys, ties by place.
    """
    keys = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(size)
    # Several times faster than the stable sort, and the same unless two of the 64-bit keys are equal.
    order = np.argsort(keys)
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


# A step may span two epochs, or many of a small corpus, each of them small.
@lru_cache(maxsize=4)
def _epoch(rows: int, seed: int, epoch: int) -> Int64Array:
    order = permutation(rows, seed, epoch)
    order.flags.writeable = False
    return order


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRows:
    """The rows of one optimiser step: rows int64 [G], epochs int64 [G] (the epoch each lies in), weights bool [G] (false: filling, not trained on)."""

    rows: Int64Array
    epochs: Int64Array
    weights: BoolArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The order of a whole run: R rows, G rows a step, `positions` in all (epochs·R, or steps·G), a seed.

    balance: with "window" the steps of an epoch that lie wholly in it are taken 16 at a time, the rows of these are sorted by cost, and each step
    gets G neighbours of that order, which steps get which drawn by the seed. Rows change places only within their epoch, and a step that spans two
    keeps its own, so an epoch still has every row once and no step has a row twice. "batch" and "off" leave the stream as it is.
    """

    rows: int
    rows_per_step: int
    positions: int
    seed: int
    balance: Balance = "batch"

    def __post_init__(self) -> None:
        if min(self.rows, self.rows_per_step, self.positions) < 1 or self.seed < 0:
            raise ValueError(
                f"an order needs rows, rows_per_step and positions of at least 1 and a seed of at least 0: {self}"
            )

    @property
    def steps(self) -> int:
        """Optimiser steps of the run."""
        return -(-self.positions // self.rows_per_step)

    def step(self, step: int, *, cost: Int64Array | None = None) -> StepRows:
        """The rows of step `step`. cost: int64 [R], the attention cost of every row of the corpus (`sum_sq_len`), which only "window" looks at.

        Raises IndexError outside the run, ValueError where "window" is given no costs.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of a run of {self.steps}")
        first = step * self.rows_per_step
        positions = np.arange(first, first + self.rows_per_step, dtype=np.int64)
        weights = positions < self.positions
        if self.balance == "window":
            if cost is None or len(cost) != self.rows:
                raise ValueError("balance 'window' needs the cost of every row")
            positions = self._windowed(step, positions, cost)
        epochs, rows = self._at(positions)
        return StepRows(rows=rows, epochs=epochs, weights=weights)

    def _windowed(self, step: int, positions: Int64Array, cost: Int64Array) -> Int64Array:
        """The positions whose rows a step trains on: its share of its window, or its own where it spans epochs."""
        size = self.rows_per_step
        epoch = int(positions[0]) // self.rows
        if int(positions[-1]) // self.rows != epoch:
            return positions
        # The steps that lie wholly in the epoch, and of those this window's.
        first, end = -(-epoch * self.rows // size), (epoch + 1) * self.rows // size
        window = (step - first) // WINDOW_STEPS
        first += window * WINDOW_STEPS
        steps = min(WINDOW_STEPS, end - first)
        inside = np.arange(first * size, (first + steps) * size, dtype=np.int64)
        inside = inside[np.argsort(cost[self._at(inside)[1]], kind="stable")]
        # Seed words are padded with zeros: without the 1, the first window would be drawn like the epoch itself.
        share = int(permutation(steps, self.seed, epoch, window + 1)[step - first])
        return inside[share * size : (share + 1) * size]

    def _at(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(epochs, rows) at places of the stream."""
        epochs, places = np.divmod(positions, self.rows)
        rows = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            rows[inside] = _epoch(self.rows, self.seed, int(epoch))[places[inside]]
        return epochs, rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Deal:
    """Who computes what: rows int64 [passes, world, M], weights bool of the same shape. Every rank makes every pass."""

    rows: Int64Array
    weights: BoolArray


def deal(step: StepRows, *, cost: Int64Array, world: int, micro_rows: int, balance: Balance) -> Deal:
    """Deals a step's rows to `world` ranks, `micro_rows` (M) to a rank and pass.

    cost: int64 [G], the attention cost of each of the step's rows (`sum_sq_len`). With "batch" and "window" the rows are sorted by cost and dealt
    pass by pass, back and forth over the ranks, so that ranks work on like rows at the same time; with "off" they keep the stream's order.
    Places that the rows do not fill hold a repeated row at weight 0.
    """
    count = len(step.rows)
    order = np.arange(count) if balance == "off" else np.argsort(-cost, kind="stable")
    passes = -(-count // (world * micro_rows))
    filled = np.concatenate([order, np.repeat(order[-1:], passes * world * micro_rows - count)])
    weights = step.weights[filled] & (np.arange(len(filled)) < count)
    shape = (passes, micro_rows, world)
    rows, weights = step.rows[filled].reshape(shape), weights.reshape(shape)
    if balance != "off":
        rows[:, 1::2] = rows[:, 1::2, ::-1].copy()
        weights[:, 1::2] = weights[:, 1::2, ::-1].copy()
    return Deal(rows=rows.transpose(0, 2, 1).copy(), weights=weights.transpose(0, 2, 1).copy())
