"""Traces made by hand, in microseconds.

trace = Trace().step(0, 100)
trace.kernel("gemm", 10, 20, asked=0)
analyse(trace.events, host_is_device=False)
"""

from __future__ import annotations

from functools import lru_cache

from trainer.kernels import Choice
from trainer.profile.about import About
from trainer.profile.analysis import Analysis, analyse
from trainer.profile.events import STEP, Event, Kind

HOST, AUTOGRAD, STREAM, OTHER_STREAM = 1, 2, 7, 8
US = 1_000


class Trace:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._correlation = 0

    def host(
        self,
        kind: Kind,
        name: str,
        start: float,
        end: float,
        *,
        lane: int = HOST,
        sequence: int = -1,
        backward: bool = False,
        correlation: int = 0,
    ) -> Trace:
        self.events.append(
            Event(
                kind=kind,
                name=name,
                start=round(start * US),
                end=round(end * US),
                lane=lane,
                sequence=sequence,
                backward=backward,
                origin=HOST if backward else 0,
                correlation=correlation,
            )
        )
        return self

    def step(self, start: float, end: float) -> Trace:
        return self.host("phase", STEP, start, end)

    def phase(self, name: str, start: float, end: float) -> Trace:
        return self.host("phase", name, start, end)

    def kernel(
        self,
        name: str,
        start: float,
        end: float,
        *,
        asked: float,
        takes: float = 1,
        kind: Kind = "kernel",
        stream: int = STREAM,
        lane: int = HOST,
    ) -> Trace:
        """A kernel and the launch that asked for it."""
        self._correlation += 1
        self.host("launch", "cudaLaunchKernel", asked, asked + takes, lane=lane, correlation=self._correlation)
        self.events.append(
            Event(
                kind=kind,
                name=name,
                start=round(start * US),
                end=round(end * US),
                lane=stream,
                correlation=self._correlation,
            )
        )
        return self


def about(
    *,
    step_s: float,
    data_s: float = 0.0,
    device: str = "cuda",
    slots: float = 1000,
    useful: float = 1000,
    padded: bool = False,
    passes: float = 4,
    world: int = 8,
    compiled: bool = True,
    reduce: str = "pass",
    checkpointing: str = "none",
    layers: tuple[Choice, ...] = (),
    steps: int = 1,
    dtype: str = "bf16",
    at_address: bool = False,
) -> About:
    """What was profiled, its step without the profiler as long as with it unless said otherwise."""
    return About(
        model="model",
        device=device,
        device_name="GPU",
        dtype=dtype,
        world=world,
        steps=steps,
        warm_up=1,
        passes=passes,
        slots=slots,
        useful_tokens=useful,
        plain_step_s=step_s,
        plain_data_s=data_s,
        read_s=0.0,
        padded=padded,
        rows_per_step=8,
        micro_rows=1,
        compiled=compiled,
        reduce=reduce,
        checkpointing=checkpointing,
        layers=layers,
        at_address=at_address,
        torch="2.13.0",
    )


@lru_cache
def analysed_story() -> Analysis:
    return analyse(story().events, host_is_device=False)


def story() -> Trace:
    """A second of 200,000 kernels of 4 µs, each of which does next to nothing, a launch each of 4 µs, and 100 products of 1.84 ms behind them."""
    trace = Trace().step(0, 1_000_000).phase("forward", 0, 1_000_000)
    for place in range(200_000):
        trace.kernel("tiny", place * 4.08, place * 4.08 + 4, asked=place * 4, takes=4)
    for place in range(100):
        start = 816_000 + place * 1_840
        trace.kernel("gemm", start, start + 1_840, asked=800_000 + place * 4, takes=4)
    return trace
