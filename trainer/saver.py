"""Checkpoints written behind the run: the step is held while tensors are copied to the host, not while they go to the disk.

    saver = Saver(run, ranks, keep=2)
    saver.begin(note, model, optimizer)      # copies, then writes in a thread; waits for the save before
    saver.poll()                             # between steps: a Saved, once, when it is complete
    saver.wait()                             # at the end

The thread talks to the other ranks' over a group of its own. A save that fails does so on every rank, and is raised by the next `poll` or `wait`.
Not torch's `async_save`, which is done before the files are digested and the checkpoint has its name.
The copy takes as much of the host's memory as the state itself (12 bytes a parameter over all ranks) while it is being written.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import AdamW

from trainer import checkpoint
from trainer.ranks import Ranks
from trainer.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint that is complete. held_s: seconds that the run stood still for it; seconds: from the beginning until it had its name.
    removed: older ones that were then pruned (on rank 0)."""

    step: int
    path: Path
    held_s: float
    seconds: float
    removed: tuple[Path, ...]


class Saver:
    """Writes one checkpoint at a time into the run's folder, and keeps the newest `keep` (0: all). Every rank makes one, at the same place."""

    def __init__(self, run: Path, ranks: Ranks, *, keep: int) -> None:
        self._run, self._ranks, self._keep = run, ranks.apart(), keep
        self._thread: threading.Thread | None = None
        self._saved: Saved | None = None
        self._error: BaseException | None = None

    def begin(self, note: Record, model: nn.Module, optimizer: AdamW) -> None:
        """Starts a save; every rank calls it, with no save left unheard (`wait`)."""
        if self._thread is not None:
            raise RuntimeError("a save is begun while another is not yet heard of")
        began = time.perf_counter()
        state = checkpoint.stage(checkpoint.state_of(model, optimizer))
        held = time.perf_counter() - began
        # A daemon: after an error elsewhere its ranks may wait for one that is gone, and the process must still end.
        self._thread = threading.Thread(
            target=self._write, args=(note, state, began, held), name="checkpoint", daemon=True
        )
        self._thread.start()

    def poll(self) -> Saved | None:
        """What was saved since it was last asked; None while it is being written. Raises what ended the save."""
        if self._thread is None or self._thread.is_alive():
            return None
        return self.wait()

    def wait(self) -> Saved | None:
        """What is being saved, when it is; None where nothing is. Raises what ended the save."""
        if self._thread is None:
            return None
        self._thread.join()
        saved, error = self._saved, self._error
        self._thread = self._saved = self._error = None
        if error is not None:
            raise error
        return saved

    def _write(self, note: Record, state: dict[str, Tensor], began: float, held: float) -> None:
        try:
            path = checkpoint.write(self._run, note, state, ranks=self._ranks)
            removed = self._ranks.together(
                lambda: checkpoint.prune(self._run, keep=self._keep) if self._ranks.first else []
            )
            self._saved = Saved(
                step=note.step,
                path=path,
                held_s=held,
                seconds=time.perf_counter() - began,
                removed=tuple(removed),
            )
        except BaseException as error:  # noqa: BLE001  # whatever it is belongs to the main thread, which raises it
            self._error = error
