"""Mamba-2's scan against a token-by-token recurrence in float64, one segment at a time."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.trainer.kernel_proofs import agree, nothing_crosses, saved_shapes
from trainer.kernels.scan import reference
from trainer.segments import Segments

LENGTHS = [[1], [2, 1], [63, 64, 65], [1, 2, 63, 64, 65, 127, 128, 129, 37], [200, 1, 1, 1, 60]]


def inputs(length: int, heads: int = 4, width: int = 6, groups: int = 2, state: int = 5) -> list[Tensor]:
    """x, step, a, b, c, d."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    made = [
        normal(1, length, heads, width),
        F.softplus(normal(1, length, heads)),
        -normal(heads).exp(),
        normal(1, length, groups, state),
        normal(1, length, groups, state),
        normal(heads),
    ]
    return [x.requires_grad_() for x in made]


def kernel(x: Sequence[Tensor], segments: Segments) -> Tensor:
    return reference(*x, segments=segments)


def token_by_token(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, lengths: list[int]) -> Tensor:
    ratio, out, t = x.shape[2] // b.shape[2], [], 0
    for length in lengths:
        states = [torch.zeros(b.shape[-1], x.shape[-1], dtype=torch.float64) for _ in range(x.shape[2])]
        for _ in range(length):
            for head in range(x.shape[2]):
                write, read = b[0, t, head // ratio], c[0, t, head // ratio]
                kept = states[head] * (step[0, t, head] * a[head]).exp()
                states[head] = kept + torch.outer(write, step[0, t, head] * x[0, t, head])
                out.append(states[head].T @ read + d[head] * x[0, t, head])
            t += 1
    return torch.stack(out).reshape(x.shape)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_equals_the_recurrence_with_its_gradients(lengths: list[int]) -> None:
    x = inputs(sum(lengths))
    ours = reference(*x, segments=Segments.from_lengths(lengths))
    agree(ours, token_by_token(*x, lengths), x, tolerance=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_crosses_a_boundary_forward_or_backward(dtype: torch.dtype) -> None:
    lengths = [1, 2, 63, 64, 65, 5]
    x = [tensor.to(dtype) for tensor in inputs(sum(lengths))]
    nothing_crosses(kernel, x, lengths, of_tokens=(0, 1, 3, 4))


def test_strong_decay_neither_overflows_nor_leaks() -> None:
    lengths = [70, 70]
    x = inputs(140)
    x[2] = torch.full_like(x[2], -60.0).requires_grad_()
    out = reference(*x, segments=Segments.from_lengths(lengths))
    torch.testing.assert_close(out, token_by_token(*x, lengths), rtol=1e-10, atol=1e-10)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(out.sum(), x))


def test_half_precision_in_gives_half_precision_out_but_computes_in_float32() -> None:
    x = [t.detach().bfloat16() for t in inputs(130)]
    segments = Segments.from_lengths([65, 65])
    out = reference(*x, segments=segments)
    assert out.dtype == torch.bfloat16
    exact = reference(*[t.double() for t in x], segments=segments)
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-4)


def test_shapes_of_saved_tensors_do_not_depend_on_the_number_of_segments() -> None:
    assert saved_shapes(kernel, inputs(200), [200]) == saved_shapes(kernel, inputs(200), [1] * 100 + [100])
