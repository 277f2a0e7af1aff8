"""The rows of each step, read ahead of the model by a thread.

A thread, not processes: rows come from a memory map, and worker processes were 4 to 33 times slower. What goes
wrong in it is raised by `Prefetch.get` in the main thread. Every row that is read is held against the format; every shard's digest is verified
once, in the background, when one of its rows is first used.

    with Prefetch(read_steps(plans, corpus, rank=0, shape=shape, pin=False, check=check), depth=2) as steps:
        work = steps.get()
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np

from packer.errors import UserError
from packer.order import Deal, StepRows, deal
from packer.shards import Corpus, check_row
from packer.types import Int64Array, Row
from trainer.batch import Batch, Shape, make_batch, targets_of_examples
from trainer.by_source import Sources
from trainer.prepare import Counts, Prepared, row_list

_Item = TypeVar("_Item")
# Steps whose shards are being fetched from an address while one is read.
_FETCH_AHEAD = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """Who computes what in one step. step: from 0. Over all ranks and passes: supervised, its targets; weight, what these count, or None where rows have
    no weights; examples, those with at least one target (the sum of the mean weights of each one's targets), or None where the loss does not weigh by example.
    """

    step: int
    rows: Int64Array
    deal: Deal
    supervised: int
    examples: float | None = None
    weight: float | None = None

    @property
    def trained_rows(self) -> int:
        """Rows that are neither filling nor skipped."""
        return int(np.count_nonzero(self.deal.weights))

    @property
    def loss_weight(self) -> float:
        """What the summed cross-entropy is divided by where it is reported."""
        return self.supervised if self.weight is None else self.weight

    @property
    def denominator(self) -> float:
        """What the sum that is optimised is divided by."""
        return self.loss_weight if self.examples is None else self.examples


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """One step as a rank computes it: its passes, read and checked."""

    plan: StepPlan
    passes: tuple[Batch, ...]


def plan_step(prepared: Prepared, counts: Counts, step: int, *, world: int) -> StepPlan:
    """The plan of step `step` (from 0): a pure function of the run's options; only `deal` depends on the number of ranks.

    Raises UserError where nothing in the step is a target: its gradient would be 0 ÷ 0.
    """
    config = prepared.config
    rows = prepared.order.step(step, cost=counts.cost)
    if config.skip_rows:
        rows = StepRows(
            rows=rows.rows, epochs=rows.epochs, weights=rows.weights & ~np.isin(rows.rows, config.skip_rows)
        )
    trained = rows.rows[rows.weights]
    supervised = int(counts.supervised[trained].sum())
    if supervised == 0:
        raise UserError(
            f"step {step + 1}: none of its rows has a token to train on (rows {row_list(rows.rows)})",
            "`packer inspect --supervised` shows what is trained on; take more rows a step, or skip fewer",
        )
    # In the place of a skipped row the cheapest of the others is computed at weight 0: what is not finite is so at any weight (0·∞ is no number).
    held = np.where(np.isin(rows.rows, config.skip_rows), trained[np.argmin(counts.cost[trained])], rows.rows)
    computed = StepRows(rows=held, epochs=rows.epochs, weights=rows.weights)
    dealt = deal(computed, cost=counts.cost[held], world=world, micro_rows=config.micro_rows, balance=config.balance)
    by_example, weighted = config.loss_weighting == "example", prepared.corpus.manifest.weighted
    examples, weight = None, None
    if by_example or weighted:
        examples, weight = weigh(_read_row(prepared.corpus, int(number)) for number in trained)
    return StepPlan(
        step=step,
        rows=rows.rows,
        deal=dealt,
        supervised=supervised,
        examples=examples if by_example else None,
        weight=weight if weighted else None,
    )


def weigh(rows: Iterable[Row]) -> tuple[float, float]:
    """What the examples of rows count (each the mean of its targets' weights; without a target nothing), and what their targets do."""
    examples = targets = 0.0
    for row in rows:
        number, counted = targets_of_examples(row)
        examples += float((counted[number > 0] / number[number > 0]).sum())
        targets += float(counted.sum())
    return examples, targets


def _read_row(corpus: Corpus, number: int) -> Row:
    row = corpus[number]
    check_row(corpus, number, row)
    return row


def read_pass(
    corpus: Corpus, rows: Int64Array, weights: np.ndarray, *, shape: Shape, pin: bool, sources: Sources | None = None
) -> Batch:
    """Reads and checks the M rows of one pass; raises UserError with shard and row where one breaks a rule of the format."""
    read = [_read_row(corpus, int(number)) for number in rows]
    told_apart = (
        ()
        if sources is None
        else [sources.of_row(row, where=corpus.where(int(number))) for number, row in zip(rows, read, strict=True)]
    )
    return make_batch(read, numbers=rows.tolist(), weights=weights.tolist(), shape=shape, pin=pin, sources=told_apart)


def read_steps(
    plans: Iterator[StepPlan],
    corpus: Corpus,
    *,
    rank: int,
    shape: Shape,
    pin: bool,
    check: ShardCheck,
    sources: Sources | None = None,
) -> Iterator[StepWork]:
    """The work of one rank, step by step. sources: those of the corpus where the shape tells them apart."""
    for plan in _fetched_ahead(plans, corpus, rank):
        check.touch(plan.rows)
        passes = zip(plan.deal.rows[:, rank], plan.deal.weights[:, rank], strict=True)
        yield StepWork(
            plan=plan,
            passes=tuple(
                read_pass(corpus, rows, weights, shape=shape, pin=pin, sources=sources) for rows, weights in passes
            ),
        )


def _fetched_ahead(plans: Iterator[StepPlan], corpus: Corpus, rank: int) -> Iterator[StepPlan]:
    """The plans; while one is worked on, the shards at an address that the rank needs for the next few are on their way."""
    if not corpus.verifies_itself:
        yield from plans
        return
    waiting: deque[StepPlan] = deque()
    for plan in plans:
        corpus.ahead(dict.fromkeys(corpus.shard_of(int(row)) for row in plan.deal.rows[:, rank].reshape(-1)))
        waiting.append(plan)
        if len(waiting) > _FETCH_AHEAD:
            yield waiting.popleft()
    yield from waiting


class DamagedShardError(UserError):
    """A shard was not as it was written, and steps may have been trained on it: what they made is not worth saving."""


class ShardCheck:
    """Verifies the digest of each shard once, in the background, from when a step first uses it.

    The ranks of one machine share the work (they read the same files): shard k is verified by local rank k mod the number of local ranks.
    """

    def __init__(self, corpus: Corpus, *, local_rank: int, local_world: int) -> None:
        self._corpus = corpus
        self._mine = [shard % local_world == local_rank for shard in range(len(corpus.info.shards))]
        self._checks: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shard-check")

    def touch(self, rows: Int64Array) -> None:
        """Notes that a step uses these rows."""
        if self._corpus.verifies_itself:
            return
        for shard in {self._corpus.shard_of(int(row)) for row in rows}:
            if self._mine[shard] and shard not in self._checks:
                self._checks[shard] = self._pool.submit(self._verify, shard)

    def _verify(self, shard: int) -> None:
        try:
            self._corpus.verify_shard(shard)
        except UserError as error:
            raise DamagedShardError(error.message, error.hint) from None
        except OSError as error:
            name = self._corpus.info.shards[shard].file
            raise UserError(
                f"{self._corpus.name}/{name}: cannot be read ({error.strerror})",
                "restore the shard from a copy, and go on from the last checkpoint",
            ) from None

    def raise_if_broken(self) -> None:
        """Raises the UserError of a shard that was found to differ; does not wait."""
        for check in list(self._checks.values()):
            if check.done():
                check.result()

    def finish(self) -> None:
        """Waits until every shard that was used is verified; raises the UserError of one that differs."""
        for check in list(self._checks.values()):
            check.result()

    def close(self) -> None:
        """Drops what is not yet verified."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


class Prefetch(Generic[_Item]):
    """Runs an iterator in a thread, at most `depth` items ahead. The thread ends with the `with` block."""

    def __init__(self, source: Iterator[_Item], *, depth: int) -> None:
        self._source = source
        self._items: queue.Queue[_Item | _Failure | None] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetch[_Item]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def get(self) -> _Item:
        """The next item; raises what the iterator raised in the thread, and StopIteration at its end."""
        item = self._items.get()
        if isinstance(item, _Failure):
            raise item.error
        if item is None:
            raise StopIteration
        return item

    def _run(self) -> None:
        try:
            for item in self._source:
                if not self._put(item):
                    return
            self._put(None)
        except Exception as error:  # noqa: BLE001  # whatever it is belongs to the main thread, which raises it
            self._put(_Failure(error))

    def _put(self, item: _Item | _Failure | None) -> bool:
        while not self._stop.is_set():
            try:
                self._items.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False
