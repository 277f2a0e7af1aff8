"""The short convolution against F.conv1d on one segment at a time; and what causal-conv1d is given, held against what its C++ asks for."""

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from packer.errors import UserError
from tests.trainer.kernel_proofs import agree, nothing_crosses
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
    agree(ours, one_by_one(x, weight, bias, activation, lengths), [x, weight, bias], tolerance=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_crosses_a_boundary_forward_or_backward(dtype: torch.dtype) -> None:
    lengths = [1, 2, 63, 1, 64, 3, 65, 5]
    x, weight, _ = (tensor.detach().to(dtype) for tensor in inputs(sum(lengths)))

    def kernel(x: Sequence[Tensor], segments: Segments) -> Tensor:
        return reference(x[0], weight, None, "silu", segments=segments)

    nothing_crosses(kernel, [x], lengths, of_tokens=[0])


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


class AskingModule(ModuleType):
    """Stands for the causal_conv1d package: its checks in the words of its C++ source, then the mathematics, reading seq_idx by chunks of 64."""

    @staticmethod
    def causal_conv1d_fn(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None, *, activation: str | None
    ) -> Tensor:
        assert x.stride(1) == 1, "seq_idx is only supported for channel last layout"
        assert x.shape[1] % 8 == 0, "causal_conv1d only supports channel dimension divisible by 8 for now"
        assert x.stride(2) % 8 == 0 and x.stride(0) % 8 == 0, (  # noqa: PT018
            "causal_conv1d with channel last layout requires strides to be multiples of 8"
        )
        assert 2 <= weight.shape[1] <= 4, "causal_conv1d only supports width between 2 and 4"
        assert seq_idx is not None
        assert seq_idx.dtype == torch.int32
        assert seq_idx.is_contiguous()
        assert seq_idx.shape == (x.shape[0], x.shape[2])
        assert x.shape[2] % 64 == 0, "a last chunk that is not whole is read past the end of seq_idx"
        lengths = torch.unique_consecutive(seq_idx[0], return_counts=True)[1].tolist()
        return one_by_one(x.transpose(1, 2), weight, bias, activation, lengths).transpose(1, 2)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> conv.ConvKernel:
    monkeypatch.setitem(sys.modules, "causal_conv1d", AskingModule("causal_conv1d"))
    kernel, name, why = conv.load_fused()
    assert (name, why) == ("causal_conv1d.causal_conv1d_fn", "causal-conv1d is installed")
    return kernel


@pytest.mark.parametrize("lengths", [*LENGTHS, [63], [64], [65], [127, 1], [128], [129]], ids=str)
@pytest.mark.parametrize("slack", [0, 3, 8], ids=lambda slack: f"{slack} channels beside")
def test_causal_conv1d_is_given_what_it_asks_for(lengths: list[int], slack: int, asking: conv.ConvKernel) -> None:
    """slack: x is a slice of a wider projection, as the layers hand it on: its rows are not 8 apart, or not close together."""
    whole = torch.randn(1, sum(lengths), 16 + slack, generator=torch.Generator().manual_seed(0), requires_grad=True)
    x = whole[..., :16]
    weight, bias = torch.randn(16, 4, requires_grad=True), torch.randn(16, requires_grad=True)
    segments = Segments.from_lengths(lengths, max_segments=20)
    ours = asking(x, weight, bias, "silu", segments=segments)
    expected = reference(x, weight, bias, "silu", segments=segments)
    torch.testing.assert_close(ours, expected)
    for got, want in zip(
        torch.autograd.grad(ours.square().sum(), [whole, weight, bias]),
        torch.autograd.grad(expected.square().sum(), [whole, weight, bias]),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("channels", "kernel"), [(12, 4), (16, 5), (16, 1)])
def test_channels_and_kernels_that_causal_conv1d_does_not_take_are_told_before_it_is_called(
    channels: int, kernel: int, asking: conv.ConvKernel
) -> None:
    x, weight = torch.zeros(1, 64, channels), torch.zeros(channels, kernel)
    with pytest.raises(UserError, match=f"{channels} channels and a kernel of {kernel}") as error:
        asking(x, weight, None, None, segments=Segments.from_lengths([64]))
    assert "--kernels reference" in error.value.hint


def test_without_causal_conv1d_the_other_convolution_is_taken_and_why_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def record(**options: object) -> tuple[object, None]:
        given.update(options)
        return options["x"], None

    for name in ("fla", "fla.modules", "fla.modules.causal_conv1d"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["fla.modules.causal_conv1d"], "causal_conv1d", record, raising=False)
    monkeypatch.setattr(conv, "_installed", lambda _: False)
    kernel, name, why = conv.load_fused()
    assert name == "fla.modules.causal_conv1d (triton)"
    assert why == "causal-conv1d is not installed"
    segments = Segments.from_lengths([3, 70], max_segments=9)
    kernel(torch.zeros(1, 73, 5), torch.zeros(5, 4), None, "silu", segments=segments)
    assert given["cu_seqlens"] is segments.boundaries
    assert given["cu_seqlens_cpu"] is segments.boundaries_cpu
    assert given["chunk_indices"] is segments.chunk_indices
    assert given["backend"] == "triton"
