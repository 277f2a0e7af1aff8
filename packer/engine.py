"""Where tasks run: in this process, over processes on one machine, or (packer.engine_ray) over a cluster. Results in order, memory bounded.

    with LocalEngine(workers=4, folder=out) as engine:
        for number in engine.map(make_part_writer, settings, tasks, here=write, alone=False): ...

A task writes a file, whole or not at all, and the same one however often it is done; what comes back is small. `make(settings)` is called once in each
worker process: it loads the tokenizer, say.

Workers are spawned, never forked: a fork after Rust threads have started can hang for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import chain, islice
from multiprocessing.synchronize import Event
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from packer.errors import UserError
from packer.folder import at_work

Settings = TypeVar("Settings", bound=Hashable)
Task = TypeVar("Task")
Result = TypeVar("Result")
# A part that waits is some megabytes of text in this process.
_WAITING_A_WORKER = 2
_SECONDS_BETWEEN_LOOKS = 0.25
_at_work = ExitStack()


class Engine(Protocol):
    """What the stages of a build ask for. name: as the build's log has it."""

    name: str

    def map(
        self,
        make: Callable[[Settings], Callable[[Task], Result]],
        settings: Settings,
        tasks: Iterable[Task],
        *,
        here: Callable[[Task], Result],
        alone: bool,
    ) -> Iterator[Result]:
        """make(settings) applied to each task, results in the order of the tasks.

        here: the same, ready made, for this process. alone: there is so little to do that starting processes would cost more than it saves. A bounded
        number of tasks are under way, so memory does not grow with the number of tasks. An exception of a task is raised here.
        """
        ...

    def settle(self) -> None:
        """Returns once no task of an earlier `map` is under way any more, whether or not its results were taken."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalEngine:
    """Processes on this machine, started when they are first worth it and kept to the end. folder: what they write into, held while one of them lives."""

    name = "local"

    def __init__(self, *, workers: int, folder: Path) -> None:
        self._workers = workers
        self._folder = folder
        self._context = multiprocessing.get_context("spawn")
        self._stop: Event | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._under_way: deque[Future[object]] = deque()

    def map(
        self,
        make: Callable[[Settings], Callable[[Task], Result]],
        settings: Settings,
        tasks: Iterable[Task],
        *,
        here: Callable[[Task], Result],
        alone: bool,
    ) -> Iterator[Result]:
        """As `Engine.map`; raises UserError where a worker process was killed."""
        waiting = iter(tasks)
        first = list(islice(waiting, 2))
        if self._workers == 1 or len(first) < 2 or (alone and self._pool is None):
            yield from map(here, chain(first, waiting))
            return
        pool = self._started()
        under_way = self._under_way
        try:
            for task in chain(first, waiting):
                under_way.append(pool.submit(_call, make, settings, task))
                if len(under_way) >= self._workers * _WAITING_A_WORKER:
                    yield under_way.popleft().result()  # type: ignore[misc]  # _call returns what make(settings) does
            while under_way:
                yield under_way.popleft().result()  # type: ignore[misc]
        except BrokenProcessPool:
            raise UserError(
                "a worker process ended before its work: killed, most likely for want of memory",
                "run again with fewer --workers (finished parts are kept); a script that calls packer.build needs `if __name__ == '__main__':` around it",
            ) from None
        finally:
            for future in under_way:
                future.cancel()

    def settle(self) -> None:
        wait([future for future in self._under_way if not future.cancelled()])
        self._under_way.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._stop is not None:
            # Nobody is left to take their results, and a task is done again as a whole.
            self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._stop = self._context.Event()
            start = partial(_start, self._folder, self._stop, os.getpid())
            self._pool = ProcessPoolExecutor(self._workers, mp_context=self._context, initializer=start)
        return self._pool


def _start(folder: Path, stop: Event, parent: int) -> None:
    # The processes are the parallelism; threads of the encoder inside each would only fight over the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Ctrl-C reaches every process of a terminal; the parent answers for all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not os.getppid(): a parent killed while this process was still importing is gone already, and another stands in its place.
    threading.Thread(target=_end_with, args=(parent, stop), daemon=True).start()
    # Held until the process ends.
    _at_work.enter_context(at_work(folder))


def _end_with(parent: int, stop: Event) -> None:
    """Ends this process once its parent says so, or is gone (killed, it cannot say so): nobody is left to take its results."""
    while os.getppid() == parent and not stop.is_set():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _call(make: Callable[[Settings], Callable[[Task], Result]], settings: Settings, task: Task) -> Result:
    return made(make, settings)(task)  # type: ignore[return-value]  # a cache forgets types


@lru_cache(maxsize=2)
def made(make: Callable[[Hashable], Callable[[object], object]], settings: Hashable) -> Callable[[object], object]:
    """make(settings), once a process."""
    return make(settings)
