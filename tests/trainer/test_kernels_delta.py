"""The gated delta rule against a token-by-token recurrence in float64, one segment at a time."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.trainer.kernel_proofs import agree, nothing_crosses, saved_shapes
from trainer.kernels.delta import reference
from trainer.segments import Segments

LENGTHS = [[1], [2, 1], [63, 64, 65], [1, 2, 63, 64, 65, 127, 128, 129, 37], [200, 1, 1, 1, 60]]


def inputs(length: int, key_heads: int = 2, value_heads: int = 4, key_dim: int = 8, value_dim: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, length, *shape, generator=generator, dtype=torch.float64)

    made = [
        normal(key_heads, key_dim),
        normal(key_heads, key_dim),
        normal(value_heads, value_dim),
        -F.softplus(normal(value_heads)),
        2 * normal(value_heads).sigmoid(),
    ]
    return [x.requires_grad_() for x in made]


def kernel(x: Sequence[Tensor], segments: Segments) -> Tensor:
    return reference(*x, segments=segments)


def token_by_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lengths: list[int], l2norm: bool
) -> Tensor:
    if l2norm:
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    group = v.shape[2] // k.shape[2]
    out, t = [], 0
    for length in lengths:
        states = [torch.zeros(k.shape[-1], v.shape[-1], dtype=torch.float64) for _ in range(v.shape[2])]
        for _ in range(length):
            for head in range(v.shape[2]):
                key, query = k[0, t, head // group], q[0, t, head // group] / k.shape[-1] ** 0.5
                decayed = states[head] * g[0, t, head].exp()
                change = beta[0, t, head] * (v[0, t, head] - decayed.T @ key)
                states[head] = decayed + torch.outer(key, change)
                out.append(states[head].T @ query)
            t += 1
    return torch.stack(out).reshape(1, t, v.shape[2], v.shape[-1])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("l2norm", [True, False])
def test_equals_the_recurrence_with_its_gradients(lengths: list[int], l2norm: bool) -> None:
    x = inputs(sum(lengths))
    if not l2norm:
        x[1] = (x[1] / 8).detach().requires_grad_()  # the recurrence only converges for short keys
    ours = reference(*x, segments=Segments.from_lengths(lengths), l2norm=l2norm)
    agree(ours, token_by_token(*x, lengths, l2norm), x, tolerance=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_crosses_a_boundary_forward_or_backward(dtype: torch.dtype) -> None:
    lengths = [1, 2, 63, 64, 65, 5]
    x = [tensor.to(dtype) for tensor in inputs(sum(lengths))]
    nothing_crosses(kernel, x, lengths, of_tokens=range(len(x)))


def test_strong_decay_neither_overflows_nor_leaks() -> None:
    lengths = [70, 70]
    x = inputs(140)
    x[3] = torch.full_like(x[3], -40.0).requires_grad_()
    out = reference(*x, segments=Segments.from_lengths(lengths))
    torch.testing.assert_close(out, token_by_token(*x, lengths, True), rtol=1e-10, atol=1e-10)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(out.sum(), x))


def test_half_precision_in_gives_half_precision_out_but_computes_in_float32() -> None:
    x = [t.detach().bfloat16() for t in inputs(130)]
    segments = Segments.from_lengths([65, 65])
    out = reference(*x, segments=segments)
    assert out.dtype == torch.bfloat16
    exact = reference(*[t.double() for t in x], segments=segments)
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-5)


def test_shapes_of_saved_tensors_do_not_depend_on_the_number_of_segments() -> None:
    assert saved_shapes(kernel, inputs(200), [200]) == saved_shapes(kernel, inputs(200), [1] * 100 + [100])
