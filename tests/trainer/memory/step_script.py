"""What real steps of the trainer take on a CPU, by torch's own allocator: rank 0 of a torchrun prints a line of JSON a case, with all ranks.

python -m tests.trainer.memory.step_script '[{"model": "…", "dtype": "fp32", …}, …]'

The parts are tensors that can be asked for their size; the peak is what the profiler saw asked of the allocator and given back during one step, over them.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from packer.types import Row
from trainer.batch import Shape, make_batch
from trainer.model import plan_model, try_out
from trainer.optim import make_optimizer
from trainer.parallel import DTYPES, checkpoint_blocks, master_dtype, shard
from trainer.ranks import Ranks, start_ranks
from trainer.step import accumulate, train_step
from trainer.weights import fill


def row(capacity: int, segments: int, vocabulary: int, seed: int) -> Row:
    """One whose examples fill it, half of their tokens targets."""
    rng = np.random.default_rng(seed)
    bounds = np.linspace(0, capacity, segments + 1).astype(np.int32)
    lengths = np.diff(bounds)
    mask = np.zeros(capacity, bool)
    mask[1::2] = True
    return Row(
        input_ids=rng.integers(1, vocabulary, capacity).astype(np.int32),
        loss_mask=mask,
        position_ids=np.concatenate([np.arange(length) for length in lengths]).astype(np.uint16),
        cu_seqlens=bounds,
        num_segments=segments,
        num_examples=segments,
        example_ids=np.arange(segments, dtype=np.int64),
        num_supervised=int(mask.sum()),
        sum_sq_len=int((lengths.astype(np.int64) ** 2).sum()),
    )


def local(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of each."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def storages(tensors: list[torch.Tensor]) -> int:
    """Bytes of what lies behind tensors, a shared storage once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local(tensors)}.values())


def changes_of(work: Callable[[], None]) -> list[int]:
    """Bytes that `work` had of the allocator (and, negative, gave back), in order, as the profiler saw it in this thread."""
    gc.collect()  # what is left of earlier models would be given back in the middle of it
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiled.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    return [change for _, change in sorted(changes, key=lambda each: each[0])]


def allocated(work: Callable[[], None]) -> int:
    """Bytes that `work` had at most."""
    return max(itertools.accumulate(changes_of(work)))


class Tracked(TorchDispatchMode):
    """The same by the storages of what operations give back and what becomes of them: gloo gives memory back in a thread that the profiler does not
    watch. That thread holds on to a collective's tensors for a moment after it is done, which is not the trainer's doing: it is given the moment."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.level = self.peak = 0
        self.communicated = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if self.communicated:
            time.sleep(0.005)
        out = func(*args, **(kwargs or {}))
        self.communicated = func.namespace == "c10d"
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
                self.note(leaf.untyped_storage())
        return out

    def note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        _, before = self.storages.get(key, (None, 0))
        self.storages[key] = (weakref.ref(storage, lambda _: self.gone(key)), storage.nbytes())
        self.level += storage.nbytes() - before
        self.peak = max(self.peak, self.level)

    def gone(self, key: int) -> None:
        self.level -= self.storages.pop(key)[1]


def tracked(work: Callable[[], None], known: list[torch.Tensor]) -> int:
    """Bytes of tensors that `work` had at most over those that are known."""
    resize = torch.UntypedStorage.resize_

    def noted(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        resized = resize(storage, size)
        mode.note(storage)  # FSDP frees and makes the storage of a tensor that stays
        return resized

    torch.UntypedStorage.resize_ = noted  # type: ignore[method-assign]
    try:
        with Tracked(known) as mode:
            work()
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
    return mode.peak


def measured(case: Mapping[str, Any], ranks: Ranks) -> dict[str, int]:
    """Of one rank, in bytes: parts at rest, gradients after a pass, and the highest moment of a step."""
    dtype = DTYPES[case["dtype"]]
    model, weights = plan_model(
        case["model"],
        init="random",
        seed=0,
        dtype=master_dtype(dtype),
        kernels="reference",
        device=ranks.device,
        vocab_at_least=1,
    )
    checkpoint_blocks(model.blocks, case["activation_checkpointing"])
    units = shard(model, model.blocks, dtype=dtype, ranks=ranks, replicas=case["replicas"])
    fill(model, model.model, weights, ranks.device)
    try_out(model, case["model"], ranks.device)
    optimizer = make_optimizer(model, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01)
    capacity, segments, rows = case["capacity"], case["segments"], case["micro_rows"]
    shape = Shape(rows=rows, capacity=capacity, max_segments=segments, max_segment_len=capacity)
    batches = [
        make_batch(
            [row(capacity, segments, model.head.shape[0], seed + place) for place in range(rows)],
            numbers=range(rows),
            weights=[True] * rows,
            shape=shape,
            pin=False,
        )
        for seed in range(case["passes"])
    ]
    denominator = sum(batch.count for batch in batches) * ranks.world

    def step() -> None:
        train_step(
            model,
            units,
            optimizer,
            batches,
            denominator=denominator,
            lr=1e-4,
            clip=1.0,
            reduce=case["reduce"],
            device=ranks.device,
        )

    step()  # what is made once is there afterwards
    accumulate(model, units, batches, denominator=denominator, reduce="pass", device=ranks.device)
    gradients = storages([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    optimizer.zero_grad(set_to_none=True)
    state = [value for each in optimizer.state.values() for value in each.values()]
    at_rest = [*model.parameters(), *model.buffers(), *state, *(batch.buffer for batch in batches)]
    rise = allocated(step) if ranks.world == 1 else tracked(step, local(at_rest))
    found = {
        "parameters": storages([*model.parameters(), *model.buffers()]),
        "optimizer": storages(state),
        "gradients": gradients,
        "batch": batches[0].buffer.nbytes,
    }
    return {**found, "peak": rise + found["parameters"] + found["optimizer"] + found["batch"]}


def main(cases: list[dict[str, Any]]) -> None:
    with start_ranks() as ranks:
        for case in cases:
            every = ranks.gather_objects(measured(case, ranks))
            if ranks.first:
                print(json.dumps(every), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
