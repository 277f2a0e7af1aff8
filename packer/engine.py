"""Work spread over processes on one machine, results in order, memory bounded.

Workers are spawned, never forked: each makes its own tokenizer, and a fork after Rust threads have started can hang for ever.

    results = map_in_order(make_work, settings, tasks, workers=4, here=work)      # make_work(settings) runs once in each worker
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from packer.errors import UserError

_Settings = TypeVar("_Settings")
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_WAITING_A_WORKER = 3
_SECONDS_BETWEEN_LOOKS = 1.0

# What this worker process does with a task.
_work: Callable[[object], object] | None = None


def map_in_order(
    make: Callable[[_Settings], Callable[[_Task], _Result]],
    settings: _Settings,
    tasks: Iterable[_Task],
    *,
    workers: int,
    here: Callable[[_Task], _Result],
) -> Iterator[_Result]:
    """make(settings) applied to each task, results in the order of the tasks. here: the same, ready made, for this process.

    With one worker, or where there is only one task, it runs in this process: starting others would cost more than it saves. No more than three
    tasks a worker are under way, so memory does not grow with the number of tasks. An exception in a worker is raised here.
    """
    waiting = iter(tasks)
    first = list(islice(waiting, 2))
    if workers == 1 or len(first) < 2:
        yield from map(here, chain(first, waiting))
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=partial(_start, make, settings)
    )
    try:
        under_way: deque[Future[object]] = deque()
        for task in chain(first, waiting):
            under_way.append(pool.submit(_call, task))
            if len(under_way) >= workers * _WAITING_A_WORKER:
                yield under_way.popleft().result()  # type: ignore[misc]  # _call returns what make(settings) does
        while under_way:
            yield under_way.popleft().result()  # type: ignore[misc]
    except BrokenProcessPool:
        raise UserError(
            "a worker process ended before its work: killed, most likely for want of memory",
            "run again with fewer --workers; a script that calls packer.build needs `if __name__ == '__main__':` around it",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(make: Callable[[_Settings], Callable[[_Task], _Result]], settings: _Settings) -> None:
    global _work  # noqa: PLW0603  # a pool's initializer can leave its result nowhere else
    # The processes are the parallelism; threads of the encoder inside each would only fight over the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Ctrl-C reaches every process of a terminal; the parent answers for all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _work = make(settings)  # type: ignore[assignment]


def _end_with(parent: int) -> None:
    """Ends this process once its parent is gone (killed, it cannot say so): nobody is left to take its results."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _call(task: object) -> object:
    assert _work is not None, "the worker was not started by map_in_order"
    return _work(task)
