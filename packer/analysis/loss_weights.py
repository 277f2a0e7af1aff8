"""How many targets count what in the loss.

>>> counts = count_weights(np.array([0, 0.5, 1, 1], dtype=np.float32))
>>> counts
Counter({1.0: 2, 0.5: 1})
>>> describe_weights(counts)
'0.5 × 1, 1 × 2'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from packer.shards import Corpus
from packer.types import Float32Array

_MOST_LISTED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class LossWeights:
    """Of the targets of a split. distinct: how many different weights there are. mean: of all targets. targets: by weight, how many targets have it; of
    more than 16 weights those that most targets have."""

    distinct: int
    mean: float
    targets: Mapping[str, int]

    def __str__(self) -> str:
        return f"{_in_words(self.targets, self.distinct)}; {self.mean:.4g} on average"


def loss_weights_of(corpus: Corpus) -> LossWeights | None:
    """Reads the weights of every row; None for a build in which every target counts 1."""
    if not corpus.manifest.weighted:
        return None
    counts: Counter[float] = Counter()
    corpus.ahead(range(len(corpus.info.shards)))
    for _, _, batch in corpus.batches():
        assert batch.loss_weights is not None
        counts.update(count_weights(batch.loss_weights))
    return LossWeights(
        distinct=len(counts),
        mean=sum(weight * count for weight, count in counts.items()) / max(counts.total(), 1),
        targets=dict(_listed(counts)),
    )


def count_weights(weights: Float32Array) -> Counter[float]:
    """By weight, how many targets have it. What is no target has weight 0 and is not counted."""
    found, counts = np.unique(weights[weights != 0], return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def describe_weights(counts: Counter[float]) -> str:
    """In a few words: the smallest first; of more than 16 those that most targets have."""
    return _in_words(dict(_listed(counts)), len(counts))


def _listed(counts: Counter[float]) -> list[tuple[str, int]]:
    return [(f"{weight:.7g}", count) for weight, count in sorted(counts.most_common(_MOST_LISTED))]


def _in_words(targets: Mapping[str, int], distinct: int) -> str:
    more = distinct - len(targets)
    return ", ".join(f"{weight} × {count:,}" for weight, count in targets.items()) + (
        f", {more:,} more" if more else ""
    )
