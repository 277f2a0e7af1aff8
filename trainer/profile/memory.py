"""The most memory that the device held in each part of a step, from its allocations. Pure.

>>> from trainer.profile.events import Event
>>> events = [Event(kind="phase", name="forward", start=0, end=10), Event(kind="phase", name="backward", start=10, end=20)]
>>> events += [Event(kind="allocation", name="", start=at, end=at, nbytes=n) for at, n in ((1, 100), (5, 50), (11, -50), (12, 20))]
>>> peaks(events, held=1000)
{'forward': 1150, 'backward': 1150}
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.profile.attribute import Phases
from trainer.profile.events import PHASES, Event


def peaks(events: Sequence[Event], *, held: int) -> dict[str, int]:
    """Bytes by part, in the order of a step. held: bytes that were there before the first event. A part begins with what the one before it left."""
    allocations = sorted((each for each in events if each.kind == "allocation"), key=lambda each: each.start)
    phases = Phases(events)
    parts = phases.exclusive()
    most: dict[str, int] = {}
    now, place = held, 0
    for name, start, end in parts:
        while place < len(allocations) and allocations[place].start < start:
            now, place = now + allocations[place].nbytes, place + 1
        most[name] = max(most.get(name, 0), now)
        while place < len(allocations) and allocations[place].start < end:
            now, place = now + allocations[place].nbytes, place + 1
            most[name] = max(most[name], now)
    return {name: most[name] for name in PHASES if name in most}
