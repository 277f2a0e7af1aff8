"""What bounds a step: the six things that its time can go to, and the largest of them. Pure.

Every moment of the step belongs to one of the six, so their shares add up to 1:

    launch         the device idle for want of something to do, and the fixed costs of kernels that run: what fewer, larger operations would save
    compute        matrix products and attention on useful tokens
    memory         everything else on useful tokens, bound by memory bandwidth
    communication  exchanges between ranks with no computation beside them
    data           the device idle while the host waits for rows
    padding        the same work as compute and memory, on slots that hold no token of an example

The profiler slows the host: what a recorded step took longer than one by the clock is taken from `launch`, which is where the host's time is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.profile.about import About
from trainer.profile.analysis import Analysis
from trainer.profile.words import told

Bound = Literal["launch", "compute", "memory-bandwidth", "communication", "data", "padding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Seconds of a step, without the profiler's own."""

    launch: float
    compute: float
    memory: float
    communication: float
    data: float
    padding: float

    @property
    def total(self) -> float:
        """The step: as by the clock, or as recorded where that was less."""
        return self.launch + self.compute + self.memory + self.communication + self.data + self.padding


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """bound: what most of the step goes to, and share: how much of the step that is, from 0 to 1. said: why, in a sentence with its numbers."""

    bound: Bound
    share: float
    said: str


def divide(found: Analysis, about: About) -> Shares:
    """The step's time among the six."""
    padded = about.padding
    on_padding = padded * found.scaling_s
    products_on_padding = padded * found.scaling_product_s
    return Shares(
        launch=max(found.cpu_wait_s + found.fixed_s - profiler_s(found, about), 0.0),
        compute=max(found.product_s - products_on_padding, 0.0),
        memory=max(found.useful_s - found.product_s - (on_padding - products_on_padding), 0.0),
        communication=found.communication_s,
        data=data_wait_s(found, about),
        padding=on_padding,
    )


def data_wait_s(found: Analysis, about: About) -> float:
    """The device idle for want of rows. A step that the profiler slows leaves the loader time to catch up, so it is what the host waits without, times the
    part of such waits in which the device was seen to be idle, where waits were seen."""
    in_data = sum(use.host_s for use in found.phases if use.phase == "data")
    caught_up = in_data < about.plain_data_s / 2
    return about.plain_data_s if caught_up or not in_data else about.plain_data_s * found.data_wait_s / in_data


def profiler_s(found: Analysis, about: About) -> float:
    """What the profiler adds to a step, waits for rows left out."""
    return max((found.step_s - found.data_wait_s) - (about.plain_step_s - data_wait_s(found, about)), 0.0)


def enqueue_s(found: Analysis, about: About) -> float:
    """What the host takes to ask for a step's work, without what the profiler adds."""
    return max(found.enqueue_s - profiler_s(found, about), 0.0)


def judge(found: Analysis, about: About) -> Verdict:
    """The largest of the six."""
    shares = divide(found, about)
    things = "kernels" if about.device != "cpu" else "operations"
    useful = f"{told(found.useful_s)} of useful work"
    said: dict[Bound, tuple[float, str]] = {
        "launch": (
            shares.launch,
            f"goes into starting {found.launches:,.0f} {things}: the CPU takes {told(enqueue_s(found, about))} to ask for {useful}",
        ),
        "compute": (shares.compute, f"goes into matrix products and attention, out of {useful}"),
        "memory-bandwidth": (
            shares.memory,
            f"goes into {things} that move memory rather than compute, out of {useful}",
        ),
        "communication": (
            shares.communication,
            f"goes by waiting for exchanges among {about.world:,} ranks with no computation beside them",
        ),
        "data": (
            shares.data,
            f"goes by waiting for rows: reading those of a step takes {told(about.read_s)}",
        ),
        "padding": (
            shares.padding,
            f"goes into work on padding: {about.padding:.0%} of {about.slots:,.0f} slots hold no token of an example",
        ),
    }
    bound = max(said, key=lambda name: said[name][0])
    seconds, why = said[bound]
    return Verdict(bound=bound, share=seconds / shares.total, said=why)
