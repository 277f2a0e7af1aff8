"""Where a leak begins: the first module, in forward order, whose output leaks although what went into it does not.

A leak that shows forward is found by comparing two passes, module by module. One that is in the backward pass alone is found by gradients: how
much of a module's output in the one set of segments comes from the embeddings of the other; layers are halved first, then the leaking one is
gone through.

    leak = find_forward(subject, rows, changed, where=untouched, floor=0.0)
    leak.module, leak.kernel, leak.mechanism, leak.size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.batch import Batch
from trainer.check.subject import Subject, leaf_embeddings
from trainer.check.trace import Point, largest_difference, spread_of, traced


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """module: path; kernel: the name of the kernel that it called and that leaks, "" where it is the module itself. size: the largest change of its
    output, or gradient through it. direction: forward, backward (its output does not show it) or lengths."""

    module: str
    kernel: str
    mechanism: str
    size: float
    direction: str


def find_forward(
    subject: Subject, before: Batch, after: Batch, *, where: Tensor, floor: float, direction: str = "forward"
) -> Leak | None:
    """The first module whose output at the slots `where` (bool [T]) changes from one pass to the other and whose input there does not.

    floor: a change below this share of the output's root mean square is rounding; 0: any change counts.
    """
    prefixes = _prefixes(subject)

    def keep(tensor: Tensor) -> Tensor:
        # As a copy: what a layer adds to in place later is not what came out of this module.
        return tensor.detach()[where.to(tensor.device)].to("cpu", copy=True)

    def passes(watch: Callable[[str, nn.Module], bool], *, kernels: bool) -> list[tuple[Point, Point]]:
        both = []
        for batch in (before, after):
            watching = traced(subject, slots=len(where), watch=watch, keep=keep, kernels=kernels)
            with torch.no_grad(), watching as points:
                subject.hidden(batch)
            subject.settle()
            both.append(points)
        return list(zip(*both, strict=False))

    def leaks(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
        change = largest_difference(tensors, others)
        return not change <= floor * spread_of(tensors)

    # Layers first and everything outside them: what all modules of all layers give would not fit the memory of a large model.
    suspects = [
        (one, other)
        for one, other in passes(
            lambda path, _: not any(path.startswith(f"{prefix}.") for prefix in prefixes), kernels=not prefixes
        )
        if leaks(one.leaving, other.leaving) and not leaks(one.entering, other.entering)
    ]
    if suspects and suspects[0][0].path in prefixes:
        layer = suspects[0][0].path
        inside = [
            (one, other)
            for one, other in passes(lambda path, _: path == layer or path.startswith(f"{layer}."), kernels=True)
            if leaks(one.leaving, other.leaving) and not leaks(one.entering, other.entering)
        ]
        suspects = inside or suspects
    if not suspects:
        return None
    one, other = suspects[0]
    size = largest_difference(one.leaving, other.leaving)
    return Leak(module=one.path, kernel=one.kernel, mechanism=one.mechanism, size=size, direction=direction)


def find_backward(subject: Subject, batch: Batch, *, targets: Tensor) -> Leak | None:
    """The first module through which a gradient runs from its output at the slots `targets` (bool [T]) to embeddings at the others, and which does not
    receive it so. Every look is a pass of its own: a sharded model's graph does not serve twice. Of a sharded model the leaking layer's weights stay
    whole from then on: nothing is to be trained with it."""
    prefixes = _prefixes(subject)

    def points_of(watch: Callable[[str, nn.Module], bool]) -> tuple[list[Point], Tensor]:
        watching = traced(subject, slots=len(targets), watch=watch)
        with torch.enable_grad(), leaf_embeddings(subject) as leaves, watching as points:
            subject.hidden(batch)
        return points, leaves[0]

    def crossing(tensors: Sequence[Tensor], leaf: Tensor) -> float:
        connected = [tensor for tensor in tensors if tensor.requires_grad]
        if not connected:
            return 0.0
        return crossing_gradient(connected, leaf, targets)

    def of(watch: Callable[[str, nn.Module], bool], place: int, *, entering: bool) -> float:
        points, leaf = points_of(watch)
        return crossing(points[place].entering if entering else points[place].leaving, leaf)

    def only(path: str) -> Callable[[str, nn.Module], bool]:
        return lambda name, _: name == path

    low, high = 0, len(prefixes)
    while low < high:  # the first layer whose output leaks
        middle = (low + high) // 2
        if of(only(prefixes[middle]), -1, entering=False) > 0:
            high = middle
        else:
            low = middle + 1
    layer = prefixes[low] if low < len(prefixes) else None
    if layer is not None:
        block = subject.blocks[low]
        if isinstance(block, FSDPModule):
            # A sharded layer's weights are gathered for a gradient that comes in at its output; these start from inside it.
            block.set_reshard_after_forward(False)

    def inside(path: str, _: nn.Module) -> bool:
        if layer is None:
            return not any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)
        return path == layer or path.startswith(f"{layer}.")

    for place, point in enumerate(points_of(inside)[0]):
        size = of(inside, place, entering=False)
        if size != 0.0 and of(inside, place, entering=True) == 0.0:
            return Leak(
                module=point.path, kernel=point.kernel, mechanism=point.mechanism, size=size, direction="backward"
            )
    return None


def crossing_gradient(tensors: Sequence[Tensor], leaf: Tensor, targets: Tensor) -> float:
    """The largest |gradient| of what tensors [T, …] hold at the slots `targets`, weighted at random, with respect to leaf [1, T, H] at the other slots."""
    generator = torch.Generator().manual_seed(0)
    chosen = targets.to(leaf.device)
    total = leaf.new_zeros((), dtype=torch.float64)
    for tensor in tensors:
        picked = tensor[chosen]
        weights = torch.randn(picked.shape, generator=generator).to(picked)
        total = total + (picked * weights).sum().to(total.dtype)
    found: tuple[Tensor | None, ...] = torch.autograd.grad(total, leaf, allow_unused=True)
    (gradient,) = found
    if gradient is None:
        return 0.0
    others = gradient[0, ~chosen]
    return float(others.abs().max()) if others.numel() else 0.0


def _prefixes(subject: Subject) -> list[str]:
    names = {module: path for path, module in subject.model.named_modules()}
    return [names[block] for block in subject.blocks]
