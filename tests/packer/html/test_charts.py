"""What is drawn has the size of what it stands for."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from packer.buffers import Block, Lane
from packer.html.buffers import flow
from packer.html.charts import Bar, Part, bars, histogram
from packer.html.lines import Curve, Interval, curves, intervals


def attributes(svg: str, name: str, kind: str) -> list[dict[str, str]]:
    """Of every element `name` that has the class `kind`."""
    found = [dict(re.findall(r'([\w-]+)="([^"]*)"', one)) for one in re.findall(rf"<{name}\b([^>]*)>", svg)]
    return [one for one in found if kind in one.get("class", "").split()]


def share_of(text: str) -> float:
    return float(text.removesuffix("%")) / 100


def test_columns_are_as_high_as_their_counts_and_stand_where_their_bins_are() -> None:
    svg = histogram((0, 10, 20, 40), (5, 10, 0), label="x", unit="tokens", of="examples")
    first, second = attributes(svg, "rect", "bar")
    assert float(second["height"]) == pytest.approx(2 * float(first["height"]), abs=0.2)
    assert share_of(second["x"]) == pytest.approx(0.25)
    assert share_of(second["width"]) == pytest.approx(0.25)
    assert "<title>10 to 19 tokens: 10 examples</title>" in svg


def test_on_a_logarithmic_scale_equal_ratios_are_equally_wide() -> None:
    svg = histogram((8, 16, 32, 64), (1, 1, 1), label="x", unit="tokens", of="examples", log=True)
    assert {round(share_of(one["width"]), 4) for one in attributes(svg, "rect", "bar")} == {0.3333}


def test_parts_of_bars_lie_one_behind_the_other() -> None:
    svg = bars(
        [Bar(label="a", parts=(Part(size=3, style="packed"), Part(size=1, style="wait")), value="4")], end=8, label="x"
    )
    (full,), (rest,) = attributes(svg, "rect", "packed"), attributes(svg, "rect", "wait")
    assert share_of(full["width"]) == pytest.approx(0.375)
    assert share_of(rest["x"]) == pytest.approx(0.375)
    assert share_of(rest["width"]) == pytest.approx(0.125)


def test_blocks_and_padding_cover_their_slots_on_one_scale() -> None:
    lane = Lane(slots=80, blocks=(Block(example=7, start=0, tokens=20), Block(example=9, start=20, tokens=40)))
    short = Lane(slots=30, blocks=(Block(example=7, start=0, tokens=30),))
    svg = flow([(lane,), (short,)], width=100, tints={7: 0, 9: 1}, origins={7: "a.jsonl row 7"}, label="x")
    blocks, pads = attributes(svg, "rect", "block"), attributes(svg, "rect", "pad")
    assert [share_of(one["width"]) for one in blocks] == pytest.approx([0.2, 0.4, 0.3])
    assert [share_of(one["width"]) for one in pads] == pytest.approx([0.8, 0.3])
    # The second batch does not fit beside the first: it is in the next line.
    assert blocks[2]["x"] == "0%"
    assert float(blocks[2]["y"]) > float(blocks[1]["y"])
    assert "<title>20 slots of padding</title>" in svg
    assert "example 7: 20 tokens, a.jsonl row 7" in svg


def test_curves_keep_their_ends_and_stay_small() -> None:
    steps = tuple(float(step) for step in range(5000))
    svg = curves(
        [Curve(label="a", style=0, x=steps, y=tuple(9 - step / 1000 for step in steps))], label="x", x_name="step"
    )
    (points,) = re.findall(r'points="([^"]*)"', svg)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert len(places) <= 600
    assert (places[0][0], places[-1][0]) == (0, 1000)
    # The loss falls, and y of a picture grows downwards.
    assert all(one[1] < other[1] for one, other in pairwise(places))


def test_an_interval_and_its_margin_are_around_the_middle() -> None:
    svg = intervals([Interval(label="d", middle=0.0, low=-0.01, high=0.02)], margin=0.02, label="x", unit="of loss")
    (band,), (dot,) = attributes(svg, "rect", "margin"), attributes(svg, "circle", "dot")
    assert share_of(band["x"]) + share_of(band["width"]) / 2 == pytest.approx(0.5, abs=1e-4)
    assert dot["cx"] == "50%"
    line = attributes(svg, "line", "range")[0]
    assert share_of(line["x2"]) - 0.5 == pytest.approx(2 * (0.5 - share_of(line["x1"])), abs=1e-4)
