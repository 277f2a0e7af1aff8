"""Round ticks, and numbers as short text.

>>> ticks(1730, most=5), short(12_500), short(2_000_000)
((0, 500, 1000, 1500), '12.5k', '2M')
"""

from __future__ import annotations

import math


def ticks(end: float, *, start: float = 0, most: int = 5) -> tuple[float, ...]:
    """At most `most` + 1 multiples of a step of 1, 2 or 5 times a power of ten, from start to end. start where the two are equal."""
    if not end > start:
        return (start,)
    rough = (end - start) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = round(step) if step >= 1 else step
    first, last = math.ceil(start / step - 1e-9), math.floor(end / step + 1e-9)
    return tuple(place * step for place in range(first, last + 1))


def short(value: float) -> str:
    """A number for an axis: 950, 1k, 12.5k, 2M, 0.25."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def plural(number: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "row"), plural(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def share(value: float) -> str:
    """A share for a person: 51.3%, 0.02%, and never 100% or 0% for what is not quite that.

    >>> share(0.99996), share(1.0), share(0.5), share(0.00012)
    ('99.996%', '100%', '50.0%', '0.01%')
    """
    if value in (0, 1):
        return f"{value:.0%}"
    for digits in (1, 2, 3, 4):
        shown = f"{value:.{digits}%}"
        if abs(float(shown[:-1])) not in (0, 100):
            return shown
    return "under 0.0001%" if value < 0.5 else "over 99.9999%"
