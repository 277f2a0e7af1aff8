"""Nothing of a pass's logits or activations is alive when the next pass begins: what is held over would be memory of two passes at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, random_rows, write_corpus
from tests.trainer.tiny_models import VOCABULARY, packed_model
from trainer import step as step_module
from trainer.batch import Batch, Shape
from trainer.loader import read_pass
from trainer.step import accumulate

LARGE = CAPACITY * 8  # numbers; a pass's hidden states are 64 × 32, its logits about 25 × 61


class Made(TorchDispatchMode):
    """Of every large tensor that an operation made: whether it still has memory."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: list[tuple[StorageWeakRef, str]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for each in pytree.tree_leaves(made):
            if isinstance(each, Tensor) and each.numel() >= LARGE:
                self.refs.append((StorageWeakRef(each.untyped_storage()), f"{func} {tuple(each.shape)}"))
        return made


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    rows = [[replace(e, ids=tuple(i % VOCABULARY for i in e.ids)) for e in row] for row in random_rows(3, seed=0)]
    corpus = write_corpus(tmp_path_factory.mktemp("nothing") / "packed", rows=rows)
    shape = Shape(rows=1, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY)
    return [read_pass(corpus, np.array([row]), np.ones(1, bool), shape=shape, pin=False) for row in range(3)]


def held_over(model: nn.Module, batches: list[Batch], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What earlier passes of a step made that has memory when a later one begins, but for weights and their gradients."""
    original, made, found = step_module.loss_of, Made(), set()

    def looking(model: nn.Module, batch: Batch) -> Tensor:
        lasting = {
            StorageWeakRef(each.untyped_storage())
            for p in model.parameters()
            for each in (p, p.grad)
            if each is not None
        }
        found.update(said for ref, said in made.refs if not ref.expired() and ref not in lasting)
        return original(model, batch)

    with monkeypatch.context() as patch, made:
        patch.setattr(step_module, "loss_of", looking)
        accumulate(model, [], batches, denominator=9, reduce="pass", device=torch.device("cpu"))
    assert len(made.refs) > 20
    return found


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5"])
def test_a_pass_leaves_nothing_for_the_next(
    name: str, tmp_path: Path, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packed_model(name, tmp_path)
    assert held_over(model, batches, monkeypatch) == set()
    kept: list[Tensor] = []
    model.model.base_model.register_forward_hook(lambda *given: kept.append(given[-1].last_hidden_state))
    assert held_over(model, batches, monkeypatch)  # what is kept is found
