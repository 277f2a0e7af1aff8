"""What real steps of the trainer take on a CPU, by torch's own allocator: every rank of a torchrun writes a line of JSON.

python -m tests.trainer.memory.step_script '{"model": "…", "dtype": "fp32", …}'

The parts are tensors that can be asked for their size; the peak is what the profiler saw asked of the allocator and given back during one step, over them.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

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


def storages(tensors: list[torch.Tensor]) -> int:
    """Bytes of what lies behind tensors, a shared storage once, this rank's part of sharded ones."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local}.values())


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
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            step()
        changes = [
            (event.start_ns(), event.nbytes())
            for event in profiled.profiler.kineto_results.events()
            if event.name() == "[memory]"
        ]
        level, peak = 0, 0
        for _, change in sorted(changes, key=lambda each: each[0]):
            level += change
            peak = max(peak, level)
        found["rise"] = peak
        found["left"] = level
        found["peak"] = peak + parameters + found["optimizer"] + found["batch"]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
