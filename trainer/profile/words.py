"""Durations for a person.

>>> told(1.5), told(0.0123), told(0.00005)
('1.500 s', '12.3 ms', '0.1 ms')
"""

from __future__ import annotations

from dataclasses import dataclass


def told(seconds: float) -> str:
    """In the unit that suits it."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One unit for all of a table. name: as its heading says it."""

    name: str
    scale: float
    places: int

    @classmethod
    def for_step(cls, seconds: float) -> Unit:
        """Seconds for a step of a second or more, else milliseconds."""
        return cls(name="s", scale=1, places=3) if seconds >= 1 else cls(name="ms", scale=1e3, places=1)

    def __call__(self, seconds: float) -> str:
        return f"{seconds * self.scale:,.{self.places}f}"
