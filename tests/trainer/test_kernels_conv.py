"""The short convolution against F.conv1d on one segment at a time."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.kernels import conv
from trainer.kernels.conv import reference
from trainer.segments import Segments

LENGTHS = [[1], [3, 2, 1, 1, 5], [63, 64, 65], [1, 2, 63, 64, 65, 127, 128, 129, 37]]


def inputs(length: int, width: int = 5, kernel: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = ((1, length, width), (width, kernel), (width,))
    x, weight, bias = (torch.randn(*s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes)
    return x, weight, bias


def one_by_one(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, lengths: list[int]) -> Tensor:
    out = []
    for piece in x.split(lengths, dim=1):
        padded = F.pad(piece.transpose(1, 2), (weight.shape[1] - 1, 0))
        y = F.conv1d(padded, weight[:, None], bias, groups=len(weight)).transpose(1, 2)
        out.append(y if activation is None else F.silu(y))
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("block_bytes", [16 * 40, 1 << 20], ids=["many blocks", "one block"])
def test_equals_a_convolution_of_each_segment_with_its_gradients(
    lengths: list[int], kernel: int, activation: str | None, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "_BLOCK_BYTES", block_bytes)
    x, weight, bias = inputs(sum(lengths), kernel=kernel)
    ours = reference(x, weight, bias, activation, segments=Segments.from_lengths(lengths))
    expected = one_by_one(x, weight, bias, activation, lengths)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = torch.autograd.grad(ours, [x, weight, bias], upstream)
    for ours_grad, want in zip(got, torch.autograd.grad(expected, [x, weight, bias], upstream), strict=True):
        torch.testing.assert_close(ours_grad, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_crosses_a_boundary_forward_or_backward(dtype: torch.dtype) -> None:
    lengths = [1, 2, 63, 1, 64, 3, 65, 5]
    segments = Segments.from_lengths(lengths)
    x, weight, _ = (t.detach().to(dtype) for t in inputs(sum(lengths)))
    x.requires_grad_()
    out = reference(x, weight, None, "silu", segments=segments)
    bounds = segments.boundaries_cpu.tolist()
    for start, end in itertools.pairwise(bounds):
        (gradient,) = torch.autograd.grad(out[:, start:end].square().sum(), x, retain_graph=True)
        gradient[:, start:end] = 0
        assert float(gradient.abs().max()) == 0.0
        changed = x.detach().clone()
        changed[:, start:end] += 1
        again = reference(changed, weight, None, "silu", segments=segments)
        again[:, start:end] = out[:, start:end].detach()
        assert torch.equal(again, out)


def test_no_bias_and_half_precision() -> None:
    x, weight, _ = (t.detach().bfloat16() for t in inputs(70))
    out = reference(x, weight, None, "silu", segments=Segments.from_lengths([65, 5]))
    assert out.dtype == torch.bfloat16
    exact = one_by_one(x.double(), weight.double(), None, "silu", [65, 5])
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-5)


def test_an_unknown_activation_is_an_error() -> None:
    x, weight, _ = inputs(4)
    with pytest.raises(ValueError, match="gelu"):
        reference(x, weight, None, "gelu", segments=Segments.from_lengths([4]))
