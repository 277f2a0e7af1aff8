"""Run a model in float64 although its code casts to float32.

Library code holds norms, gates and rotary angles at float32 by name (`.float()`, `.to(torch.float32)`, `dtype=torch.float32`), which is an upcast from
bfloat16 and a silent downcast from float64: gradients of two equal computations then agree to 2e-7 only, and an error hides below that. Inside
this context float32, asked for by name, means float64.

    >>> import torch
    >>> third = torch.tensor(1.0, dtype=torch.float64) / 3
    >>> with float32_means_float64():
    ...     bool(third.float() == third), torch.zeros(1, dtype=torch.float32).dtype
    (True, torch.float64)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Float32MeansFloat64(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = kwargs or {}
        if func is torch.Tensor.float:
            return cast(Tensor, args[0]).double()
        if func is torch._grouped_mm and cast(Tensor, args[0]).dtype == torch.float64:
            return _grouped_product(cast(Tensor, args[0]), cast(Tensor, args[1]), cast(Tensor, options["offs"]))
        return func(*map(_raised, args), **{name: _raised(value) for name, value in options.items()})


def _grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """torch._grouped_mm, which mixtures of experts use and which knows no float64: rows [M, K] in groups that end at ends [E], each times its own
    matrix of [E, K, N]."""
    lengths = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    return torch.cat([group @ matrix for group, matrix in zip(torch.split(rows, lengths), matrices, strict=True)])


def _raised(value: object) -> object:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def float32_means_float64() -> Iterator[None]:
    """While inside, tensors that are made or cast as float32 are float64 (the default dtype too). Not for compiled code."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float32MeansFloat64():
            yield
    finally:
        torch.set_default_dtype(default)
