"""What the device did, each thing with the part of the step and the type of layer that asked for it. Pure.

A forward operator belongs to the innermost layer that was running on its thread. A backward one runs when no layer does: autograd numbers its nodes,
and the forward operator that made a node has the same number. A kernel belongs to what its launch belongs to.

    work = attribute(events, host_is_device=False).work
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trainer.profile.events import STEP, Event
from trainer.profile.names import does_work, is_made_of_steps, is_operator, is_product, is_step

# Whose work is in no layer. Loss and optimiser do not grow with the slots of a pass: only targets are projected.
LOSS, OPTIMISER, REST, SHARDING, COMMUNICATION = (
    "loss",
    "optimiser",
    "rest of the model",
    "sharding",
    "communication",
)
_BY_PHASE = {"loss": LOSS, "optimiser": OPTIMISER, "data": "data"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One thing that the device did. asked: when the host asked for it. own: nanoseconds in which nothing inside it is counted by itself. operator: what
    launched it, "" where no operator did. product: a matrix product or attention."""

    name: str
    operator: str
    layer: str
    phase: str
    asked: int
    start: int
    end: int
    own: int
    product: bool
    communication: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A host call: a launch, or a wait for the device."""

    operator: str
    layer: str
    phase: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attributed:
    """launches: where the host is the device its operations that do work."""

    work: tuple[Work, ...]
    launches: tuple[Call, ...]
    waits: tuple[Call, ...]


class Phases:
    """Which part of a step a moment lies in: the innermost one of those named on the host."""

    def __init__(self, events: Iterable[Event]) -> None:
        named = sorted(
            (each for each in events if each.kind == "phase" and each.name != STEP),
            key=lambda each: (each.start, -each.end),
        )
        self._starts: list[int] = []
        self._names: list[str] = []
        open_: list[Event] = []
        for each in named:
            self._close(open_, each.start)
            open_.append(each)
            self._cut(each.start, each.name)
        self._close(open_, None)

    def _close(self, open_: list[Event], until: int | None) -> None:
        while open_ and (until is None or open_[-1].end <= until):
            ended = open_.pop()
            self._cut(ended.end, open_[-1].name if open_ else "")

    def _cut(self, start: int, name: str) -> None:
        self._starts.append(start)
        self._names.append(name)

    def at(self, moment: int) -> str:
        """The part's name, "" outside of all."""
        place = bisect_right(self._starts, moment) - 1
        return self._names[place] if place >= 0 else ""

    def exclusive(self) -> list[tuple[str, int, int]]:
        """(name, start, end) of each part without the parts inside it, in order."""
        ends = [*self._starts[1:], self._starts[-1]] if self._starts else []
        cut = zip(self._names, self._starts, ends, strict=True)
        return [(name, start, end) for name, start, end in cut if name and end > start]


@dataclass(slots=True)
class _Frame:
    """An event whose end has not come. layer: that it lies in; node: (lane, sequence) of the backward node that it lies in instead. worked: whether an
    operator inside it is work. steps: those inside of it that are work unless it is. inside: nanoseconds of work inside it."""

    event: Event
    layer: str | None
    node: tuple[int, int] | None
    operator: str
    worked: bool = False
    steps: list[tuple[_Frame, int]] = field(default_factory=list)
    inside: int = 0


@dataclass(slots=True)
class _Found:
    """What a walk over the host's threads finds; layers are resolved when all threads have been walked."""

    makers: dict[tuple[int, int], str] = field(default_factory=dict)
    operations: list[tuple[_Frame, int]] = field(default_factory=list)
    launches: list[_Frame] = field(default_factory=list)
    waits: list[_Frame] = field(default_factory=list)


def attribute(events: Sequence[Event], *, host_is_device: bool) -> Attributed:
    """Work, launches and waits of a trace. host_is_device: a run on CPU, where operators are the work."""
    phases = Phases(events)
    lanes: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("layer", "op", "node", "graph", "launch", "wait"):
            lanes[event.lane].append(event)
    found = _Found()
    for lane in lanes.values():
        _walk(lane, phases, found)

    def call(frame: _Frame) -> Call:
        phase = phases.at(frame.event.start)
        return Call(
            operator=frame.operator,
            layer=_layer(frame, phase, found.makers),
            phase=phase,
            start=frame.event.start,
            end=frame.event.end,
        )

    launches = [call(frame) for frame in found.launches]
    launched = {frame.event.correlation: each for frame, each in zip(found.launches, launches, strict=True)}
    work = [_device_work(event, launched) for event in events if event.kind in ("kernel", "copy", "communication")]
    if not host_is_device:
        return Attributed(
            work=tuple(work),
            launches=tuple(launches),
            waits=tuple(call(frame) for frame in found.waits),
        )
    operations = [(call(frame), frame.event.name, own) for frame, own in found.operations]
    work += [
        Work(
            name=name,
            operator=name,
            layer=each.layer,
            phase=each.phase,
            asked=each.start,
            start=each.start,
            end=each.end,
            own=own,
            product=is_product(name, ""),
            communication=False,
        )
        for each, name, own in operations
    ]
    return Attributed(work=tuple(work), launches=tuple(each for each, _, _ in operations), waits=())


def _device_work(event: Event, launched: dict[int, Call]) -> Work:
    by, talk = launched.get(event.correlation) if event.correlation else None, event.kind == "communication"
    operator = by.operator if by else ""
    return Work(
        name=event.name,
        operator=operator,
        layer=COMMUNICATION if talk else by.layer if by else REST,
        phase=by.phase if by else "",
        asked=by.start if by else event.start,
        start=event.start,
        end=event.end,
        own=event.end - event.start,
        product=event.kind == "kernel" and is_product(operator, event.name),
        communication=talk,
    )


def _walk(lane: list[Event], phases: Phases, found: _Found) -> None:
    """Goes over one thread's events with those that are open on a stack."""
    stack: list[_Frame] = []
    # An annotation encloses what starts and ends with it.
    lane.sort(key=lambda each: (each.start, -each.end, each.kind != "layer"))
    for event in lane:
        while stack and stack[-1].event.end <= event.start:
            _leave(stack, found)
        above = stack[-1] if stack else None
        frame = _Frame(
            event=event,
            layer=above.layer if above else None,
            node=above.node if above else None,
            operator=above.operator if above else "",
        )
        if event.kind == "layer":
            frame.layer, frame.node = event.name, None
        elif event.backward and event.sequence >= 0:
            frame.layer, frame.node = None, (event.origin, event.sequence)
        elif event.sequence >= 0:
            # The last operator with a number is the one that made the node: those before saw it coming.
            found.makers[event.lane, event.sequence] = _layer(frame, phases.at(event.start), found.makers)
        if event.kind == "op" and is_operator(event.name):
            frame.operator = event.name
        elif event.kind == "launch":
            found.launches.append(frame)
        elif event.kind == "wait":
            found.waits.append(frame)
        stack.append(frame)
    while stack:
        _leave(stack, found)


def _leave(stack: list[_Frame], found: _Found) -> None:
    """Ends the innermost event. An operator is work where nothing inside it is: what only calls others is the host's part."""
    frame = stack.pop()
    event, above = frame.event, stack[-1] if stack else None
    length = event.end - event.start
    if event.kind == "op" and _is_work(frame):
        frame.steps, frame.inside = [(frame, length)] if is_step(event.name) else [], length
        if not frame.steps:
            frame.worked = True
            found.operations.append((frame, length))
    elif event.kind == "graph":
        found.operations.append((frame, length - frame.inside))
        frame.inside = length
    if above is not None and above.event.kind == "op":
        above.steps += frame.steps
    else:
        found.operations += frame.steps
    if above is not None:
        above.worked |= frame.worked
        above.inside += frame.inside


def _is_work(frame: _Frame) -> bool:
    name = frame.event.name
    return does_work(name) and not frame.worked and not (frame.steps and is_made_of_steps(name))


def _layer(frame: _Frame, phase: str, makers: dict[tuple[int, int], str]) -> str:
    if frame.layer is not None:
        return frame.layer
    known = makers.get(frame.node) if frame.node is not None else None
    return known or _BY_PHASE.get(phase, REST)
