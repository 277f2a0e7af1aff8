"""Are the fast paths right: each kernel against its reference in float64, and a whole hybrid model that keeps segments apart.

Tolerances are not guessed. The floor of a kernel is how far the float64 reference itself moves, output and gradients, when its inputs are moved by half a
unit of bfloat16's last place, which is what any bfloat16 computation does to them. A fast path may be off by four floors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.gpu.report import Section
from tests.gpu.sizes import Sizes, on
from tests.isolation import end_to_end_gradient_leak, gradient_leaks, pack, perturbation_leak
from trainer.kernels import attention, conv, delta, resolve, scan
from trainer.kernels.loss import cross_entropy_sum
from trainer.model import load_model
from trainer.segments import Segments

TINY = Path(__file__).resolve().parents[2] / "data" / "sample" / "tiny-hybrid"
FLOORS = 4.0
_HALF_PLACE = 2.0**-9

Call = Callable[[list[Tensor]], Tensor]


def kernels(sizes: Sizes) -> Section:
    """Every fast path against its reference: ‖fast − exact‖/‖exact‖ of the output and of each gradient, beside the floor."""
    section = Section(
        title="Kernels against their float64 references",
        columns=("kernel", "which", "worst error", "of", "floor there", "within 4 floors"),
    )
    for name, which, fast, exact, inputs in _cases(sizes):
        errors, floors = _errors(fast, exact, inputs)
        worst = max(errors, key=lambda part: errors[part] / floors[part])
        holds = all(errors[part] <= FLOORS * floors[part] for part in errors)
        section.add(name, which, f"{errors[worst]:.1e}", worst, f"{floors[worst]:.1e}", section.require(holds))
    return section


def _cases(sizes: Sizes) -> list[tuple[str, str, Call, Call, list[Tensor]]]:
    length, width = sum(sizes.lengths), sizes.width
    segments = Segments.from_lengths(sizes.lengths, max_segments=16, max_segment_len=length).to(sizes.device)

    def normal(*shape: int, seed: int) -> Tensor:
        made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
        return made.to(sizes.device, sizes.dtype)

    tokens = [normal(1, length, heads, width, seed=i) for i, heads in enumerate((2, 2, 4))]
    strength = torch.randn(1, length, 4, generator=torch.Generator().manual_seed(4)).sigmoid()
    steps = F.softplus(torch.randn(1, length, 4, generator=torch.Generator().manual_seed(5))).to(sizes.device)
    decay = -steps
    cases: list[tuple[str, str, Call, Call, list[Tensor]]] = []

    attend, choice = resolve("attention", sizes.fused, sizes.device)
    heads_first = [normal(1, heads, length, width, seed=i) for i, heads in enumerate((4, 2, 2))]
    for window in (None, 48):
        cases.append(
            (
                f"attention, window {window}",
                choice.kernel,
                lambda x, w=window: attend(*x, segments=segments, scale=0.125, window=w),
                lambda x, w=window: attention.reference(*x, segments=segments, scale=0.125, window=w),
                heads_first,
            )
        )
    rule, choice = resolve("delta", sizes.fused, sizes.device)
    cases.append(
        (
            "gated delta rule",
            choice.kernel,
            lambda x: rule(*x, segments=segments),
            lambda x: delta.reference(*x, segments=segments),
            [*tokens, decay, strength.to(sizes.device, sizes.dtype)],
        )
    )
    convolve, choice = resolve("conv", sizes.fused, sizes.device)
    cases.append(
        (
            "short convolution",
            choice.kernel,
            lambda x: convolve(x[0], x[1], None, "silu", segments=segments),
            lambda x: conv.reference(x[0], x[1], None, "silu", segments=segments),
            [normal(1, length, 4 * width, seed=6), normal(4 * width, 4, seed=7)],
        )
    )
    scanned, choice = resolve("scan", sizes.fused, sizes.device)
    rates = -torch.arange(1.0, 5.0, device=sizes.device)
    cases.append(
        (
            "selective scan",
            choice.kernel,
            lambda x: scanned(
                x[0], x[1], rates, x[2], x[3], torch.ones_like(rates, dtype=x[0].dtype), segments=segments
            ),
            lambda x: scan.reference(x[0], x[1], rates, x[2], x[3], torch.ones_like(rates), segments=segments),
            [tokens[2], steps, *tokens[:2]],
        )
    )
    places = torch.arange(length, device=sizes.device)
    targets = torch.randint(0, 500, (length,), generator=torch.Generator().manual_seed(8)).to(sizes.device)
    count = length * 3 // 4
    cases.append(
        (
            "loss",
            "ours",
            lambda x: cross_entropy_sum(x[0], x[1], places, targets, count),
            lambda x: F.cross_entropy((x[0] @ x[1].T)[:count], targets[:count], reduction="sum"),
            [normal(length, 2 * width, seed=9), normal(500, 2 * width, seed=10)],
        )
    )
    return cases


def _errors(fast: Call, exact: Call, inputs: list[Tensor]) -> tuple[dict[str, float], dict[str, float]]:
    """Of the output and of every gradient: how far the fast path is from the exact one, and the exact one from itself on nudged inputs."""
    given = [tensor.detach().requires_grad_() for tensor in inputs]
    precise = [tensor.detach().double().requires_grad_() for tensor in inputs]
    generator = torch.Generator().manual_seed(11)
    nudged = [
        (x.detach() * (1 + _HALF_PLACE * (2 * torch.rand(x.shape, generator=generator).to(x) - 1))).requires_grad_()
        for x in precise
    ]
    outputs = [(fast(given), given), (exact(precise), precise), (exact(nudged), nudged)]
    upstream = torch.randn(outputs[1][0].shape, generator=generator, dtype=torch.float64).to(precise[0].device)
    upstream = upstream.to(inputs[0].dtype).double()  # what the fast path is handed, to the bit
    parts = [[out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out.dtype))] for out, leaves in outputs]
    names = ["output", *(f"gradient {number}" for number in range(len(inputs)))]
    ours, truth, moved = parts

    def apart(a: Tensor, b: Tensor) -> float:
        return float((a.double() - b).norm() / b.norm())

    errors = {name: apart(a, b) for name, a, b in zip(names, ours, truth, strict=True)}
    floors = {name: apart(a, b) for name, a, b in zip(names, moved, truth, strict=True)}
    # A half-precision output is itself rounded, however exact its computation.
    rounding = {name: apart(b.to(a.dtype), b) for name, a, b in zip(names, ours, truth, strict=True)}
    return errors, {name: max(floors[name], rounding[name]) for name in names}


def isolation(sizes: Sizes) -> Section:
    """The bundled hybrid with the fast paths: what crosses a boundary, layer by layer and from end to end. All exactly 0."""
    section = Section(
        title="A hybrid model keeps segments apart", columns=("layer", "gradient from another segment", "0")
    )
    model = load_model(
        str(TINY),
        init="random",
        seed=0,
        dtype=sizes.dtype,
        kernels=sizes.fused,
        device=sizes.device,
        vocab_at_least=1,
    )
    generator = torch.Generator().manual_seed(0)
    examples = [torch.randint(1, 4000, (n,), generator=generator) for n in (5, 1, 2, 63, 65, 30)]
    flat = on(pack(examples, pad=26), sizes.device)
    for path, leak in gradient_leaks(model, flat).items():
        section.add(path, f"{leak:g}", section.require(leak == 0.0))
    for name, leak in (
        ("the whole model", end_to_end_gradient_leak(model, flat)),
        ("the whole model, another token", perturbation_leak(model, flat)),
    ):
        section.add(name, f"{leak:g}", section.require(leak == 0.0))
    section.notes.append(", ".join(f"{choice.layer}: {choice.kernel}" for choice in model.layers))
    return section
