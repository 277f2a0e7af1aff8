"""What real steps of the trainer take on a CPU, by torch's own allocator: rank 0 of a torchrun prints them for all ranks.

python -m tests.trainer.memory.step_script '{"model": "…", "dtype": "fp32", …}'

The parts are tensors that can be asked for their size; the peak is what the profiler saw asked of the allocator and given back during one step, over them.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable

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
from trainer.ranks import start_ranks
from trainer.step import train_step
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


def allocated(work: Callable[[], None]) -> int:
    """Bytes that `work` had of the allocator at most, as the profiler saw it asked and given back in this thread."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiled.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    level, peak = 0, 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        level += change
        peak = max(peak, level)
    return peak


class Tracked(TorchDispatchMode):
    """The same by the storages of what operations give back, asked for their size after each: gloo gives memory back in a thread that the profiler
    does not watch."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((out, args, kwargs)):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.known:
                    self.storages[storage._cdata] = weakref.ref(storage)
        alive = {key: reference() for key, reference in self.storages.items()}
        self.storages = {key: self.storages[key] for key, storage in alive.items() if storage is not None}
        self.peak = max(self.peak, sum(storage.nbytes() for storage in alive.values() if storage is not None))
        return out


def tracked(work: Callable[[], None], known: list[torch.Tensor]) -> int:
    with Tracked(known) as mode:
        work()
    return mode.peak


def main(case: dict[str, object]) -> None:
    with start_ranks() as ranks:
        dtype = DTYPES[str(case["dtype"])]
        model, weights = plan_model(
            str(case["model"]),
            init="random",
            seed=0,
            dtype=master_dtype(dtype),
            kernels="reference",
            device=ranks.device,
            vocab_at_least=1,
        )
        checkpoint_blocks(model.blocks, case["checkpointing"])  # type: ignore[arg-type]
        replicas = int(case.get("replicas", 1))  # type: ignore[call-overload]
        units = shard(model, model.blocks, dtype=dtype, ranks=ranks, replicas=replicas)
        fill(model, model.model, weights, ranks.device)
        try_out(model, str(case["model"]), ranks.device)
        optimizer = make_optimizer(model, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01)
        capacity, segments, rows, passes = (int(case[key]) for key in ("capacity", "segments", "rows", "passes"))  # type: ignore[call-overload]
        shape = Shape(rows=rows, capacity=capacity, max_segments=segments, max_segment_len=capacity)
        vocabulary = model.head.shape[0]
        batches = [
            make_batch(
                [row(capacity, segments, vocabulary, seed + place) for place in range(rows)],
                numbers=range(rows),
                weights=[True] * rows,
                shape=shape,
                pin=False,
            )
            for seed in range(passes)
        ]

        def step() -> None:
            train_step(
                model,
                units,
                optimizer,
                batches,
                denominator=sum(batch.count for batch in batches) * ranks.world,
                lr=1e-4,
                clip=1.0,
                reduce=case.get("reduce", "pass"),  # type: ignore[arg-type]
                device=ranks.device,
            )

        step()  # what is made once (streams, lazily initialised state) is there afterwards
        state = [value for each in optimizer.state.values() for value in each.values()]
        parameters = storages([*model.parameters(), *model.buffers()])
        found = {
            "parameters": parameters,
            "optimizer": storages(state),
            "batch": batches[0].buffer.nbytes,
        }
        rise = (
            allocated(step)
            if ranks.world == 1
            else tracked(
                step, [*local([*model.parameters(), *model.buffers(), *state]), *(batch.buffer for batch in batches)]
            )
        )
        found["peak"] = rise + parameters + found["optimizer"] + found["batch"]
        every = ranks.gather_objects(found)
        if ranks.first:
            print(json.dumps(every), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
