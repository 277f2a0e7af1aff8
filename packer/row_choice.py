"""Which rows a page shows decoded: a bounded choice that shows what is usual and what is not, each with the reasons why it was taken.

>>> choose(tokens=np.array([9, 5, 9]), segments=np.array([2, 2, 1]), targets=np.array([4, 4, 5]))[2]
('fewest segments', 'most targets')
"""

from __future__ import annotations

from packer.types import Int64Array

_FIRST = 2


def choose(*, tokens: Int64Array, segments: Int64Array, targets: Int64Array) -> dict[int, tuple[str, ...]]:
    """Of rows [R]: the first two, and the first with the most and the fewest tokens, segments and targets. From a row's number to why, in that order."""
    chosen: dict[int, tuple[str, ...]] = {}
    picked = [(row, "one of the first rows") for row in range(min(_FIRST, len(tokens)))]
    if len(tokens):
        for values, name in ((tokens, "tokens"), (segments, "segments"), (targets, "targets")):
            if values.min() < values.max():
                most, fewest = ("fullest", "emptiest") if name == "tokens" else (f"most {name}", f"fewest {name}")
                picked += [(int(values.argmax()), most), (int(values.argmin()), fewest)]
    for row, why in picked:
        chosen[row] = (*chosen.get(row, ()), why)
    return chosen
