"""What is alive, on a CPU and on the meta device, against sums made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.memory.alive import Alive

DEVICES = ["cpu", "meta"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_counts_from_when_it_is_made_to_when_nothing_holds_it(device: str) -> None:
    x = torch.empty(1000, device=device)
    with Alive([x]) as alive:
        y = x + 1
        z = y * 2
        del y
        made = alive.stretch()
        del z
        gone = alive.stretch()
    assert (made.start, made.peak, made.end) == (0, 8000, 4000)
    assert (gone.start, gone.peak, gone.end) == (4000, 4000, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_views_and_what_was_there_before_do_not_count(device: str) -> None:
    x = torch.empty(10, 100, device=device)
    with Alive([x]) as alive:
        rows = x[2:5].t()
        rows.mul_(2)
        y = x + 1
        kept = y.view(-1)[:3]
        del y
        assert alive.stretch().end == 4000  # the whole storage, for three of its numbers
        del kept
        assert alive.stretch().end == 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_autograd_keeps_counts_though_no_one_names_it(device: str) -> None:
    layer = nn.Linear(100, 100, bias=False, device=device)
    x = torch.empty(10, 100, device=device)
    with Alive([*layer.parameters(), x]) as alive:
        y = torch.tanh(layer(x)).sum()
        assert alive.stretch().end == 4000 + 4  # tanh keeps its result; what it was made of is gone
        y.backward()  # type: ignore[no-untyped-call]
        alive.note_gradient(layer.weight.nbytes)
        done = alive.stretch()
    assert done.end == 40_000 + 4
    assert done.gradients_end == 40_000
