"""What of a run is kept, and when that is told: checkpoints when they are due, and what can be saved when an error ends the run.

keeper = Keeper(ready, bad)
keeper.hear()                 # between steps: tells of a checkpoint that has become complete
keeper.save(done)             # begins one
keeper.rescue(error, done=9)  # an error that every rank has met ends the run after 9 steps
"""

from __future__ import annotations

from packer.errors import UserError
from trainer.bad_steps import BadSteps
from trainer.loader import DamagedShardError
from trainer.record import record
from trainer.saver import Saved, Saver
from trainer.setup import Ready


class Keeper:
    """begun: the step of the last checkpoint that was begun. saved: of the last that is known to be complete; the same on all ranks after `wait`."""

    def __init__(self, ready: Ready, bad: BadSteps) -> None:
        self._ready, self._bad = ready, bad
        self._config, self._say, self._steps = ready.prepared.config, ready.say, ready.prepared.order.steps
        self._saver = Saver(ready.prepared.folder, ready.ranks, keep=self._config.keep)
        self._failed = False  # trying again would fill the disk again
        self.begun = self.saved = ready.start

    def save(self, done: int, *, skipped: int | None = None) -> None:
        """Begins to save the run as it stands, as what it was after `done` steps, of which `skipped` (None: all bad ones of this part) made no update."""
        self.wait()
        ready = self._ready
        left_out = self._bad.count if skipped is None else skipped
        note = record(ready.prepared, step=done, config_digest=ready.config_digest, skipped=ready.skipped + left_out)
        self._saver.begin(note, ready.model, ready.optimizer)
        self.begun = done

    def hear(self) -> None:
        """Tells of a checkpoint that has become complete, or raises the UserError that ended it; waits for nothing."""
        self._failed = True
        saved = self._saver.poll()
        self._failed = False
        self._tell(saved)

    def wait(self) -> None:
        """Returns when no checkpoint is being written; every rank calls it. Raises what ended one, on all of them."""
        self._failed = True
        saved = self._saver.wait()
        self._failed = False
        self._tell(saved)

    def _tell(self, saved: Saved | None) -> None:
        if saved is None:
            return
        self.saved = saved.step
        at = f"step {saved.step}/{self._steps}"
        self._say("", f"{at}  saved {saved.path} (the run was held for {saved.held_s:.2f} s of {saved.seconds:.2f})")
        for old in saved.removed:
            self._say("", f"{at}  removed {old} (--keep {self._config.keep})")

    def rescue(self, error: UserError, *, done: int) -> None:
        """Saves the `done` steps that were made before an error ends the run: every rank has met it, and the error itself is still to be raised."""
        if isinstance(error, DamagedShardError):
            self._say(
                "note", f"steps after {self.saved:,} are not saved: some may have been trained on the damaged shard"
            )
            return
        if self._failed:
            self._say("note", f"steps after {self.saved:,} are not saved")
            return
        first, skipped = self._bad.first, self._bad.count
        if skipped and skipped == done - first:
            # Nothing has changed since the step before the first bad one: that is where the run stands.
            done, skipped = first, 0
        try:
            self.wait()
            if done <= self.saved:
                return
            if skipped:
                self._say("note", f"{skipped:,} of the steps saved below made no update, first step {first + 1:,}")
            self.save(done, skipped=skipped)
            self.wait()
        except UserError as second:
            self._say("note", f"steps after {self.saved:,} could not be saved: {second.message}")
