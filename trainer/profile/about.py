"""What was profiled: what the verdict has to know besides the events. Plain numbers and words, made by `collect` or by a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.kernels import Choice


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """device: "cpu" or "cuda"; device_name: as it calls itself. steps: in the window, warm_up: before it. Of a step of this rank, mean: passes, slots (with
    padding), useful_tokens. plain_step_s: seconds of a step without the profiler, which slows the host; plain_data_s: of them, the host waiting for rows; read_s: what it takes to read a
    step's rows. padded: examples ran as padded batches. rows_per_step to checkpointing: the run's options. layers: what computes each
    kind of layer and why. at_address: the shards are fetched from an address."""

    model: str
    device: str
    device_name: str
    dtype: str
    world: int
    steps: int
    warm_up: int
    passes: float
    slots: float
    useful_tokens: float
    plain_step_s: float
    plain_data_s: float
    read_s: float
    padded: bool
    rows_per_step: int
    micro_rows: int
    compiled: bool
    reduce: str
    checkpointing: str
    layers: tuple[Choice, ...]
    at_address: bool
    torch: str

    @property
    def padding(self) -> float:
        """The share of slots that hold no token of an example."""
        return 1 - self.useful_tokens / self.slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync:
    """A source line that makes the host wait for the device, and how often a step."""

    where: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """Code that was compiled within the window, where there should be none. kind: a graph, or a kernel that was tuned. where: its source line, "" where
    that is not known; why: what the compiler says of it; seconds: what it took, 0 where that is not known."""

    kind: str
    name: str
    where: str
    why: str
    seconds: float
