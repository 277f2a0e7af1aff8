"""Trackers beside metrics.jsonl (TensorBoard, trackio, Weights & Biases), which can fail or hang and the run does not notice but to say so.

with Trackers(("tensorboard",), opening, say) as trackers:
    trackers.log({"loss": 3.2, "loss_by_source": {"code.jsonl": 2.9}}, step=10)

Each has a thread of its own that opens it, hands it lines and closes it; the run only ever puts a line into a queue. What goes there are the numbers of
metrics.jsonl under the same names (`loss_by_source/code.jsonl`), and the run's options: never text of the data. On ranks that do not speak there is none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from packer.console import TomlValue
from packer.errors import UserError
from packer.files import write_text

if TYPE_CHECKING:
    from trainer.say import Say

# Lines that wait for a tracker which does not take them: a day of one every minute and a half. What comes then is lost.
_WAITING = 1000
# Seconds that the end of a run waits for all of them together: torchrun gives a stopped run 30, in which it also saves.
_CLOSE_S = 10.0
_ID_FILE = "trackers.json"

Values = Mapping[str, float | int | Mapping[str, float] | Mapping[str, int] | None]


class Tracker(Protocol):
    """An open run of one of them. Whatever it raises is counted; it may take as long as it likes."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a tracker's run is opened with. folder: the run's. start: steps already made; 0 opens a new one. identity: names it for good, so that a run
    that goes on is the same there. project: None where the tracker is to choose. options: of the run."""

    folder: Path
    start: int
    identity: str
    project: str | None
    options: Mapping[str, TomlValue | None]

    @property
    def name(self) -> str:
        """For a person."""
        return self.folder.resolve().name


class Opener(Protocol):
    def __call__(self, name: str, opening: Opening) -> Tracker: ...


def refuse_missing(names: Sequence[str]) -> None:
    """Raises UserError where the package of one of these trackers is not installed; imports none of them."""
    for name in names:
        spec = importlib.util.find_spec(name)
        # wandb leaves a folder of its own name where it runs, which Python takes for a package without files.
        if spec is None or spec.origin is None:
            raise UserError(
                f"--tracker {name}: the package {name} is not installed",
                f"pip install {name}, or leave --tracker {name} out",
            )


def identity_of(folder: Path, *, start: int) -> str:
    """The name of a run's folder among the trackers' runs: kept in it, and a new one where the run begins anew."""
    path = folder / _ID_FILE
    if start and path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["identity"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not readable ({error})", "remove the file: trackers then begin a new run"
            ) from None
        return str(found)
    made = uuid.uuid4().hex[:12]
    try:
        write_text(path, json.dumps({"identity": made}) + "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})", "give another --out") from None
    return made


def flat(values: Values) -> dict[str, float]:
    """Numbers alone, each under one name; what is None is left out."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{each}": float(one) for each, one in value.items()}
        elif value is not None:
            found[name] = float(value)
    return found


class Trackers:
    """Those that a run was asked to tell. say: where it is said, once each, that one fails, and in the end how many lines it lost."""

    def __init__(self, names: Sequence[str], opening: Opening, say: Say, *, opener: Opener | None = None) -> None:
        if opener is None and names:
            from trainer.tracker_backends import open_tracker

            opener = open_tracker
        self._say = say
        self._lines = [] if opener is None else [_Line(name, opening, opener) for name in dict.fromkeys(names)]

    def __enter__(self) -> Trackers:
        for line in self._lines:
            line.thread.start()
        return self

    def log(self, values: Values, *, step: int) -> None:
        """Hands a line to each; waits for none."""
        for line in self._lines:
            line.put((flat(values), step))
            if line.error is not None and not line.told:
                line.told = True
                self._say(
                    "note", f"--tracker {line.name} fails ({line.error}); the run goes on, metrics.jsonl has every line"
                )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ends = time.monotonic() + _CLOSE_S
        for line in self._lines:
            line.stop()
        for line in self._lines:
            line.thread.join(max(0.0, ends - time.monotonic()))
            self._tell_lost(line)

    def _tell_lost(self, line: _Line) -> None:
        lost, why = line.given - line.taken, line.error
        if line.thread.is_alive():
            why = why or f"it does not answer; it was given {_CLOSE_S:g} s to end"
        if lost or why is not None:
            self._say(
                "note",
                f"--tracker {line.name}: {lost:,} of {line.given:,} lines were not taken ({why}); metrics.jsonl has them all",
            )


class _Line:
    """One tracker and its thread. given, taken: lines. error: the first thing that went wrong, in words."""

    def __init__(self, name: str, opening: Opening, opener: Opener) -> None:
        self.name, self._opening, self._opener = name, opening, opener
        self._queue: queue.Queue[tuple[dict[str, float], int] | None] = queue.Queue(maxsize=_WAITING)
        self.given = self.taken = 0
        self.error: str | None = None
        self.told = False
        # A daemon: one that hangs does not keep the process.
        self.thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)

    def put(self, line: tuple[dict[str, float], int]) -> None:
        self.given += 1
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.error = self.error or f"it has not taken a line for {_WAITING:,} lines"

    def stop(self) -> None:
        """Lines that wait are still handed over."""
        with contextlib.suppress(queue.Full):  # it hangs: nothing is taken out any more
            self._queue.put_nowait(None)

    def _run(self) -> None:
        tracker: Tracker | None = None
        try:
            tracker = self._opener(self.name, self._opening)
        except BaseException as error:  # noqa: BLE001  # whatever it is, SystemExit too, is the tracker's and not the run's
            self._note(error)
        while (line := self._queue.get()) is not None:
            if tracker is None:
                continue
            values, step = line
            try:
                tracker.log(values, step=step)
                self.taken += 1
            except BaseException as error:  # noqa: BLE001  # as above
                self._note(error)
        if tracker is None:
            return
        try:
            tracker.close()
        except BaseException as error:  # noqa: BLE001  # as above
            self._note(error)

    def _note(self, error: BaseException) -> None:
        said = " ".join(str(error).split())[:200]
        self.error = self.error or f"{type(error).__name__}: {said}".rstrip(": ")
