"""The loss of each source of a mixed corpus, at no extra pass: a step's losses are summed once more by source on the device, and read with the other
numbers where a line of metrics is due.

sources = Sources.of(corpus)                 # None where the corpus has one source: then nothing of this is done
sums = sums_by_source(each, batch)           # float64 [G], on the device
window = SourceWindow(sources, device)
window.add(work.passes, result.source_sums)  # every step; waits for nothing
window.close(ranks).loss                     # {"code.jsonl": 0.71, "chat.jsonl": 1.34}
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from packer.errors import UserError
from packer.examples import example_sources
from packer.manifest import Manifest
from packer.shards import Corpus
from packer.types import Float64Array, Int16Array, Int64Array, Row
from trainer.batch import Batch
from trainer.ranks import Ranks

if TYPE_CHECKING:
    from trainer.metrics import StepMetrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """names: of the G sources, each once. of_example: int16 [N], the source of every example of the folder."""

    names: tuple[str, ...]
    of_example: Int16Array

    @classmethod
    def of(cls, corpus: Corpus) -> Sources | None:
        """Those of a corpus; None where it has fewer than two. Raises UserError where its table of examples is missing or damaged."""
        if len(corpus.manifest.sources) < 2:
            return None
        names = source_names(corpus.manifest)
        of_example = example_sources(corpus.fetch("examples").parent)
        if len(of_example) and not 0 <= int(of_example.min()) <= int(of_example.max()) < len(names):
            raise UserError(
                f"{corpus.name}/examples: names a source that is not among the {len(names)} of the manifest",
                "build the folder again, or restore it from a copy",
            )
        return cls(names=names, of_example=of_example)

    def of_row(self, row: Row, *, where: str) -> Int64Array:
        """int64 [num_examples]: the source of each example of a row. where: the row's place, for the UserError of one that is not listed."""
        ids = row.example_ids[: row.num_examples]
        if len(ids) and int(ids.max()) >= len(self.of_example):
            raise UserError(
                f"{where}: example {int(ids.max())} is not in examples/, which lists {len(self.of_example)}",
                "build the folder again, or restore it from a copy",
            )
        return self.of_example[ids].astype(np.int64)


def source_names(manifest: Manifest) -> tuple[str, ...]:
    """What each source is called: its name, with its split where it has one, and its number where others are called the same."""
    names = [source.title for source in manifest.sources]
    often = Counter(names)
    return tuple(name if often[name] == 1 else f"{name} ({place})" for place, name in enumerate(names))


def sums_by_source(each: Tensor, batch: Batch) -> Tensor:
    """float64 [G] on the device: the cross-entropy of a pass, summed by the source of the target's example, each target as often as its row says.
    each [K]: of every target by itself."""
    assert batch.segment_sources is not None
    slots = batch.positions[: batch.count]
    source = batch.segment_sources[batch.segments.seq_idx[0, slots]]
    own = source == torch.arange(batch.shape.sources, device=each.device)[:, None]  # [G, count]
    each = each[: batch.count]
    if batch.shape.row_weights and batch.target_weights is not None:
        each = each * batch.target_weights[1, : batch.count]
    # Not a sum into places (index_add), whose order a GPU does not keep; and what is not finite in one source stays there.
    return torch.where(own, each, 0.0).sum(dim=1, dtype=torch.float64)


class SourceWindow:
    """Counts between two lines of metrics."""

    def __init__(self, sources: Sources, device: torch.device) -> None:
        self._names = sources.names
        self._sums = torch.zeros(len(sources.names), dtype=torch.float64, device=device)
        self._counts = np.zeros((3, len(sources.names)))

    def add(self, passes: Sequence[Batch], sums: Tensor) -> None:
        """Counts one step of this rank; waits for nothing. sums: float64 [G] on the device."""
        self._sums += sums
        for batch in passes:
            assert batch.by_source is not None
            self._counts += batch.by_source

    def close(self, ranks: Ranks) -> BySource:
        """Of all ranks since it was last closed. Every rank calls it; waits for the device."""
        found = gather_by_source(self._names, self._sums, self._counts, ranks)
        self._sums.zero_()
        self._counts[:] = 0
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BySource:
    """By a source's name: loss (Σ cross-entropy ÷ targets, by the weights that rows have; left out where there was no target), useful tokens, targets."""

    loss: Mapping[str, float]
    useful_tokens: Mapping[str, int]
    supervised_tokens: Mapping[str, int]

    def added_to(self, metrics: StepMetrics) -> StepMetrics:
        """A line of metrics with these in it."""
        return dataclasses.replace(
            metrics,
            loss_by_source=self.loss,
            useful_tokens_by_source=self.useful_tokens,
            supervised_tokens_by_source=self.supervised_tokens,
        )


def gather_by_source(names: Sequence[str], sums: Tensor, counts: Float64Array, ranks: Ranks) -> BySource:
    """Sums of all ranks. sums: float64 [G], on the device. counts: float64 [3, G], useful tokens, targets, and what these count."""
    table = ranks.gather([*sums.tolist(), *counts.reshape(-1).tolist()]).sum(dim=0).tolist()
    size = len(names)
    useful, supervised = (dict(zip(names, map(int, table[at : at + size]), strict=True)) for at in (size, 2 * size))
    losses = zip(names, table[:size], table[3 * size :], strict=True)
    return BySource(
        loss={name: total / weight for name, total, weight in losses if weight},
        useful_tokens=useful,
        supervised_tokens=supervised,
    )
