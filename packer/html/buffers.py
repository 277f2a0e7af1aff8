"""Buffers as they are given to a model: each example a block, what is not an example hatched, all on one scale of slots.

    flow([batch, batch], width=8192, tints={12: 0}, origins={12: "chats.jsonl row 12"}, label="Padded batches")

An example has the same colour and the same number wherever it is drawn, so that the eye finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from packer.buffers import Batch, Lane
from packer.html.svg import chart, element, percent

_TINTS = 5
_THICK = 16
_GAP = 2
_BETWEEN = 12  # lines of batches of several lanes


def flow(
    batches: Sequence[Batch], *, width: int, tints: Mapping[int, int], origins: Mapping[int, str], label: str
) -> Markup:
    """Batches beside each other as far as `width` slots go, then in the next line. tints: the colour of each example."""
    drawn: list[Markup] = []
    # A little air beside each batch; as a share of the width, like everything across.
    air = width * 0.012
    x, y, tallest = 0.0, 0, 0
    for batch in batches:
        slots = max(lane.slots for lane in batch)
        if x and x + slots > width:
            x, y, tallest = 0.0, y + tallest + (_BETWEEN if tallest > _THICK else _GAP + 2), 0
        for number, lane in enumerate(batch):
            drawn += _lane(lane, x, y + number * (_THICK + _GAP), width, tints, origins)
        tallest = max(tallest, len(batch) * (_THICK + _GAP) - _GAP)
        x += slots + air
    return chart(*drawn, height=y + tallest, label=label)


def _lane(
    lane: Lane, x: float, y: int, width: int, tints: Mapping[int, int], origins: Mapping[int, str]
) -> list[Markup]:
    drawn = [
        element(
            "rect",
            element("title", f"{lane.slots - lane.tokens:,} slots of padding") if lane.slots > lane.tokens else "",
            x=percent(x / width),
            y=y,
            width=percent(lane.slots / width),
            height=_THICK,
            class_="pad",
        )
    ]
    for block in lane.blocks:
        origin = origins.get(block.example, "")
        drawn.append(
            element(
                "rect",
                element(
                    "title", f"example {block.example:,}: {block.tokens:,} tokens{f', {origin}' if origin else ''}"
                ),
                x=percent((x + block.start) / width),
                y=y,
                width=percent(block.tokens / width),
                height=_THICK,
                class_=f"block tint-{tints[block.example] % _TINTS}",
                data_example=block.example,
            )
        )
    return drawn
