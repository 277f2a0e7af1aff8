"""The processes of a run: who I am, and how all of them agree on the host about errors and signals.

Alone, a process makes a group of one in its own memory (no port, so any number of runs share a machine). Under torchrun it joins the launcher's.
On a GPU the group has two backends: NCCL for tensors of the device, gloo for the host, so that agreeing never waits for the device.

    with start_ranks() as ranks:
        prepared = ranks.together(lambda: prepare(config))   # a UserError on any rank is raised on all
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from packer.errors import UserError

_Result = TypeVar("_Result")
# gloo's thread lets go of a collective's tensors after the main thread has heard that it is done, and needs Python's lock for it. If the
# interpreter is closing by then, the process dies of SIGABRT ("terminate called without an active exception"): 1 in 10 runs that end right after
# a collective. The threads cannot be ended (leaving the group does not), so before closing they are given time, without the lock.
_LET_GO_S = 0.2
# 54 GB of weights take 15 hours at 1 MB/s.
_FETCH_PATIENCE = timedelta(days=2)
# What gloo and NCCL say where another process has left in the middle of a collective. Neither has an exception of its own for it.
_LEFT = re.compile(
    "connection closed by peer|connection reset by peer|broken pipe|remote process exited", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """rank of world over all machines, local_rank of local_world on this one, and this rank's device. group: what they talk over, None: torch's default."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    device: torch.device
    group: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def agree(self, *, error: UserError | None = None, signal: int = 0) -> int:
        """Every rank calls this at the same place: raises, on all of them, the UserError that any of them brings; returns the largest signal.

        One sum of two integers over the host's network, about 0.1 ms on one machine. Without it a rank that stops alone leaves the others
        waiting in their next collective.
        """
        if self.world == 1:
            if error is not None:
                raise error
            return signal
        news = torch.tensor([int(error is not None), signal])
        dist.all_reduce(news, op=dist.ReduceOp.MAX, group=self.group)
        failed, signal = news.tolist()
        if failed:
            errors: list[UserError | None] = [None] * self.world
            dist.all_gather_object(errors, error, group=self.group)
            raise next(each for each in errors if each is not None)
        return signal

    def together(self, function: Callable[[], _Result]) -> _Result:
        """What `function` returns on this rank, once it has returned on all; a UserError of one is raised on all."""
        error: UserError | None = None
        try:
            result = function()
        except UserError as raised:
            error = raised
        self.agree(error=error)
        return result

    def patiently(self, function: Callable[[], _Result]) -> _Result:
        """`together`, where a rank or a machine may take hours longer than another: to fetch weights or shards. Elsewhere half an hour of waiting is an error."""
        return self.apart(patience=_FETCH_PATIENCE).together(function)

    def gather(self, values: list[float]) -> torch.Tensor:
        """Host numbers of all ranks: float64 [world, len(values)]."""
        table = torch.zeros(self.world, len(values), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(table, group=self.group)
        return table

    def gather_objects(self, value: _Result) -> list[_Result]:
        """Small host objects of all ranks, in order."""
        if self.world == 1:
            return [value]
        every: list[_Result | None] = [None] * self.world
        dist.all_gather_object(every, value, group=self.group)
        return cast("list[_Result]", every)

    def apart(self, *, patience: timedelta | None = None) -> Ranks:
        """The same ranks talking over a group of their own, on the host: for a thread, whose words must not mix with the main thread's. All call it.
        patience: how long one waits there for another; None: torch's default."""
        return dataclasses.replace(self, group=dist.new_group(backend="gloo", timeout=patience))

    def barrier(self) -> None:
        """Returns once every rank is here."""
        self.agree()


def _let_go() -> None:
    time.sleep(_LET_GO_S)


@contextmanager
def start_ranks() -> Iterator[Ranks]:
    """Joins the launcher's process group, or makes a group of one; leaves it at the end."""
    launched = (
        dist.is_torchelastic_launched() or {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    )
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if launched else 0
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched else 1
    cuda = torch.cuda.is_available()
    if cuda and local_rank >= torch.cuda.device_count():
        raise UserError(
            f"rank {local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}",
            "give torchrun as many processes a machine as it has GPUs (--nproc-per-node)",
        )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    atexit.unregister(_let_go)  # once, however many groups a process makes
    atexit.register(_let_go)
    if launched:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # public, but not in torch's __all__
    together = False
    try:
        yield Ranks(
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            local_rank=local_rank,
            local_world=local_world,
            device=device,
        )
        together = True
    except UserError:
        together = True
        raise
    except RuntimeError as error:
        if dist.get_world_size() == 1 or not _LEFT.search(str(error)):
            raise
        raise UserError(
            f"another rank ended while rank {dist.get_rank()} of {dist.get_world_size()} waited for it",
            "the launcher's report names the rank that ended first, and how (exit code -9: killed, mostly for want of memory); mend that, and the "
            "same command goes on from the last checkpoint",
        ) from None
    finally:
        # Leaving a group waits for the others, who after any other error are not coming; the launcher ends them.
        if together or dist.get_world_size() == 1:
            dist.destroy_process_group()
