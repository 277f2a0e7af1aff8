"""Operations and memory of a step, against those counted by hand on a toy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from trainer.compare.cost import Cost
from trainer.compare.cost import cost_of as measure

NUMBER = 4  # bytes of a float32


def cost_of(step: Callable[[], object], *, resident: Iterable[Tensor]) -> Cost:
    return measure(step, device=torch.device("cpu"), resident=resident, compiled=False)


def test_every_dispatched_operation_counts_once_and_views_too() -> None:
    x, w = torch.ones(3, 5), torch.ones(5, 2)

    def step() -> None:
        y = x @ w  # mm
        y = y.t()  # t
        y.add_(1)  # add_

    assert cost_of(step, resident=[x, w]).operations == 3


def test_backward_and_update_count_with_forward() -> None:
    w, x = torch.ones(3, requires_grad=True), torch.ones(3)

    def step() -> None:
        y = w * x  # mul
        torch.autograd.backward(y, x)  # mul, and detach where the gradient is put into its place
        with torch.no_grad():
            w.sub_(w.grad)  # sub_
        w.grad = None

    # Twice the one product, the update, and what autograd takes to hand the gradient over.
    assert cost_of(step, resident=[w, x]).operations == 4


def test_memory_is_the_largest_sum_of_tensors_alive_at_once() -> None:
    x = torch.zeros(1000)

    def step() -> None:
        one = x + 1  # 2,000 numbers alive
        two = one + 1  # 3,000
        del one
        three = two + 1  # 3,000: the second was freed
        four = three.view(10, 100)  # no memory of its own
        del two, three
        four.mul_(2)

    assert cost_of(step, resident=[x]).peak_bytes == 3000 * NUMBER


def test_what_is_there_before_counts_once_however_many_tensors_share_it() -> None:
    weight = torch.zeros(64)
    cost = cost_of(lambda: weight.add_(1), resident=[weight, weight.view(8, 8), weight[:3]])
    assert (cost.peak_bytes, cost.operations, cost.launches) == (64 * NUMBER, 1, None)


def test_memory_agrees_with_the_profiler_of_torch() -> None:
    layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = torch.randn(128, 64)

    def step() -> None:
        torch.autograd.backward(layers(x).square().mean())
        layers.zero_grad(set_to_none=True)

    step()
    ours = cost_of(step, resident=[x, *layers.parameters()]).peak_bytes
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    alive = most = 0
    for event in watched.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    resident = (x.numel() + sum(parameter.numel() for parameter in layers.parameters())) * NUMBER
    assert ours is not None
    assert abs(ours - (most + resident)) < 0.05 * ours


def test_of_compiled_code_nothing_is_claimed() -> None:
    calls: list[None] = []
    found = measure(lambda: calls.append(None), device=torch.device("cpu"), resident=[], compiled=True)
    assert (found.operations, found.launches, found.peak_bytes, calls) == (None, None, None, [])
