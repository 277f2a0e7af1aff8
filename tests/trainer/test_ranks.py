"""Processes that wait for each other, and one that is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.support import ROOT
from trainer.ranks import start_ranks

MEET = """
import sys
from packer.errors import UserError
from trainer.ranks import start_ranks
try:
    with start_ranks() as ranks:
        ranks.barrier()
        print("met", flush=True)
        if ranks.rank == 1:
            sys.stdin.readline()
        ranks.barrier()
except UserError as error:
    print(error.message, error.hint, sep="\\n")
"""


# Says how long one waits for the other: the timeout of the group that they talk over.
FETCH = """
import torch.distributed as dist
from trainer.ranks import start_ranks
new_group, all_reduce, patience = dist.new_group, dist.all_reduce, {None: "as ever"}
def noted(*, backend, timeout):
    group = new_group(backend=backend, timeout=timeout)
    patience[group] = timeout
    return group
def talking(*arguments, group, **options):
    print(patience[group], flush=True)
    return all_reduce(*arguments, group=group, **options)
dist.new_group, dist.all_reduce = noted, talking
with start_ranks() as ranks:
    print(ranks.patiently(lambda: "fetched" if ranks.first else "there"), flush=True)
    ranks.together(lambda: None)
"""


def two_processes(program: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_a_rank_that_is_killed_is_told_of_by_those_that_wait_for_it_without_a_traceback() -> None:
    two = two_processes(MEET)
    assert two[1].stdout is not None
    assert two[1].stdout.readline() == "met\n"
    two[1].send_signal(signal.SIGKILL)
    two[1].communicate(timeout=900)
    out, err = two[0].communicate(timeout=900)
    assert "Traceback" not in err
    met, message, hint = out.splitlines()
    assert (met, message) == ("met", "another rank ended while rank 0 of 2 waited for it")
    assert "launcher's report" in hint


def test_a_rank_that_fetches_is_waited_for_longer_than_any_other() -> None:
    two = two_processes(FETCH)
    said = [process.communicate(timeout=900)[0].splitlines() for process in two]
    assert said == [["2 days, 0:00:00", "fetched", "as ever"], ["2 days, 0:00:00", "there", "as ever"]]


def test_an_error_of_one_process_alone_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="Connection closed by peer"), start_ranks():
        raise RuntimeError("Connection closed by peer")
