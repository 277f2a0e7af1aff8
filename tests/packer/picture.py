"""data/sample/packing.svg: what packing is, in one picture for the README, drawn by the code that draws the page's.

python -m tests.packer.picture      # writes it anew
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from markupsafe import Markup

import packer
from packer.buffers import Batch
from packer.config import BuildConfig
from packer.excerpt import buffers
from packer.html.axes import share
from packer.html.buffers import flow
from packer.html.svg import element, hatch
from tests.support import ROOT, SAMPLE, TINY

PICTURE = ROOT / "data" / "sample" / "packing.svg"
_WIDTH = 880
_STYLE = """
svg { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.ink { fill: #1d2023; font-weight: 600 } .soft { fill: #565c64 }
.block { stroke: #fff } .pad { fill: url(#hatch); stroke: #b3b1a8 } .hatch-ground { fill: #f0efea } .hatch-line { stroke: #b3b1a8; stroke-width: 2.5px }
.tint-0 { fill: #79b0d8 } .tint-1 { fill: #f0b05f } .tint-2 { fill: #74c0a3 } .tint-3 { fill: #cf9cc0 } .tint-4 { fill: #c9bd6b }
@media (prefers-color-scheme: dark) {
.ink { fill: #e5e7e9 } .soft { fill: #a4abb3 } .block { stroke: #15171a } .pad { stroke: #565d65 } .hatch-ground { fill: #202429 } .hatch-line { stroke: #565d65 }
.tint-0 { fill: #4a92c8 } .tint-1 { fill: #cb8836 } .tint-2 { fill: #41a07e } .tint-3 { fill: #ae73a3 } .tint-4 { fill: #a4973e }
}
"""


def picture() -> str:
    """The sample packed into rows of 4,096, its first rows drawn as they are and as padded batches."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "packed"
        packer.build(BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=out, workers=1))
        corpus = packer.open(out)
        drawn = buffers(corpus)
    packed: tuple[Batch, ...] = tuple((lane,) for lane in drawn.packed)
    tints = {block.example: place for place, block in enumerate(one for lane in drawn.packed for one in lane.blocks)}
    parts, y = [], 0
    for title, batches, name in (("Padded, 4 examples a batch", drawn.padded, "batches"), ("Packed", packed, "rows")):
        slots = sum(lane.slots for batch in batches for lane in batch)
        tokens = sum(lane.tokens for batch in batches for lane in batch)
        facts = f"{len(batches)} {name}, {slots:,} slots, {share(1 - tokens / slots)} padding"
        parts.append(element("text", title, x=1, y=y + 15, class_="ink"))
        parts.append(element("text", facts, x=_WIDTH - 1, y=y + 15, class_="soft", text_anchor="end"))
        chart = flow(batches, width=corpus.capacity, tints=tints, origins={}, label=f"{title}: {facts}")
        parts.append(element("g", chart, transform=f"translate(0 {y + 26})"))
        height = int(chart.partition('height="')[2].partition('"')[0])
        y += 26 + height + 22
    inside = Markup().join([element("style", Markup(_STYLE)), hatch("hatch"), *parts])
    return str(
        element(
            "svg",
            inside,
            xmlns="http://www.w3.org/2000/svg",
            width=_WIDTH,
            height=y - 14,
            view_box=f"0 0 {_WIDTH} {y - 14}",
            role="img",
            aria_label="The same examples padded and packed, drawn on one scale",
        )
    ).replace("><", ">\n<")


if __name__ == "__main__":
    PICTURE.write_text(picture() + "\n", encoding="utf-8")
