"""The loss on rows that are not trained on, per supervised token, over all ranks; of each source too where they come from several.

Every rank makes the same number of passes: places that the rows do not fill hold a row of weight 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from packer.errors import UserError
from packer.shards import Corpus
from trainer.batch import Shape
from trainer.by_source import BySource, Sources, gather_by_source, sums_by_source
from trainer.loader import DamagedShardError, ShardCheck, read_pass
from trainer.ranks import Ranks
from trainer.step import loss_of, reported


class Evaluation:
    """The eval rows and how to read them; `losses` may be called any number of times, and holds each shard against its digest the first time."""

    def __init__(self, corpus: Corpus, *, shape: Shape, ranks: Ranks) -> None:
        self.supervised = int(corpus.column("num_supervised").sum())
        if self.supervised == 0:
            raise UserError(
                f"{corpus.name}: no row of its {corpus.split} split has a target", "leave it out: --eval-every 0"
            )
        # Each target counts what its row says, once where it says nothing, however a run weighs examples: eval losses of runs can be compared.
        self._sources = Sources.of(corpus)  # the eval rows may be another folder's
        apart = 0 if self._sources is None else len(self._sources.names)
        self._corpus, self._ranks = corpus, ranks
        self._shape = dataclasses.replace(
            shape, weighted=False, sources=apart, balanced=False, row_weights=corpus.manifest.weighted
        )
        self._check = ShardCheck(corpus, local_rank=ranks.local_rank, local_world=ranks.local_world)
        together = ranks.world * shape.rows
        places = np.arange(-(-len(corpus) // together) * together).reshape(-1, ranks.world, shape.rows)[:, ranks.rank]
        self._weights = places < len(corpus)
        self._rows = np.where(self._weights, places, 0)

    def losses(
        self, model: nn.Module, units: Sequence[FSDPModule], *, wish: Callable[[], int] = lambda: 0
    ) -> tuple[float, BySource | None] | None:
        """Σ cross-entropy ÷ targets of all eval rows, by the weights that these have, and the same by source (None where there is one source); every rank calls it.

        wish: asked before each pass; once it is not 0 on some rank, nothing more is computed, and there is no result: None. Raises UserError on a row
        or shard that is damaged.
        """
        ranks, apart = self._ranks, self._shape.sources
        self._check.touch(np.arange(len(self._corpus)))
        self._corpus.ahead(range(len(self._corpus.info.shards)))
        total, weight = torch.zeros((), dtype=torch.float64, device=ranks.device), 0.0
        each = torch.zeros(self._shape.slots, dtype=torch.float64, device=ranks.device) if apart else None
        sums, counts = torch.zeros(apart, dtype=torch.float64, device=ranks.device), np.zeros((3, apart))
        model.eval()
        try:
            with torch.no_grad():
                for rows, weights in zip(self._rows, self._weights, strict=True):
                    read = partial(
                        read_pass,
                        self._corpus,
                        rows,
                        weights,
                        shape=self._shape,
                        pin=ranks.device.type == "cuda",
                        sources=self._sources,
                    )
                    error, batch = None, None
                    try:
                        batch = read()
                    except UserError as raised:
                        error = raised
                    if ranks.agree(error=error, signal=wish()):
                        return None
                    assert batch is not None  # agree has raised where there is none
                    batch = batch.to(ranks.device)
                    total += reported(loss_of(model, batch, each))
                    weight += batch.loss_weight
                    if each is not None and batch.by_source is not None:
                        sums += sums_by_source(each, batch)
                        counts += batch.by_source
        finally:
            model.train()
            for unit in units:
                unit.reshard()  # Without a backward nothing else frees what the forward gathered.
        ranks.together(self._finish)
        summed, counted = ranks.gather([total.item(), weight]).sum(dim=0).tolist()
        loss = summed / counted
        if self._sources is None:
            return loss, None
        return loss, gather_by_source(self._sources.names, sums, counts, ranks)

    def _finish(self) -> None:
        try:
            self._check.finish()
        except DamagedShardError as error:
            raise UserError(error.message, error.hint) from None  # nothing was trained on it

    def close(self) -> None:
        """Ends the background check."""
        self._check.close()
