"""Mamba-2's scan against a token-by-token recurrence in float64, one segment at a time."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

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
    expected = token_by_token(*x, lengths)
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for got, want in zip(
        torch.autograd.grad(ours, x, upstream), torch.autograd.grad(expected, x, upstream), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_crosses_a_boundary_forward_or_backward(dtype: torch.dtype) -> None:
    lengths = [1, 2, 63, 64, 65, 5]
    segments = Segments.from_lengths(lengths)
    x = [t.detach().to(dtype).requires_grad_() for t in inputs(sum(lengths))]
    tokens = [x[0], x[1], x[3], x[4]]
    out = reference(*x, segments=segments)
    bounds = segments.boundaries_cpu.tolist()
    for start, end in itertools.pairwise(bounds):
        for gradient in torch.autograd.grad(out[:, start:end].square().sum(), tokens, retain_graph=True):
            gradient[:, start:end] = 0
            assert float(gradient.abs().max()) == 0.0
        changed = [t.detach().clone() for t in x]
        for place in (0, 1, 3, 4):
            changed[place][:, start:end] *= 0.5
        again = reference(*changed, segments=segments)
        again[:, start:end] = out[:, start:end].detach()
        assert torch.equal(again, out)


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
    def saved(lengths: list[int]) -> list[torch.Size]:
        shapes: list[torch.Size] = []

        def keep(tensor: Tensor) -> Tensor:
            shapes.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            reference(*inputs(sum(lengths)), segments=Segments.from_lengths(lengths))
        return shapes

    assert saved([200]) == saved([1] * 100 + [100])
