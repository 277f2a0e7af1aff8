"""The trackers there are, each behind the two calls of `trainer.trackers.Tracker`.

tracker = open_tracker("tensorboard", opening)
tracker.log({"loss": 3.2}, step=10)
tracker.close()

Nothing but numbers and the run's options is given to them, and what they would gather by themselves of a program's output, code and repository is switched off:
lines of a run can quote its data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from trainer.config import Tracker as Name
from trainer.trackers import Opening, Tracker

FOLDER = "tensorboard"
_PROJECT = "trainer"


def open_tracker(name: str, opening: Opening) -> Tracker:
    """Opens a run of the tracker of this name, or goes on with it."""
    match name:
        case "tensorboard":
            return TensorBoard(opening)
        case "trackio":
            return Trackio(opening)
        case "wandb":
            return Wandb(opening)
    raise ValueError(f"no tracker {name!r}: there are {', '.join(get_args(Name))}")


class TensorBoard:
    """Events in the run's folder, tensorboard/. What an earlier part of the run wrote after the step that this one goes on from is not shown any more."""

    def __init__(self, opening: Opening) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(opening.folder / FOLDER), purge_step=opening.start + 1)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()  # a run that is killed keeps what it logged

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """A run of the project (default "trainer"), named after the folder and its identity."""

    def __init__(self, opening: Opening) -> None:
        import trackio

        self._run = trackio.init(
            project=opening.project or _PROJECT,
            name=f"{opening.name}-{opening.identity}",
            config=dict(opening.options),
            resume="allow",
            embed=False,
        )

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Wandb:
    """A run with the folder's identity, its files in the folder. Steps are an axis of its own there, since a run that goes on repeats some, which wandb's own
    counter refuses."""

    def __init__(self, opening: Opening) -> None:
        import wandb

        self._run = wandb.init(
            project=opening.project,
            id=opening.identity,
            name=opening.name,
            dir=str(opening.folder),
            config=dict(opening.options),
            resume="allow",
            settings=wandb.Settings(console="off", save_code=False, disable_code=True, disable_git=True, quiet=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()
