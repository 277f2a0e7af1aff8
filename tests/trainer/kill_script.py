"""Runs of one, two and four ranks, killed and resumed, for test_resume.py: real processes with a launcher's variables, forked from one that has already
imported what takes seconds.

python -m tests.trainer.kill_script FOLDER quick|full     FOLDER/packed are shards, FOLDER/tiny a model; writes FOLDER/results.json
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from trainer import RunConfig, loop, parallel
from trainer.loader import StepWork

STEPS, EPOCHS, ROWS, ROWS_PER_STEP = 6, 3, 7, 4
WORLDS = (1, 2, 4)


def options(folder: Path, out: str, **more: object) -> dict[str, object]:
    return {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "dtype": "fp64",
        "epochs": EPOCHS,
        "rows_per_step": ROWS_PER_STEP,
        "lr": 1e-2,
        "log_every": 1,
        "save_every": 1,
        "out": str(folder / out),
        **more,
    }


def watched(trace: Path, attempt: int, kill_at: int | None) -> Callable[[loop._Loop, StepWork], None]:
    """Writes down the rows that a step really computes, and dies at the beginning of step `kill_at`, whatever is being written then."""

    def watch(self: loop._Loop, work: StepWork) -> None:
        if work.plan.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = [row for batch in work.passes for row in batch.rows]
        line = {"attempt": attempt, "step": work.plan.step, "rank": self.ranks.rank, "rows": rows}
        with trace.open("a") as file:
            file.write(json.dumps(line) + "\n")

    return watch


def child(rank: int, world: int, port: int, chosen: dict[str, object], attempt: int, kill_at: int | None) -> int:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    out = Path(str(chosen["out"]))
    log = os.open(f"{out}-{attempt}-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if chosen.get("compile"):
        parallel._BACKEND = "aot_eager"  # all but the last stage, machine code, which takes a minute here
    watch, original = watched(Path(f"{out}.trace"), attempt, kill_at), loop.train_step
    step = loop._Loop._step

    def stepping(self: loop._Loop, number: int, ahead: object, check: object, interrupts: object) -> int:
        def watching(*args: object, **named: object) -> object:
            watch(
                self,
                StepWork(
                    plan=loop.plan_step(self.ready.prepared, self.ready.counts, number, world=world), passes=args[3]
                ),
            )  # type: ignore[arg-type]
            return original(*args, **named)  # type: ignore[arg-type]

        loop.train_step = watching  # type: ignore[assignment]
        return step(self, number, ahead, check, interrupts)  # type: ignore[arg-type]

    loop._Loop._step = stepping  # type: ignore[method-assign, assignment]
    return loop.run(RunConfig(**chosen))  # type: ignore[arg-type]


def launch(chosen: dict[str, object], *, world: int, attempt: int = 0, kill_at: int | None = None) -> list[int]:
    """Starts the ranks and waits for them; exit statuses, negative for a signal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    Path(str(chosen["out"])).parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    children = []
    for rank in range(world):
        process = os.fork()
        if process == 0:
            status = 99
            try:
                status = child(rank, world, port, chosen, attempt, kill_at)
            except BaseException:  # noqa: BLE001  # nothing of the parent may go on in a child
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(process)
    statuses, until = [], time.monotonic() + 600
    for process in children:
        done = 0
        while done == 0 and time.monotonic() < until:
            done, status = os.waitpid(process, os.WNOHANG)
            time.sleep(0.01)
        if done == 0:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
        statuses.append(os.waitstatus_to_exitcode(status))
    return statuses


def copied(folder: Path, source: str, target: str) -> None:
    shutil.copytree(folder / source, folder / target)
    shutil.copy(folder / f"{source}.trace", folder / f"{target}.trace")


def killed_and_resumed(folder: Path, worlds: dict[int, tuple[int, ...]]) -> dict[str, object]:
    """worlds: at the beginning of which step a run is killed → on how many ranks it goes on. Before, it ran on one, two or four in turns."""
    found: dict[str, object] = {}
    for kill_at, after in worlds.items():
        before, name = WORLDS[kill_at % 3], f"killed-{kill_at}"
        found[name] = launch(options(folder, name), world=before, kill_at=kill_at)
        for world in after:
            again = f"{name}-on-{world}"
            copied(folder, name, again)
            found[again] = launch(options(folder, again), world=world, attempt=1)
    return found


def bit_for_bit(folder: Path, worlds: tuple[int, ...]) -> dict[str, object]:
    found: dict[str, object] = {}
    for world in worlds:
        plain, name = f"fp32-{world}", f"fp32-{world}-killed"
        found[plain] = launch(options(folder, plain, dtype="fp32", save_every=0), world=world)
        launch(options(folder, name, dtype="fp32"), world=world, kill_at=3)
        found[name] = launch(options(folder, name, dtype="fp32"), world=world, attempt=1)
    return found


def main(folder: Path, size: str) -> None:
    torch.set_num_threads(1)
    import transformers.models.qwen3_5.modeling_qwen3_5  # noqa: F401  # once, for all children

    full = size == "full"
    found: dict[str, object] = {"whole": launch(options(folder, "whole", save_every=0), world=1)}
    for world in WORLDS[1:] if full else (2,):
        found[f"whole-{world}"] = launch(options(folder, f"whole-{world}", save_every=0), world=world)
    # Three ranks and five rows: passes that nothing fills evenly.
    uneven = {"rows_per_step": 5, "save_every": 0, "eval_every": 0}
    for world in (1, 3):
        found[f"uneven-{world}"] = launch(options(folder, f"uneven-{world}", **uneven), world=world)
    kills = dict.fromkeys(range(1, STEPS), WORLDS) if full else {2: (1,), 3: (2,), 4: (4,)}
    found |= killed_and_resumed(folder, kills)
    found |= bit_for_bit(folder, WORLDS if full else (2,))
    compiled = {"dtype": "fp32", "save_every": 0, "compile": True, "activation_checkpointing": "full"}
    found["compiled-2"] = launch(options(folder, "compiled-2", **compiled), world=2)
    (folder / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
