"""Compiled blocks compute what eager ones do, and rows with other segments need no other graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from tests.isolation import Pass, pack
from tests.trainer.tiny_models import examples, packed_model
from trainer.model import PackedModel

# Rows of one length in 3, 4 and 1 segments, and in as many chunks of 64 or more.
ROWS = [[30, 94, 4], [10, 20, 94, 4], [128]]


def gradients(model: PackedModel, flat: Pass) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(flat.input_ids, flat.position_ids, flat.segments, flat.positions, flat.targets, flat.count)
    torch.autograd.backward(loss)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["qwen3_5", "lfm2", "bamba", "mistral"])
def test_other_segments_make_no_other_graph_and_change_no_gradient(name: str, tmp_path: Path) -> None:
    model = packed_model(name, tmp_path)
    flats = [pack(examples(lengths)) for lengths in ROWS]
    eager = [gradients(model, flat) for flat in flats]
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend="aot_eager", dynamic=False)
    graphs = []
    for flat, expected in zip(flats, eager, strict=True):
        before = counters["stats"]["unique_graphs"]
        for parameter, gradient in gradients(model, flat).items():
            # A key's bias changes nothing behind a softmax: its gradient is rounding alone, so errors are held against the largest one.
            scale = expected[parameter].norm().clamp(min=1e-3)
            assert float((gradient - expected[parameter]).norm() / scale) < 1e-4, parameter
        graphs.append(counters["stats"]["unique_graphs"] - before)
    assert graphs[0] > 0
    assert graphs[1:] == [0, 0]
