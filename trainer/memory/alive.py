"""Counts the bytes of tensors that are alive, on any device, the meta device included: what an allocator would be asked for.

    with Alive(known=[]) as alive:
        y = layer(x)
        stretch = alive.stretch()      # of what was made since the last one: how high it rose, what is left

A tensor counts by its storage, once, from the operation that makes it to when nothing holds it any more, autograd's own graph included. What existed
before is not counted: parameters, buffers, inputs. What a kernel takes for itself in between is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Bytes. start: alive when it began; peak: alive at most; gradients: how much of the peak were gradients of parameters that came in it; end: alive
    when it ended, of which gradients_end were such gradients."""

    start: int
    peak: int
    gradients: int
    end: int
    gradients_end: int


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """known: tensors that are not counted, nor are views of them."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By the storage's address, which is its own while it is alive; the reference says when it no longer is.
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._bytes = self._start = self._peak = 0
        self._gradients = self._gradients_at_peak = 0  # of those that came in this stretch

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known or key in self._alive:
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            del self._alive[key]
            self._bytes -= size

        self._alive[key] = weakref.ref(storage, gone)
        self._bytes += size
        if self._bytes > self._peak:
            self._peak, self._gradients_at_peak = self._bytes, self._gradients

    def note_gradient(self, size: int) -> None:
        """So many bytes of what has come in this stretch are a gradient of a parameter."""
        self._gradients += size

    def stretch(self) -> Stretch:
        """What happened since the last call."""
        done = Stretch(
            start=self._start,
            peak=self._peak,
            gradients=self._gradients_at_peak,
            end=self._bytes,
            gradients_end=self._gradients,
        )
        self._start = self._peak = self._bytes
        self._gradients = self._gradients_at_peak = 0
        return done
