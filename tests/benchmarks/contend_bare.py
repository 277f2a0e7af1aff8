"""Contender: the barest loop over the rows of a run, in its order: the same model and loss, all batches made before, nothing logged, nothing checked."""

from __future__ import annotations

import json
import sys

import torch

from tests.benchmarks.train_input import Clock
from trainer.batch import Shape, make_batch
from trainer.config import RunConfig
from trainer.model import load_model
from trainer.prepare import prepare


def main() -> None:
    shards, source, steps = sys.argv[1:4]
    prepared = prepare(RunConfig(shards=shards, model=source, steps=int(steps), rows_per_step=1, init="random"))
    corpus = prepared.corpus
    shape = Shape(
        rows=1,
        capacity=corpus.capacity,
        max_segments=prepared.max_segments,
        max_segment_len=prepared.max_segment_len,
    )
    numbers = [int(prepared.order.step(step).rows[0]) for step in range(int(steps))]
    batches = [make_batch([corpus[n]], numbers=[n], weights=[True], shape=shape, pin=False) for n in numbers]
    model = load_model(
        source,
        init="random",
        seed=0,
        dtype=torch.float32,
        kernels="auto",
        device="cpu",
        vocab_at_least=corpus.manifest.max_token_id + 1,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    clock = Clock()
    for batch in batches:
        loss = model(batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count)
        (loss / batch.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.step_done(batch.useful_tokens)
    print(json.dumps(clock.figures()))


if __name__ == "__main__":
    main()
