"""On a GPU: each fast path against its plain-torch reference, forward and backward, and exact zeros across boundaries."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.kernels import Layer, attention, conv, delta, prove_apart, resolve, scan
from trainer.kernels.loss import cross_entropy_sum
from trainer.kernels.scan import ScanKernel
from trainer.segments import Segments

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129, 445]  # 1,024 tokens, the last a pad tail
# bfloat16 has 8 bits: outputs are compared as whole tensors, relative to their size.
TOLERANCE = 2e-2


def segments() -> Segments:
    return Segments.from_lengths(LENGTHS, max_segments=16, max_segment_len=512).to(CUDA)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, sum(LENGTHS), *shape, generator=generator).to(CUDA, dtype).requires_grad_()


def assert_close(ours: Tensor, expected: Tensor, what: str) -> None:
    error = float((ours.float() - expected.float()).norm() / expected.float().norm())
    assert error < TOLERANCE, f"{what}: {error}"


def compare(fused: Tensor, expected: Tensor, inputs: list[Tensor], exact: list[Tensor]) -> None:
    """Outputs, then the gradients of the fast path's inputs and of the reference's (the same values in float32)."""
    assert_close(fused, expected, "output")
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).to(CUDA)
    ours = torch.autograd.grad(fused, inputs, upstream.to(fused.dtype))
    theirs = torch.autograd.grad(expected, exact, upstream.to(expected.dtype))
    for number, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        assert bool(got.isfinite().all()), f"gradient {number}"
        assert_close(got, want, f"gradient {number}")


def in_float32(inputs: list[Tensor]) -> list[Tensor]:
    return [x.detach().float().requires_grad_() for x in inputs]


@pytest.mark.parametrize("window", [None, 64])
def test_fused_attention_equals_the_reference(window: int | None) -> None:
    kernel, _ = resolve("attention", "fused", CUDA)
    inputs = [normal(heads, 64, seed=heads + i).detach().transpose(1, 2) for i, heads in enumerate((8, 2, 2))]
    inputs = [x.requires_grad_() for x in inputs]
    exact = in_float32(inputs)
    compare(
        kernel(*inputs, segments=segments(), scale=0.125, window=window),
        attention.reference(*exact, segments=segments(), scale=0.125, window=window),
        inputs,
        exact,
    )


@pytest.mark.parametrize("value_heads", [2, 4])
def test_fused_gated_delta_equals_the_reference(value_heads: int) -> None:
    kernel, _ = resolve("delta", "fused", CUDA)
    decay = F.logsigmoid(normal(value_heads, seed=4, dtype=torch.float32)).detach().requires_grad_()
    strength = normal(value_heads, seed=5).sigmoid().detach().requires_grad_()
    inputs = [normal(2, 64, seed=1), normal(2, 64, seed=2), normal(value_heads, 64, seed=3), decay, strength]
    exact = in_float32(inputs)
    compare(kernel(*inputs, segments=segments()), delta.reference(*exact, segments=segments()), inputs, exact)


def test_fused_convolution_equals_the_reference() -> None:
    kernel, _ = resolve("conv", "fused", CUDA)
    weight = torch.randn(256, 4, generator=torch.Generator().manual_seed(2)).to(CUDA, torch.bfloat16).requires_grad_()
    inputs = [normal(256, seed=1), weight]
    exact = in_float32(inputs)
    compare(
        kernel(*inputs, None, "silu", segments=segments()),
        conv.reference(*exact, None, "silu", segments=segments()),
        inputs,
        exact,
    )


def test_fused_selective_scan_equals_the_reference() -> None:
    kernel, _ = resolve("scan", "fused", CUDA)
    step = F.softplus(normal(4, seed=2, dtype=torch.float32)).detach().requires_grad_()
    rates, skip = -torch.arange(1.0, 5.0, device=CUDA), torch.ones(4, device=CUDA)
    inputs = [normal(4, 64, seed=1), step, normal(2, 64, seed=3), normal(2, 64, seed=4)]
    exact = in_float32(inputs)

    def call(x: list[Tensor], function: ScanKernel) -> Tensor:
        return function(x[0], x[1], rates, x[2], x[3], skip.to(x[0].dtype), segments=segments())

    compare(call(inputs, kernel), call(exact, scan.reference), inputs, exact)


@pytest.mark.parametrize("layer", ["attention", "delta", "conv", "scan"])
def test_references_keep_segments_apart_on_the_gpu_too(layer: Layer) -> None:
    kernel = {
        "attention": attention.reference,
        "delta": delta.reference,
        "conv": conv.reference,
        "scan": scan.reference,
    }[layer]
    prove_apart(layer, kernel, "reference", CUDA, torch.float32)


def test_the_loss_in_bfloat16_equals_cross_entropy_in_float64() -> None:
    hidden = normal(128, seed=1)[0].detach().requires_grad_()
    weight = torch.randn(500, 128, generator=torch.Generator().manual_seed(2)).to(CUDA, torch.bfloat16).requires_grad_()
    positions = torch.arange(1000, device=CUDA)
    targets = torch.randint(0, 500, (1000,), generator=torch.Generator().manual_seed(3)).to(CUDA)
    ours = cross_entropy_sum(hidden, weight, positions, targets, 900)
    exact = [hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
    expected = F.cross_entropy((exact[0] @ exact[1].T)[:900], targets[:900], reduction="sum")
    assert abs(float(ours.detach() / expected.detach()) - 1) < 1e-5
    for got, want in zip(
        torch.autograd.grad(ours, [hidden, weight]), torch.autograd.grad(expected, exact), strict=True
    ):
        assert_close(got, want.float(), "gradient")
