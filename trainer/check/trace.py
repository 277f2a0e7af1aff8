"""What goes into and comes out of every module of a model during one pass, in the order in which they finish.

A module that lets one segment see another is one whose output differs where its input does not. Kernels that a module calls without their being modules
(a convolution, a delta rule, a scan: attributes of the layer, or functions of its file) are watched by name as well, so that a leak has a
mechanism and not only a layer.

    with traced(subject, slots=320) as points:
        subject.hidden(batch)
    points[0].path, points[0].mechanism
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import cast

import torch
from torch import Tensor, nn

from trainer.check.subject import Subject
from trainer.isolate import WINDOW

# By the name of a kernel, or of a class: the first that is found in it.
_KERNELS = (("delta", "delta"), ("conv", "convolution"), ("scan", "scan"), ("ssm", "scan"))
_CLASSES = (
    (r"Rotary|PositionEmbedding", "positions"),
    (r"DeltaNet", "delta"),
    (r"Conv", "convolution"),
    (r"Mamba|SSM|RecurrentBlock|RWKV|Rwkv", "scan"),
)
GLOBAL_KERNEL = re.compile(r"(^|_)(conv1d_fn|delta_rule|(chunk|selective)\w*scan\w*)$")
_OWN_KERNEL = re.compile(r"^(delta|conv|scan)_kernel$|conv1d_fn$|delta_rule$|_scan\w*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One call. path: of the module; kernel: the name of the kernel that it called, "" for the module itself. entering, leaving: the tensors of the
    call that run along the row, slots first: [T, …]."""

    path: str
    kernel: str
    mechanism: str
    entering: tuple[Tensor, ...]
    leaving: tuple[Tensor, ...]


@contextmanager
def traced(
    subject: Subject,
    *,
    slots: int,
    watch: Callable[[str, nn.Module], bool] = lambda _path, _module: True,
    keep: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    kernels: bool = True,
) -> Iterator[list[Point]]:
    """While inside, every call of the modules that `watch` names, and of their kernels, is added to the list. slots: T. keep: what of a tensor is
    held on to."""
    points: list[Point] = []
    names = {module: path for path, module in subject.model.named_modules()}
    running: list[str] = []

    def note(path: str, kernel: str, mechanism: str, given: object, made: object) -> None:
        transposed = mechanism == "convolution"
        entering, leaving = (
            tuple(keep(each) for each in _along_the_row(value, slots, transposed=transposed)) for value in (given, made)
        )
        if leaving:
            points.append(Point(path=path, kernel=kernel, mechanism=mechanism, entering=entering, leaving=leaving))

    def enter(module: nn.Module, _: object, __: object) -> None:
        running.append(names[module])

    def leave(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        running.pop()
        note(names[module] or "the model", "", mechanism_of(module), (args, kwargs), output)

    def watched(kernel: Callable[..., object], name: str) -> Callable[..., object]:
        @wraps(kernel)
        def call(*args: object, **kwargs: object) -> object:
            output = kernel(*args, **kwargs)
            if running:
                note(running[-1], name, _of_kernel(name), (args, kwargs), output)
            return output

        return call

    with ExitStack() as stack:
        chosen = [module for module, path in names.items() if watch(path, module)]
        for holder, name, kernel in _kernels(chosen) if kernels else []:
            setattr(holder, name, watched(kernel, name.removesuffix("_kernel")))
            stack.callback(setattr, holder, name, kernel)
        for module in chosen:
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            # The library's own hooks (sharding, the cut at the embedding) have run by then.
            stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        yield points


def mechanism_of(module: nn.Module) -> str:
    """attention, sliding window, delta, convolution, scan, positions or unknown."""
    name = type(module).__name__
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return "convolution"
    if isinstance(module, nn.RNNBase):
        return "scan"
    for pattern, mechanism in _CLASSES:
        if re.search(pattern, name):
            return mechanism
    if "Attention" in name:
        return "sliding window" if _has_window(module) else "attention"
    return "unknown"


def _has_window(attention: nn.Module) -> bool:
    """By its own attribute where it has one, else by what its config says of its layer."""
    for name in (WINDOW, "sliding_window"):
        if hasattr(attention, name):
            return bool(getattr(attention, name))
    config, number = getattr(attention, "config", None), getattr(attention, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    in_turn = kinds is None or number is None or kinds[number] == "sliding_attention"
    return bool(getattr(config, "sliding_window", None)) and in_turn


def _of_kernel(name: str) -> str:
    return next((mechanism for part, mechanism in _KERNELS if part in name), "unknown")


def _kernels(modules: Sequence[nn.Module]) -> list[tuple[object, str, Callable[..., object]]]:
    """Who holds each kernel, its name there, and itself: attributes of layers, and functions of the files that layers come from."""
    found: list[tuple[object, str, Callable[..., object]]] = []
    for module in modules:
        for name, value in vars(module).items():
            if _OWN_KERNEL.search(name) and callable(value) and not isinstance(value, nn.Module):
                found.append((module, name, value))
    files = {kind.__module__ for module in modules for kind in type(module).__mro__}
    for file in sorted(files & sys.modules.keys()):
        if not file.startswith("torch"):
            for name, value in vars(sys.modules[file]).items():
                if GLOBAL_KERNEL.search(name) and isinstance(value, FunctionType):
                    found.append((sys.modules[file], name, value))
    return found


def _along_the_row(value: object, slots: int, *, transposed: bool) -> Iterator[Tensor]:
    """The floating tensors in a value of tuples and dicts that have an axis of `slots` (or the padding of a convolution more), that axis first."""
    if isinstance(value, Tensor):
        axis = _axis(value, slots, transposed=transposed)
        if value.is_floating_point() and axis is not None:
            yield value.movedim(axis, 0)[:slots]
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _along_the_row(each, slots, transposed=transposed)
    elif isinstance(value, dict):
        for each in cast("dict[str, object]", value).values():
            yield from _along_the_row(each, slots, transposed=transposed)


def _axis(tensor: Tensor, slots: int, *, transposed: bool) -> int | None:
    """The axis of the slots. A convolution's may be the last one; where another is as long there, which of them is not known."""
    fitting = [axis for axis in (1, 0, 2, 3) if axis < tensor.dim() and tensor.shape[axis] == slots]
    if fitting:
        return None if transposed and len(fitting) > 1 else fitting[0]
    padded = tensor.dim() == 3 and transposed and slots < tensor.shape[-1] < slots + 16
    return -1 if padded else None


def spread_of(tensors: Sequence[Tensor]) -> float:
    """The root mean square over some tensors."""
    total = sum(float(tensor.double().square().sum()) for tensor in tensors)
    return math.sqrt(total / max(sum(tensor.numel() for tensor in tensors), 1))


def largest_difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest |difference| between tensors that lie in pairs; not a number where one has such."""
    if len(ours) != len(theirs) or any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        return float("inf")
    differences = [(a - b).abs().max() for a, b in zip(ours, theirs, strict=True) if a.numel()]
    return float(torch.stack([each.double() for each in differences]).max()) if differences else 0.0
