"""A document as `trainer compare --json` prints it, made up: four rungs, three seeds."""

from __future__ import annotations

import math
import random

from trainer.compare_document import Document, Run, Rung

RUNGS = ("padded, 4 a batch", "padded, grouped by length", "packed, plain", "packed")


def curve(seed: int, *, rung: int) -> Run:
    rng = random.Random(seed * 10 + rung)
    steps = list(range(1, 201))
    return Run(
        seed=seed,
        steps=steps,
        loss=[4.2 * math.exp(-step / 60) + 3.6 + rng.gauss(0, 0.05) + 0.01 * rung for step in steps],
    )


def rung(name: str, speed: float | None, ratio: float | None) -> Rung:
    return Rung(
        name=name,
        useful_tokens_per_s=speed,
        slots_per_useful=None if speed is None else 5000 / speed,
        steps=200,
        ops_per_useful_token=None if speed is None else 41.25,
        graphs_compiled=3 if name.startswith("padded") else 1,
        peak_memory_bytes=3 * 2**30,
        ratio=ratio,
    )


def document(*, equivalent: bool | None = True) -> Document:
    padded, packed = [3.6012, 3.6107, 3.5988], [3.6020, 3.6099, 3.5993]
    return Document(
        ladder=[
            rung(RUNGS[0], 1644.0, 1.0),
            rung(RUNGS[1], 2314.0, 1.4075),
            rung(RUNGS[2], 3234.0, 1.967),
            rung(RUNGS[3], 4951.0, 3.0116),
        ],
        loss={
            "padded": {"mean": sum(padded) / 3, "std": 0.0063, "per_seed": padded},
            "packed": {"mean": sum(packed) / 3, "std": 0.0055, "per_seed": packed},
            "difference_per_seed": [one - other for one, other in zip(packed, padded, strict=True)],
            "interval_95": [-0.0019, 0.0022],
            "margin": 0.01,
            "replicate_floor": 0.0004,
            "equivalent": equivalent,
        },
        curves={name: [curve(seed, rung=number) for seed in range(3)] for number, name in enumerate(RUNGS)},
        setting={
            "model": "tiny-hybrid",
            "torch": "2.13.0",
            "dtype": "fp32",
            "seeds": [0, 1, 2],
            "device": "2 CPU cores",
        },
    )
