"""Curves over steps, and intervals beside a margin.

    curves([Curve(label="packed, seed 0", style=0, x=(1, 2), y=(8.3, 5.1))], label="Loss by step", x_name="step")

Lines are told apart by dashes as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from packer.html.axes import short, ticks
from packer.html.svg import chart, element, percent

_HEIGHT, _TOP, _BOTTOM = 280, 10, 24
_MOST_POINTS = 600
_SCALE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """style: which of the colours and dashes (0 to 6); x ascending, y beside it, at least one place."""

    label: str
    style: int
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A range with its middle; None where there is no range. style: its class."""

    label: str
    middle: float
    low: float | None
    high: float | None
    style: str = "packed"


def curves(drawn: Sequence[Curve], *, label: str, x_name: str) -> Markup:
    """All curves on one scale; a curve of more than 600 places is drawn with the means of neighbours."""
    if not drawn:
        return element("p", "There are no curves.", class_="empty")
    left, right = min(curve.x[0] for curve in drawn), max(curve.x[-1] for curve in drawn)
    low, high = min(min(curve.y) for curve in drawn), max(max(curve.y) for curve in drawn)
    room = (high - low) * 0.04 or 0.5
    low, high = low - room, high + room
    floor, height = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    side, inside = [], []
    for value in ticks(high, start=low, most=5):
        y = round(floor - height * (value - low) / (high - low), 1)
        side.append(element("text", f"{value:.4g}", x="100%", y=y + 4, class_="tick", text_anchor="end"))
        inside.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
    inside.append(element("line", x1="0", x2="100%", y1=floor, y2=floor, class_="axis"))
    for value in ticks(right, start=left, most=5):
        place = (value - left) / ((right - left) or 1)
        anchor = "start" if place < 0.02 else "end" if place > 0.97 else "middle"
        inside.append(element("text", short(value), x=percent(place), y=floor + 18, class_="tick", text_anchor=anchor))
    paths = [
        element(
            "polyline",
            element("title", curve.label),
            points=" ".join(
                f"{_SCALE * (x - left) / ((right - left) or 1):.1f},{_SCALE * (high - y) / (high - low):.1f}"
                for x, y in _thinned(curve)
            ),
            class_=f"curve style-{curve.style % 7}",
        )
        for curve in drawn
    ]
    inside.append(
        element(
            "svg",
            *paths,
            x="0",
            y=_TOP,
            width="100%",
            height=height,
            view_box=f"0 0 {_SCALE} {_SCALE}",
            preserve_aspect_ratio="none",
        )
    )
    scale = element("svg", *side, class_="scale", width=44, height=_HEIGHT, aria_hidden="true", focusable="false")
    plot = element("div", scale, chart(*inside, height=_HEIGHT, label=label), class_="plot")
    return Markup("{}{}").format(plot, element("p", x_name, class_="axis-name"))


def intervals(rows: Sequence[Interval], *, margin: float | None, label: str, unit: str) -> Markup:
    """Ranges around 0, beside the band of ± margin within which a difference counts for nothing."""
    ends = [abs(value) for row in rows for value in (row.middle, row.low, row.high) if value is not None]
    end = max([*ends, margin or 0.0]) * 1.15 or 1.0
    step = 40
    height = len(rows) * step + 26

    def x(value: float) -> str:
        return percent((value + end) / (2 * end))

    drawn = []
    if margin:
        drawn.append(
            element("rect", x=x(-margin), width=percent(margin / end), y=0, height=height - 22, class_="margin")
        )
    for value in ticks(end, start=-end, most=6):
        place = (value + end) / (2 * end)
        anchor = "start" if place < 0.02 else "end" if place > 0.97 else "middle"
        shown = "0" if abs(value) < end * 1e-9 else f"{value:+.3g}"
        drawn.append(element("line", x1=x(value), x2=x(value), y1=0, y2=height - 22, class_="grid"))
        drawn.append(element("text", shown, x=x(value), y=height - 6, class_="tick", text_anchor=anchor))
    drawn.append(element("line", x1="50%", x2="50%", y1=0, y2=height - 22, class_="axis"))
    for number, row in enumerate(rows):
        y = number * step + 12
        title = element("title", f"{row.label}: {row.middle:+.4g} {unit}")
        drawn.append(element("text", row.label, x="0", y=y, class_="name"))
        if row.low is not None and row.high is not None:
            drawn.append(element("line", x1=x(row.low), x2=x(row.high), y1=y + 14, y2=y + 14, class_="range"))
            drawn += [
                element("line", x1=x(at), x2=x(at), y1=y + 9, y2=y + 19, class_="range") for at in (row.low, row.high)
            ]
        drawn.append(element("circle", title, cx=x(row.middle), cy=y + 14, r=4.5, class_=f"dot {row.style}"))
    return chart(*drawn, height=height, label=label)


def _thinned(curve: Curve) -> list[tuple[float, float]]:
    """At most 600 places: the means of equal stretches, the ends kept."""
    points = list(zip(curve.x, curve.y, strict=True))
    if len(points) <= _MOST_POINTS:
        return points
    inner = _MOST_POINTS - 2
    cuts = [1 + (len(points) - 2) * place // inner for place in range(inner + 1)]
    means = [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part))
        for part in (points[start:end] for start, end in pairwise(cuts))
    ]
    return [points[0], *means, points[-1]]
