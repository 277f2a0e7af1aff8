"""The last check: what is trained on, for the eye, and that the model is taught to stop.

found = labels(corpus, rows=[0, 1, 2])
found.faults, found.shown[0]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packer.shards import Corpus
from packer.types import Row
from trainer.decode import open_decoder, stretches
from trainer.decode import shown as shown_text

_SHOWN_EXAMPLES, _SHOWN_TURNS, _SHOWN_CHARACTERS = 3, 2, 72


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """shown: lines for the eye, unescaped. faults: one line each. turns: stretches of targets that were looked at, `ended` of them with a terminator."""

    shown: tuple[str, ...]
    faults: tuple[str, ...]
    turns: int
    ended: int


def labels(corpus: Corpus, *, rows: Sequence[int]) -> Labels:
    """Looks at these rows. A terminator (one of the manifest's stop ids) behind a stretch of targets must be a target too, and some must be."""
    stops, shown, faults = set(corpus.manifest.stop_ids), [], []
    turns = ended = untrained = 0
    decoder = open_decoder(corpus)
    for number in rows:
        row = corpus[number]
        first = row.cu_seqlens[: row.num_segments]
        if row.loss_mask[first].any():
            faults.append(f"row {number:,}: the first token of a segment is a target")
        for example, (start, end) in enumerate(_examples(row)):
            found = stretches(row.loss_mask[start:end])
            ids = row.input_ids[start:end]
            for _, high in found:
                turns += 1
                ended += int(ids[high - 1]) in stops
                untrained += high < len(ids) and int(ids[high]) in stops
            if example < _SHOWN_EXAMPLES:
                texts = [
                    shown_text(decoder, ids[low:high], characters=_SHOWN_CHARACTERS)
                    for low, high in found[:_SHOWN_TURNS]
                ]
                more = len(found) - len(texts)
                shown.append(
                    f"row {number:,}, example {example}: {' ┊ '.join(texts) or '(nothing)'}{f' ┊ … {more} more' if more else ''}"
                )
        if row.num_examples > _SHOWN_EXAMPLES:
            shown.append(f"row {number:,}: … {row.num_examples - _SHOWN_EXAMPLES} more examples")
    if untrained:
        faults.append(
            f"{untrained:,} of {turns:,} stretches of targets are followed by a terminator ({', '.join(map(str, sorted(stops)))}) that is not a target: "
            "the model would not learn to stop"
        )
    elif stops and turns and not ended:
        faults.append(
            f"none of {turns:,} stretches of targets ends with a terminator ({', '.join(map(str, sorted(stops)))}): the model would not learn to stop"
        )
    return Labels(shown=tuple(shown), faults=tuple(faults), turns=turns, ended=ended)


def _examples(row: Row) -> Iterator[tuple[int, int]]:
    bounds = row.cu_seqlens[: row.num_examples + 1].tolist()
    return itertools.pairwise(bounds)
