"""A model of the shape of `trainer.model.PackedModel`, small and plain enough to be reckoned by hand: no token sees past its segment."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.segments import Segments

WIDTH = 12


class Block(nn.Module):
    """Adds a projection of the running mean of the segment so far."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inside = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, *, segments: Segments) -> Tensor:
        parts = hidden[0].split(segments.boundaries_cpu.diff().tolist())
        means = [part.cumsum(0) / torch.arange(1, len(part) + 1, dtype=part.dtype)[:, None] for part in parts]
        return hidden + torch.tanh(self.inside(self.norm(torch.cat(means))))[None]


class StandIn(nn.Module):
    """Tied embedding and head; positions enter by a second embedding."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(vocabulary, WIDTH)
            self.places = nn.Embedding(128, WIDTH)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(WIDTH, vocabulary, bias=False)
            self.scale = nn.Parameter(torch.ones(1))  # one number over two ranks: one of them holds nothing of it
        self.head.weight = self.embedding.weight
        self.layers = ()

    def logits(self, input_ids: Tensor, position_ids: Tensor, segments: Segments) -> Tensor:
        hidden = self.embedding(input_ids) + self.places(position_ids)
        for block in self.blocks:
            hidden = block(hidden, segments=segments)
        return self.head(hidden * self.scale)[0]

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Segments,
        positions: Tensor,
        targets: Tensor,
        count: int,
        target_weights: Tensor | None = None,
    ) -> Tensor:
        logits = self.logits(input_ids, position_ids, segments)
        losses = F.cross_entropy(logits[positions[:count]], targets[:count], reduction="none")
        if target_weights is None:
            return losses.sum()
        return torch.stack([(losses * target_weights[:count]).sum(), losses.sum().detach()])
