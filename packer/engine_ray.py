"""Tasks on a Ray cluster: `packer build --engine ray`. The only module that knows Ray; Ray core alone, no Ray Data.

    with RayEngine(address=None, workers=4, folder=out) as engine:
        for number in engine.map(make_part_writer, settings, tasks, here=write, alone=False): ...

The output folder must be one that every node sees under the same path: tasks read from it and write into it, and only small results come back. A
worker or a node that is lost costs its unfinished tasks, which Ray starts again elsewhere; since a task writes its file whole or not at all, and the
same one each time, it does not matter if two of them do.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from packer.engine import Result, Settings, Task, made
from packer.errors import UserError
from packer.folder import at_work

if TYPE_CHECKING:
    import ray

# As many tasks wait for each core as keep it busy; a part that waits lies in Ray's object store.
_WAITING_A_CORE = 2
# Of a task whose worker was killed. The same part killing as many workers is most likely too large for their memory.
_TRIES = 5
_SECONDS_TO_ANSWER = 10


class RayEngine:
    """A cluster at an address, or, without one, processes on this machine under a Ray of their own. folder: what tasks write into.

    Raises UserError where Ray is not installed or the cluster does not answer.
    """

    name = "ray"

    def __init__(self, *, address: str | None, workers: int, folder: Path) -> None:
        self._address = address
        self._workers = workers
        self._folder = folder.resolve()
        self._under_way: deque[ray.ObjectRef[object]] = deque()

    def __enter__(self) -> Self:
        # Ray reads these when it starts: nothing is reported, and no news of its own stands between ours.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise UserError(
                "--engine ray: Ray is not installed", "pip install 'packer-trainer[ray]', or take --engine local"
            ) from None
        if self._address is not None:
            _knock(self._address)
        try:
            ray.init(
                address=self._address or "local",
                num_cpus=None if self._address else self._workers,
                include_dashboard=None if self._address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError, RuntimeError, TimeoutError, OSError) as error:
            raise _no_cluster(self._address or "this machine", error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()

    def map(
        self,
        make: Callable[[Settings], Callable[[Task], Result]],
        settings: Settings,
        tasks: Iterable[Task],
        *,
        here: Callable[[Task], Result],  # noqa: ARG002  # nothing is done in this process: it plans
        alone: bool,  # noqa: ARG002  # whoever asks for a cluster means it
    ) -> Iterator[Result]:
        """As `Engine.map`: one Ray task each; raises UserError where a task's worker was lost again and again."""
        import ray

        call = ray.remote(num_cpus=1, max_retries=_TRIES)(_call)  # type: ignore[var-annotated]  # generic in what it is given
        shared = ray.put((make, settings))
        under_way = self._under_way
        most = _WAITING_A_CORE * max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]  # untyped there
        try:
            for task in tasks:
                under_way.append(call.remote(self._folder, shared, task))
                if len(under_way) >= most:
                    yield self._next()  # type: ignore[misc]  # _call returns what make(settings) does
            while under_way:
                yield self._next()  # type: ignore[misc]  # _call returns what make(settings) does
        finally:
            for reference in under_way:
                ray.cancel(reference)

    def settle(self) -> None:
        import ray

        while self._under_way:
            ray.wait([self._under_way.popleft()])

    def _next(self) -> object:
        import ray

        try:
            return ray.get(self._under_way.popleft())
        except ray.exceptions.RayTaskError as error:
            # The task's own exception, as it would have been here.
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise UserError(
                f"--engine ray: a task was lost {_TRIES + 1} times ({_first_line(error)})",
                "see that the nodes have memory to spare, and run the same command again: what is finished is kept",
            ) from None


def _call(folder: Path, shared: tuple[Callable[[Settings], Callable[[Task], Result]], Settings], task: Task) -> Result:
    make, settings = shared
    # The processes are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with at_work(folder):
        return made(make, settings)(task)  # type: ignore[return-value]  # a cache forgets types


def _knock(address: str) -> None:
    """Raises UserError where nobody listens at an address: Ray itself would try for many minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        # "auto": the cluster that this machine is part of.
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: BaseException) -> UserError:
    return UserError(
        f"--engine ray: no cluster at {address} ({_first_line(error)})",
        "check --ray-address, or leave it out for a cluster on this machine alone",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
