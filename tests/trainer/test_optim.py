"""The learning rate against closed forms; AdamW against torch's plain loop; the update that is refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from tests.trainer.stand_in import StandIn
from trainer.optim import decayed, gradient_norm, learning_rate, make_optimizer, update

PEAK, WARMUP, STEPS = 3e-4, 10, 110


def curve(schedule: str, warmup: int = WARMUP, steps: int = STEPS) -> list[float]:
    return [learning_rate(step, peak=PEAK, warmup=warmup, steps=steps, schedule=schedule) for step in range(steps)]  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
def test_warm_up_rises_in_equal_steps_and_ends_at_the_peak(schedule: str) -> None:
    assert curve(schedule)[:WARMUP] == pytest.approx([PEAK * k / 10 for k in range(1, 11)])


def test_the_curves_are_their_closed_forms() -> None:
    after = range(WARMUP, STEPS)
    assert curve("constant")[WARMUP:] == [PEAK] * 100
    assert curve("linear")[WARMUP:] == pytest.approx([PEAK * (110 - step) / 100 for step in after])
    assert curve("cosine")[WARMUP:] == pytest.approx(
        [PEAK * math.cos(math.pi * (step - 10) / 200) ** 2 for step in after]
    )
    assert curve("wsd")[WARMUP:] == pytest.approx([PEAK if step < 88 else PEAK * (110 - step) / 22 for step in after])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_last_update_still_learns(schedule: str) -> None:
    assert 0 < curve(schedule)[-1] < PEAK / 10


def test_a_run_shorter_than_its_warm_up_never_passes_the_peak() -> None:
    assert max(curve("cosine", warmup=100, steps=5)) == pytest.approx(PEAK * 5 / 100)
    assert curve("wsd", warmup=0, steps=1) == [PEAK]


def test_biases_norms_gates_and_short_convolutions_do_not_decay() -> None:
    shapes = {
        "layers.0.mlp.up_proj.weight": (4, 4),
        "embed_tokens.weight": (9, 4),
        "layers.0.mlp.gate_proj.weight": (4, 4),
        "layers.0.mlp.gate.weight": (8, 4),  # a router
        "layers.0.mlp.shared_expert_gate.weight": (1, 4),
        "layers.0.mlp.experts.gate_up_proj": (8, 4, 4),
        "layers.0.linear_attn.in_proj_a.weight": (2, 4),
        "layers.0.mlp.up_proj.bias": (4,),
        "layers.0.input_layernorm.weight": (4,),
        "layers.0.linear_attn.A_log": (2,),
        "layers.0.linear_attn.dt_bias": (2,),
        "layers.0.linear_attn.conv1d.weight": (8, 1, 4),
        "layers.0.conv.conv.weight": (8, 1, 3),
    }
    assert [name for name, shape in shapes.items() if decayed(torch.empty(shape))] == list(shapes)[:7]


def test_the_groups_hold_each_parameter_once_with_its_decay() -> None:
    model = StandIn(9)
    optimizer = make_optimizer(model, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    held = {id(parameter): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(p): 0.1 if p.dim() >= 2 else 0.0 for p in model.parameters()}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(held)


def test_optimizer_state_that_is_not_fp32_is_refused() -> None:
    with pytest.raises(ValueError, match="not fp32"):
        make_optimizer(StandIn(9).bfloat16(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def set_gradients(model: nn.Module, seed: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * size


@pytest.mark.parametrize("clip", [0.5, 1e6, 0.0])
def test_updates_are_those_of_torchs_clipping_and_plain_adamw(clip: float) -> None:
    ours, theirs = StandIn(9), StandIn(9)
    optimizer = make_optimizer(ours, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    # eps is large beside a gradient of 1e-7, so that the scale of the gradient matters to AdamW, which otherwise it hardly does.
    plain = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), fused=False, foreach=False)
    for step in range(4):
        for model in (ours, theirs):
            set_gradients(model, step, size=1e-7 if clip == 0 else 1.0)
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        for group in plain.param_groups:
            group["lr"] = 1e-3 * (step + 1)
        plain.step()
        update(optimizer, gradient_norm(ours), lr=1e-3 * (step + 1), clip=clip)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


def test_the_norm_of_millions_of_numbers_is_right_to_seven_digits() -> None:
    model = nn.Linear(2048, 2048, bias=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    assert float(gradient_norm(model)) == pytest.approx(exact, rel=2e-7)


def test_clipping_divides_the_gradient_by_its_excess() -> None:
    model = StandIn(9)
    optimizer = make_optimizer(model, lr=1e-3, betas=(0.0, 0.0), weight_decay=0.0)
    set_gradients(model, 0)
    norm = gradient_norm(model)
    expected = {name: parameter.grad * (0.25 / norm) for name, parameter in model.named_parameters()}
    update(optimizer, norm, lr=1e-3, clip=0.25)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], expected[name], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_at_all(value: float) -> None:
    model = StandIn(9)
    optimizer = make_optimizer(model, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    set_gradients(model, 0)
    assert update(optimizer, gradient_norm(model), lr=1e-2, clip=1.0)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    set_gradients(model, 1)
    gradient = model.embedding.weight.grad
    assert gradient is not None
    gradient[2, 3] = value
    assert not update(optimizer, gradient_norm(model), lr=1e-2, clip=1.0)
    after = (model.state_dict(), optimizer.state_dict()["state"])
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert all(torch.equal(before[1][n][key], after[1][n][key]) for n in before[1] for key in before[1][n])
    set_gradients(model, 2)
    assert update(optimizer, gradient_norm(model), lr=1e-2, clip=1.0)
    assert not torch.equal(before[0]["scale"], model.scale)
