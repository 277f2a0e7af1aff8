"""What torch's profiler recorded, as our events. The only module that knows how it names and numbers things.

with torch.profiler.profile(...) as profiler:
    ...
events = events_of(profiler, device=device)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch.profiler import profile

from trainer.profile.annotate import LAYER, PHASE
from trainer.profile.attribute import SHARDING
from trainer.profile.events import Event, Kind
from trainer.profile.names import is_communication, is_operator

_LAUNCH = re.compile(
    r"^(cu(da)?|hip)(Module|Ext)?(Launch(Cooperative)?Kernel|Memcpy\w*Async|Memset\w*Async|GraphLaunch)"
)
_WAIT = re.compile(r"^(cu(da)?|hip)((Stream|Device|Event|Ctx)Synchronize|Memcpy(?!\w*Async))")
_GRAPH = "## Call CompiledFxGraph"
_FSDP = "FSDP::"
_HOST_CALLS = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver")


class _Recorded(Protocol):
    """One event of torch's (C++) profiler."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def duration_ns(self) -> int: ...
    def activity_type(self) -> str: ...
    def device_type(self) -> torch._C._autograd.DeviceType: ...
    def device_resource_id(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def fwd_thread_id(self) -> int: ...
    def correlation_id(self) -> int: ...
    def sequence_nr(self) -> int: ...
    def nbytes(self) -> int: ...


def events_of(profiler: profile, *, device: torch.device) -> list[Event]:
    """The events of a profile that has ended. device: the one computed on, whose memory counts."""
    inner = profiler.profiler
    assert inner is not None
    assert inner.kineto_results is not None
    recorded = cast("list[_Recorded]", inner.kineto_results.events())
    # The profiler numbers host threads itself; a backward node names by that number the thread of its forward.
    threads = {
        each.start_thread_id(): each.device_resource_id() for each in recorded if each.activity_type() == "cpu_op"
    }
    return list(_converted(recorded, threads, device))


def _converted(recorded: list[_Recorded], threads: dict[int, int], device: torch.device) -> Iterator[Event]:
    # A trace has hundreds of thousands of events and a few hundred names.
    known: dict[tuple[str, str], tuple[Kind, str] | None] = {}
    host_is_device = device.type == "cpu"
    for each in recorded:
        key = each.name(), each.activity_type()
        if key not in known:
            known[key] = _named(*key, host_is_device=host_is_device)
        named = known[key]
        if named is None or (named[0] == "allocation" and not _on_device(each, device)):
            continue
        kind, name = named
        start, forward = each.start_ns(), each.fwd_thread_id()
        host = kind in ("op", "node")
        yield Event(
            kind=kind,
            name=name,
            start=start,
            end=start + each.duration_ns(),
            lane=each.device_resource_id(),
            correlation=0 if host else each.correlation_id(),
            sequence=each.sequence_nr() if host else -1,
            backward=host and forward > 0,
            origin=threads.get(forward, 0),
            nbytes=each.nbytes() if kind == "allocation" else 0,
        )


def _on_device(allocation: _Recorded, device: torch.device) -> bool:
    return str(allocation.device_type()).rpartition(".")[2].lower() == device.type


def _named(name: str, activity: str, *, host_is_device: bool) -> tuple[Kind, str] | None:
    """Kind and name of an event, None for what the analysis has no use for."""
    if activity in ("cpu_op", "user_annotation"):
        return _on_host(name, annotation=activity == "user_annotation", host_is_device=host_is_device)
    if activity in _HOST_CALLS:
        return ("launch", name) if _LAUNCH.match(name) else ("wait", name) if _WAIT.match(name) else None
    if activity == "kernel":
        return ("communication" if is_communication(name) else "kernel"), name
    if activity in ("gpu_memcpy", "gpu_memset"):
        return "copy", name
    return ("allocation", "") if activity == "cpu_instant_event" and name == "[memory]" else None


def _on_host(name: str, *, annotation: bool, host_is_device: bool) -> tuple[Kind, str] | None:
    if name.startswith(PHASE):
        return "phase", name.removeprefix(PHASE)
    if name.startswith(LAYER):
        return "layer", name.removeprefix(LAYER)
    if name.startswith(_FSDP):
        return "layer", SHARDING
    if name.startswith(_GRAPH):
        return "graph", "compiled graph"
    if host_is_device and name.startswith("gloo:"):
        return "communication", name
    if annotation:
        return None
    return ("op" if is_operator(name) else "node"), name
