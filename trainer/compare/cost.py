"""What one optimiser step costs a host: the operations that it dispatches, the kernels that it launches, and the memory that it holds at most.

Operations are calls that reach torch's dispatcher below autograd, forward, backward and update alike, views included: each costs the host some microseconds,
whatever its size, and on a GPU most of them launch a kernel. On a CPU the memory is the largest sum of tensors alive at once, those of the model and its
optimiser included, without what an operation allocates and frees inside itself; on a GPU it is the most that the allocator gave out. Compiled code runs
uncompiled while it is watched, so of that neither is counted.

    cost = cost_of(lambda: train_step(...), device=device, resident=tensors, compiled=False)
    cost.operations, cost.peak_bytes
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Of one step. operations: None of compiled code. launches: kernels sent to a GPU, None on a CPU. peak_bytes: None on a GPU, whose allocator knows
    better, and of compiled code."""

    operations: int | None
    launches: int | None
    peak_bytes: int | None


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Counts operations, and the bytes behind what they make, from when it is made until it is freed. resident: tensors that are there before."""

    def __init__(self, resident: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.operations = self.alive = self.most = 0
        self._known: dict[int, weakref.finalize[..., object]] = {}
        for tensor in resident:
            self._note(tensor)

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        del types
        self.operations += 1
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor):
                self._note(each)
        return made

    def _note(self, tensor: Tensor) -> None:
        storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
        size, address = storage.nbytes(), storage.data_ptr()
        if size == 0 or (address in self._known and self._known[address].alive):
            return
        self._known[address] = weakref.finalize(storage, self._free, size)
        self.alive += size
        self.most = max(self.most, self.alive)

    def _free(self, size: int) -> None:
        self.alive -= size


def cost_of(step: Callable[[], object], *, device: torch.device, resident: Iterable[Tensor], compiled: bool) -> Cost:
    """Runs `step` once, counting, and on a GPU once under torch's profiler. resident: tensors of model and optimiser, there before and after it."""
    operations = peak = launches = None
    if not compiled:
        with _Watch(resident) as watch:
            step()
        operations, peak = watch.operations, watch.most
    if device.type == "cuda":
        launches, peak = _launches(step, device), None
    return Cost(operations=operations, launches=launches, peak_bytes=peak)


def _launches(step: Callable[[], object], device: torch.device) -> int:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize(device)
    return sum(event.count for event in profile.key_averages() if "LaunchKernel" in event.key)
