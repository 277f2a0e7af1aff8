"""From a list of events to the numbers of a step. Pure: no clock, no torch.

Time is counted on one line, the device's: what it does at once on several streams counts once, and every moment of a step is one of

    useful work      a kernel beyond the fixed cost that every kernel has, however little it does
    fixed cost       the beginning of a kernel, where nothing useful runs beside it
    communication    an exchange between ranks with no computation beside it
    idle, for data   nothing runs, and the host waits for rows
    idle, for CPU    nothing runs, and the host has not yet asked for anything

A device that is "busy" 98 % of the time may spend all of it on fixed costs: that is why busy time alone tells nothing.

    found = analyse(events, host_is_device=False)
    found.step_s, found.device_busy_s, found.launches
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from packer.types import Int64Array
from trainer.profile.attribute import LOSS, OPTIMISER, SHARDING, Attributed, Call, Phases, Work, attribute
from trainer.profile.events import KERNEL, PHASES, STEP, Event
from trainer.profile.intervals import difference, intersection, spans, total, union
from trainer.profile.names import plain

# The shortest twentieth of a trace's kernels shows what a kernel costs that does next to nothing: about 2 µs on a GPU, as much for an operator on a
# CPU. More than this is work in any trace.
FIXED_AT_MOST_NS = 5_000
_SHORTEST = 5  # per cent
# A launch that takes this many times the usual one is held up: the device's queue is full, and the host waits for it.
_HELD_UP = 10
_TOP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerUse:
    """Of one type of layer, a step: launches, seconds of work (its own, not the union), and its top operations by self time (name, seconds)."""

    layer: str
    launches: float
    seconds: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseUse:
    """Of one part, a step: seconds of the host in it, seconds of work that it asked for, launches."""

    phase: str
    host_s: float
    work_s: float
    launches: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Of a step, mean over the window; seconds unless said otherwise.

    device_busy_s: union of all device activity. enqueue_s: the host's time neither in data nor waiting for the device. cpu_wait_s, data_wait_s: the device
    idle. communication_s: exchanged with no computation beside it; hidden_communication_s: with some. useful_s, fixed_s: of computation (union).
    product_s: useful time of matrix products and attention. scaling_s, scaling_product_s: the parts of useful_s and product_s that grow with the
    slots of a pass. recompute_s: work of forwards that ran again in backward. wait_s: the host in calls that wait for the device, waits: how many,
    idle_after_waits_s: the device idle from then until it has something to do again.
    fusible: launches of the model's own small operations, neither products nor inside of a kernel, and fusible_s their work: what a compiler fuses.
    """

    steps: int
    step_s: float
    device_busy_s: float
    enqueue_s: float
    cpu_wait_s: float
    data_wait_s: float
    communication_s: float
    hidden_communication_s: float
    useful_s: float
    fixed_s: float
    product_s: float
    scaling_s: float
    scaling_product_s: float
    recompute_s: float
    wait_s: float
    waits: float
    idle_after_waits_s: float
    launches: float
    fusible: float
    fusible_s: float
    layers: tuple[LayerUse, ...]
    phases: tuple[PhaseUse, ...]


def analyse(events: Sequence[Event], *, host_is_device: bool) -> Analysis:
    """The numbers of the steps in a trace; raises ValueError where it has none."""
    steps = [each for each in events if each.kind == "phase" and each.name == STEP]
    if not steps:
        raise ValueError("the trace has no step")
    count = len(steps)
    found = attribute(events, host_is_device=host_is_device)
    begin, end = min(each.start for each in steps), max(each.end for each in steps)
    end = max([end, *(work.end for work in found.work if begin <= work.start)])
    window = spans([(begin, end)])
    work = [each for each in found.work if each.end > begin and each.start < end]
    launches = [each for each in found.launches if begin <= each.start < end]
    computing = union(intersection(_stretches(each for each in work if not each.communication), window))
    talking = union(intersection(_stretches(each for each in work if each.communication), window))
    exposed = difference(talking, computing)
    idle = difference(window, np.concatenate([computing, talking]))
    phases = Phases(events)
    named = [part for part in phases.exclusive() if part[2] > begin and part[1] < end]
    for_data = intersection(idle, spans((s, e) for name, s, e in named if name == "data"))
    fixed = _fixed_ns(work)
    useful = intersection(_useful(work, fixed), window)
    scaling = [each for each in work if each.layer not in (LOSS, OPTIMISER)]
    fusible = [each for each in scaling if _fusible(each)]

    def seconds(nanoseconds: float) -> float:
        return nanoseconds / count / 1e9

    def length(stretches: Int64Array) -> float:
        return seconds(total(stretches))

    waits = [each for each in found.waits if begin <= each.start < end]
    return Analysis(
        steps=count,
        step_s=length(window),
        device_busy_s=length(np.concatenate([computing, talking])),
        enqueue_s=seconds(_enqueue_ns(steps, named, found, useful, exposed, host_is_device=host_is_device)),
        cpu_wait_s=length(difference(idle, for_data)),
        data_wait_s=length(for_data),
        communication_s=length(exposed),
        hidden_communication_s=length(intersection(talking, computing)),
        useful_s=length(useful),
        fixed_s=length(difference(computing, useful)),
        product_s=length(intersection(_useful([each for each in work if each.product], fixed), window)),
        scaling_s=length(intersection(_useful(scaling, fixed), window)),
        scaling_product_s=length(intersection(_useful([each for each in scaling if each.product], fixed), window)),
        recompute_s=seconds(_recomputed_ns(events, work, phases)),
        wait_s=length(_calls(waits)),
        waits=len(waits) / count,
        idle_after_waits_s=length(intersection(idle, _until_work(waits, work))),
        launches=len(launches) / count,
        fusible=len(fusible) / count,
        fusible_s=seconds(sum(each.own for each in fusible)),
        layers=_by_layer(work, launches, count),
        phases=_by_phase(work, launches, named, count),
    )


def _stretches(work: Iterable[Work]) -> Int64Array:
    return spans((each.start, each.end) for each in work)


def _calls(calls: Iterable[Call]) -> Int64Array:
    return spans((each.start, each.end) for each in calls)


def _fusible(work: Work) -> bool:
    return not (work.product or work.communication or work.layer == SHARDING or work.layer.endswith(KERNEL))


def _until_work(waits: Iterable[Call], work: Iterable[Work]) -> Int64Array:
    """From the end of each wait to the first work that begins after it."""
    begins = np.sort(np.array([each.start for each in work], dtype=np.int64))
    places = [(each, int(np.searchsorted(begins, each.end))) for each in waits]
    return spans((each.end, int(begins[place])) for each, place in places if place < len(begins))


def _fixed_ns(work: Sequence[Work]) -> int:
    """What a kernel costs that does next to nothing."""
    lengths = [each.end - each.start for each in work if not each.communication]
    return min(int(np.percentile(lengths, _SHORTEST)), FIXED_AT_MOST_NS) if lengths else 0


def _useful(work: Iterable[Work], fixed: int) -> Int64Array:
    """The union of computation without each kernel's fixed cost at its beginning."""
    return union(spans((each.start + fixed, each.end) for each in work if not each.communication))


def _enqueue_ns(
    steps: Sequence[Event],
    named: Sequence[tuple[str, int, int]],
    found: Attributed,
    useful: Int64Array,
    exposed: Int64Array,
    *,
    host_is_device: bool,
) -> int:
    """The host's time in steps less what it spends waiting: for rows, in calls that wait for the device, in launches that its full queue holds up. Where the
    host is the device, less the useful work too: what is left is what it costs to start that work."""
    busy = difference(
        union(spans((each.start, each.end) for each in steps)), spans((s, e) for name, s, e in named if name == "data")
    )
    if host_is_device:
        return total(difference(busy, np.concatenate([useful, exposed])))
    lengths = [each.end - each.start for each in found.launches]
    usual = _HELD_UP * int(np.median(lengths)) if lengths else 0
    held_up = spans((each.start + usual, each.end) for each in found.launches)
    return total(difference(busy, np.concatenate([_calls(found.waits), held_up])))


def _recomputed_ns(events: Iterable[Event], work: Iterable[Work], phases: Phases) -> int:
    """Work of layers that ran forward while the step was in backward."""
    again = union(
        spans(
            (e.start, e.end)
            for e in events
            if e.kind == "layer" and e.name != SHARDING and phases.at(e.start) == "backward"
        )
    )
    starts, ends = again[:, 0], again[:, 1]

    def inside(moment: int) -> bool:
        place = int(np.searchsorted(starts, moment, side="right")) - 1
        return place >= 0 and moment < int(ends[place])

    return sum(each.own for each in work if inside(each.asked)) if len(again) else 0


def _by_layer(work: Iterable[Work], launches: Iterable[Call], count: int) -> tuple[LayerUse, ...]:
    """Most work first."""
    asked = Counter(each.layer for each in launches)
    spent: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in work:
        spent[each.layer][plain(each.operator or each.name)] += each.own
    found = [
        LayerUse(
            layer=layer,
            launches=asked[layer] / count,
            seconds=sum(spent[layer].values()) / count / 1e9,
            top=tuple((name, own / count / 1e9) for name, own in spent[layer].most_common(_TOP)),
        )
        for layer in asked.keys() | spent.keys()
    ]
    return tuple(sorted(found, key=lambda use: (-use.seconds, -use.launches, use.layer)))


def _by_phase(
    work: Iterable[Work], launches: Iterable[Call], named: Iterable[tuple[str, int, int]], count: int
) -> tuple[PhaseUse, ...]:
    """In the order of a step; parts that did not come about are left out."""
    host, device, asked = Counter[str](), Counter[str](), Counter(each.phase for each in launches)
    for name, start, end in named:
        host[name] += end - start
    for each in work:
        device[each.phase] += each.own
    return tuple(
        PhaseUse(
            phase=name, host_s=host[name] / count / 1e9, work_s=device[name] / count / 1e9, launches=asked[name] / count
        )
        for name in PHASES
        if host[name]
    )
