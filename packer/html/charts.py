"""Histograms and bars. Places across are shares of the width, so that a chart fits a telephone; heights and text are CSS pixels.

histogram(edges, counts, label="Lengths of examples", unit="tokens", of="examples", marks=[Mark(value=268, label="p50")])
bars([Bar(label="packed rows", parts=(Part(size=188_416, style="packed"),), value="188,416")], end=1_859_584, label="Slots")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from packer.html.axes import short, ticks
from packer.html.svg import chart, element, percent

_HEIGHT = 200
_TOP = 34  # for the names of the marks
_BOTTOM = 24
_LINE = 15
_SLIVER = 0.004
_GAP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A value that a line across the chart names."""

    value: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of a bar: its size, its class in the style sheet, and what it is."""

    size: float
    style: str
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar of one or several parts. value: what stands beside its label."""

    label: str
    parts: tuple[Part, ...]
    value: str


def histogram(
    edges: Sequence[int],
    counts: Sequence[int],
    *,
    label: str,
    unit: str,
    of: str,
    log: bool = False,
    marks: Sequence[Mark] = (),
) -> Markup:
    """Columns of counts over bins [edges[i], edges[i + 1]); log: the width of a bin is its ratio. unit: of the edges; of: what is counted."""
    if not counts:
        return element("p", f"There are no {of}.", class_="empty")
    place = _places(edges[0], edges[-1], log=log)
    top = max(counts)
    floor, height = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    across, inside = [], []
    for value in (value for value in ticks(top, most=4) if value == int(value)):
        y = round(floor - height * value / max(top, 1), 1)
        across.append(element("text", short(value), x="100%", y=y + 4, class_="tick", text_anchor="end"))
        inside.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if value else "axis"))
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            left, right = place(low), place(high)
            tall = max(height * count / top, 1.5)
            title = element("title", f"{low:,} to {high - 1:,} {unit}: {count:,} {of}")
            inside.append(
                element(
                    "rect",
                    title,
                    x=percent(left),
                    y=round(floor - tall, 1),
                    width=percent(right - left),
                    height=round(tall, 1),
                    class_="bar packed",
                )
            )
    inside += _below(_log_ticks(edges[0], edges[-1]) if log else ticks(edges[-1], start=edges[0]), place, floor)
    inside += _marks(marks, place, floor)
    return _plot(across, inside, label)


def bars(rows: Sequence[Bar], *, end: float, label: str, thick: int = 18) -> Markup:
    """Bars one below the other on one scale from 0 to end, each under its own label."""
    step = _LINE + thick + 14
    drawn: list[Markup] = []
    for number, row in enumerate(rows):
        y = number * step
        drawn.append(element("text", row.label, x="0", y=y + 12, class_="name"))
        drawn.append(element("text", row.value, x="100%", y=y + 12, class_="value", text_anchor="end"))
        drawn += _parts(row.parts, end, y + _LINE + 3, thick)
    return chart(*drawn, height=len(rows) * step, label=label)


def lanes(rows: Sequence[Sequence[Part]], *, end: float, label: str, thick: int = 9) -> Markup:
    """Bars without labels, close together, on one scale from 0 to end."""
    drawn = [part for number, row in enumerate(rows) for part in _parts(row, end, number * (thick + _GAP), thick)]
    return chart(*drawn, height=len(rows) * (thick + _GAP), label=label)


def _parts(parts: Sequence[Part], end: float, y: float, thick: int) -> list[Markup]:
    drawn, at = [], 0.0
    for part in parts:
        if part.size > 0:
            title = [element("title", part.title)] if part.title else []
            # The edge in the ground's colour would hide what is narrower than itself.
            thin = " sliver" if part.size < _SLIVER * end else ""
            drawn.append(
                element(
                    "rect",
                    *title,
                    x=percent(at / end),
                    y=y,
                    width=percent(part.size / end),
                    height=thick,
                    class_=f"bar {part.style}{thin}",
                )
            )
            at += part.size
    return drawn


def _plot(scale: Sequence[Markup], inside: Sequence[Markup], label: str) -> Markup:
    """The scale of heights in a column of its own beside the plot, so that no label lies on a bar."""
    side = element("svg", *scale, class_="scale", width=44, height=_HEIGHT, aria_hidden="true", focusable="false")
    return element("div", side, chart(*inside, height=_HEIGHT, label=label), class_="plot")


def _places(start: float, end: float, *, log: bool) -> Callable[[float], float]:
    """From a value to its place across, 0 to 1."""
    if log:
        low, span = math.log(max(start, 1)), math.log(end / max(start, 1)) or 1.0
        return lambda value: min(max((math.log(max(value, 1)) - low) / span, 0.0), 1.0)
    return lambda value: min(max((value - start) / ((end - start) or 1), 0.0), 1.0)


def _log_ticks(start: int, end: int) -> tuple[float, ...]:
    """Powers of two within the bins, at most 7 of them."""
    powers = [1 << power for power in range(end.bit_length()) if start <= 1 << power <= end]
    return tuple(powers[:: max(1, -(-len(powers) // 7))])


def _below(values: Sequence[float], place: Callable[[float], float], floor: float) -> list[Markup]:
    drawn = []
    for value in values:
        x = place(value)
        anchor = "start" if x < 0.02 else "end" if x > 0.97 else "middle"
        drawn.append(
            element("line", x1=percent(x), x2=percent(x), y1=round(floor, 1), y2=round(floor + 4, 1), class_="axis")
        )
        drawn.append(
            element("text", f"{value:,.6g}", x=percent(x), y=round(floor + 18, 1), class_="tick", text_anchor=anchor)
        )
    return drawn


def _marks(marks: Sequence[Mark], place: Callable[[float], float], floor: float) -> list[Markup]:
    """Names in two lines by turns, so that near ones do not lie on each other."""
    drawn = []
    for number, mark in enumerate(marks):
        x = place(mark.value)
        y = 11 + 14 * (number % 2)
        anchor = "end" if x > 0.8 else "start"
        drawn.append(element("line", x1=percent(x), x2=percent(x), y1=y - 9, y2=round(floor, 1), class_="mark"))
        drawn.append(
            element(
                "text",
                mark.label,
                x=percent(x),
                y=y,
                dx=-4 if anchor == "end" else 4,
                class_="name",
                text_anchor=anchor,
            )
        )
    return drawn
