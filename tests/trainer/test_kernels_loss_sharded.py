"""The loss in a model that FSDP2 shards over two processes, its head tied to the embedding: gradients are those of one process in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from trainer.kernels.loss import cross_entropy_sum

VOCABULARY, WIDTH, RANKS = 21, 6, 2
COUNTS = (7, 0)  # the second process has nothing to learn from, and must still take part


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.embedding.weight.data = torch.randn(VOCABULARY, WIDTH, generator=generator)
        self.inside = nn.Linear(WIDTH, WIDTH, bias=False)
        self.inside.weight.data = torch.randn(WIDTH, WIDTH, generator=generator)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def hidden(self, ids: Tensor) -> Tensor:
        return self.inside(self.embedding(ids)).tanh()  # type: ignore[no-any-return]

    def forward(self, ids: Tensor, positions: Tensor, targets: Tensor, count: int) -> Tensor:
        return cross_entropy_sum(self.hidden(ids), self.head.weight, positions, targets, count)


def given(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank + 1)
    ids = torch.randint(0, VOCABULARY, (10,), generator=generator)
    return ids, torch.arange(10), torch.randint(0, VOCABULARY, (10,), generator=generator)


def one_rank(rank: int, place: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=RANKS)
    model = Tied()
    fully_shard(model)
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)  # gloo has no other sum that is not divided
    for _ in range(2):  # gradients of two passes add up
        torch.autograd.backward(model(*given(rank), COUNTS[rank]) / sum(COUNTS))
    whole = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    if rank == 0:
        torch.save(whole, f"{place}/gradients.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_a_sharded_and_tied_head_gets_the_whole_gradient_on_ranks_with_and_without_targets(tmp_path: Path) -> None:
    mp.spawn(one_rank, args=(str(tmp_path),), nprocs=RANKS)
    got = torch.load(tmp_path / "gradients.pt")
    exact = Tied().double()
    total = torch.zeros((), dtype=torch.float64)
    for rank, count in enumerate(COUNTS):
        ids, positions, targets = given(rank)
        logits = exact.hidden(ids) @ exact.head.weight.T
        total = total + F.cross_entropy(logits[positions[:count]], targets[:count], reduction="sum")
    torch.autograd.backward(2 * total / sum(COUNTS))
    assert sorted(got) == ["embedding.weight", "inside.weight"]
    for name, parameter in exact.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(got[name].double(), parameter.grad, rtol=1e-5, atol=1e-6)
