"""What the plain-torch reference of every kernel is asked: the outputs and gradients of an independent reckoning, and that nothing crosses a boundary.

agree(reference(*x, segments=segments), token_by_token(*x, lengths), x, tolerance=1e-10)
nothing_crosses(lambda x, segments: reference(*x, segments=segments), inputs(200), [1, 2, 63, 64, 65, 5])
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer.segments import Segments

Kernel = Callable[[Sequence[Tensor], Segments], Tensor]


def agree(ours: Tensor, expected: Tensor, inputs: Sequence[Tensor], *, tolerance: float) -> None:
    """Equal outputs, to `tolerance`, and equal gradients of all inputs, to ten times that."""
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for got, want in zip(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=10 * tolerance, atol=10 * tolerance)


def nothing_crosses(
    kernel: Kernel, inputs: Sequence[Tensor], lengths: list[int], *, of_tokens: Sequence[int], dim: int = 1
) -> None:
    """Of each segment: no gradient of its output at others' tokens, and no bit of others' outputs that its tokens change.

    of_tokens: which inputs have an entry a token, and dim: along which dimension, the output's too.
    """
    segments = Segments.from_lengths(lengths)
    x = [tensor.detach().requires_grad_() for tensor in inputs]
    out = kernel(x, segments)
    for start, end in itertools.pairwise(segments.boundaries_cpu.tolist()):
        mine = out.narrow(dim, start, end - start)
        for gradient in torch.autograd.grad(mine.square().sum(), [x[i] for i in of_tokens], retain_graph=True):
            gradient.narrow(dim, start, end - start).zero_()
            assert float(gradient.abs().max()) == 0.0, f"a gradient leaves the segment from {start} to {end}"
        changed = [tensor.detach().clone() for tensor in x]
        for i in of_tokens:
            changed[i].narrow(dim, start, end - start).mul_(0.5)
        again = kernel(changed, segments)
        assert not torch.equal(again, out)
        again.narrow(dim, start, end - start).copy_(mine.detach())
        assert torch.equal(again, out), f"tokens of the segment from {start} to {end} change others"


def saved_shapes(kernel: Kernel, inputs: Sequence[Tensor], lengths: list[int]) -> list[torch.Size]:
    """Shapes of what is kept for backward, in order."""
    shapes: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kernel(inputs, Segments.from_lengths(lengths))
    return shapes
