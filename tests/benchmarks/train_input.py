"""What bench_train, its contenders and bench_ladder share: shards of chats, the examples in them, and when a steady step begins."""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path

import packer
from packer.config import BuildConfig

# Steps before the clock is read: the first touches all memory, the second makes what is made once.
WARMUP = 3


@dataclass(kw_only=True, slots=True)
class Clock:
    """Tokens and seconds of the steps past the warm-up."""

    steps: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.perf_counter)

    def step_done(self, tokens: int) -> None:
        """Counts one step of so many tokens of examples."""
        self.steps += 1
        if self.steps == WARMUP:
            self.began = time.perf_counter()
        elif self.steps > WARMUP:
            self.tokens += tokens

    def figures(self) -> dict[str, float]:
        """For the last line of a contender."""
        return {"tokens": self.tokens, "seconds": time.perf_counter() - self.began, "steps": self.steps - WARMUP}


def packed(folder: Path, arguments: argparse.Namespace) -> Path:
    """Shards of `arguments.rows` in `folder`, by the tokenizer of `arguments.model`, in rows of `arguments.capacity`."""
    shards = folder / "packed"
    config = BuildConfig(
        datasets=(str(arguments.rows),), tokenizer=str(arguments.model), capacity=arguments.capacity, out=shards
    )
    packer.build(config)
    return shards


def examples(shards: Path) -> list[dict[str, list[int]]]:
    """Every example of the training rows as input_ids and labels (-100 where nothing is to be learnt), by row."""
    corpus, found = packer.open(str(shards), split="train"), []
    for number in range(len(corpus)):
        row = corpus[number]
        bounds = row.cu_seqlens[: row.num_examples + 1].tolist()
        for start, end in itertools.pairwise(bounds):
            ids, mask = row.input_ids[start:end].tolist(), row.loss_mask[start:end].tolist()
            labels = [token if learnt else -100 for token, learnt in zip(ids, mask, strict=True)]
            found.append({"input_ids": ids, "labels": labels})
    return found
