"""What happened in a profiled step, as the analysis sees it: stretches of time on a host thread or a device stream.

The analysis knows nothing of torch's profiler: `trainer.profile.kineto` makes these of what the profiler recorded, tests make them by hand.

    Event(kind="kernel", name="gemm", start=0, end=5_000, lane=7, correlation=42)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "phase",  # host: a named part of a step, or a whole one
    "layer",  # host: the forward of a module, or one of its kernels; name: the type of layer
    "op",  # host: an operator of torch's dispatcher; on a CPU it is also the work
    "node",  # host: what calls operators and is none: an autograd node, a custom function, the engine
    "graph",  # host: a compiled graph; on a CPU it is also work
    "launch",  # host: the call that gives the device something to do
    "wait",  # host: a call that returns when the device has caught up
    "kernel",  # device: computation
    "copy",  # device: memory copied or set
    "communication",  # device, or a thread of the host where the CPU is the device: an exchange between ranks
    "allocation",  # nbytes taken (> 0) or given back (< 0) on the device
    "sync",  # where: the source line that makes the host wait for the device
    "compile",  # name: a function that was compiled; where: its source line
    "autotune",  # name: a kernel that was tuned
]
STEP = "step"
# What a type of layer ends with that is a kernel inside of another: "gated delta kernel".
KERNEL = " kernel"
# The parts of a step, in order. A part within another (the loss within the forward) takes its time from it.
PHASES = ("data", "forward", "loss", "backward", "optimiser")


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """start, end: nanoseconds on one clock. lane: the host's thread or the device's stream.

    correlation: the same for a launch and what it launched, 0 for none. sequence: of an op or node, the number of the autograd node that it makes, or
    that it is where `backward`; -1 for none. origin: of a backward node, the lane of the forward op that made it.
    """

    kind: Kind
    name: str
    start: int
    end: int
    lane: int = 0
    correlation: int = 0
    sequence: int = -1
    backward: bool = False
    origin: int = 0
    nbytes: int = 0
    where: str = ""
