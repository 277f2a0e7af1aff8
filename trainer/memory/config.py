"""The options of `trainer plan`, checked once; those that `run` has too mean what they mean there and keep its defaults.

PlanConfig(model="Qwen/Qwen3-0.6B", capacity=8192, ranks=8, memory=80_000_000_000)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from packer.errors import UserError
from trainer.config import Checkpointing, Dtype, Kernels, LossWeighting, Reduce

Device = Literal["cuda", "cpu"]
_UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig:
    """shards: a folder or address, which gives capacity and rows; else capacity stands for it, and rows, where they are known. memory: bytes of one
    rank's device. tokens_per_s: useful tokens a second, all ranks together; run: a run's folder to take that from. Raises UserError."""

    shards: str | None = None
    cache: str | None = None
    model: str | None = None
    capacity: int | None = None
    rows: int | None = None
    ranks: int = 1
    replicas: int = 1
    device: Device = "cuda"
    dtype: Dtype = "auto"
    kernels: Kernels = "auto"
    activation_checkpointing: Checkpointing = "none"
    rows_per_step: int = 8
    micro_rows: int = 1
    steps: int | None = None
    epochs: int | None = None
    reduce: Reduce = "pass"
    loss_weighting: LossWeighting = "token"
    cpu_offload: bool = False
    memory: int | None = None
    tokens_per_s: float | None = None
    run: str | None = None

    def __post_init__(self) -> None:
        for name in ("capacity", "rows", "ranks", "memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: less than 1", "give a number of at least 1")
        if self.tokens_per_s is not None and not 0 < self.tokens_per_s < float("inf"):
            raise UserError(f"--tokens-per-s {self.tokens_per_s}: not a positive number", "give a rate such as 50000")
        if self.tokens_per_s is not None and self.run is not None:
            raise UserError("--tokens-per-s and --run were both given", "leave one of the two rates out")
        if self.shards is None and (self.model is None or self.capacity is None):
            raise UserError(
                "neither --shards nor --model and --capacity were given",
                "give the folder that `packer build` wrote, or the model and the length of a row: --model NAME --capacity 8192",
            )
        if self.shards is not None and (self.capacity is not None or self.rows is not None):
            raise UserError(
                "--shards was given with --capacity or --rows, which it has itself", "leave one of the two out"
            )
        if self.device == "cpu" and self.kernels == "fused":
            raise UserError("--kernels fused needs a GPU, and the plan is for a CPU", "leave --kernels or --device out")
        if self.device == "cuda" and self.kernels != "reference" and self.dtype in ("fp32", "fp64"):
            raise UserError(
                f"--dtype {self.dtype} was given for a GPU, whose fused kernels compute in bf16",
                "plan with --dtype bf16, or with --kernels reference",
            )


def read_bytes(text: str) -> int:
    """ "80GB" → 80,000,000,000; also MB, TB, GiB and plain bytes. Raises UserError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in _UNITS:
        raise UserError(f"--memory {text}: not an amount of memory", "give one such as 80GB or 79.6GiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])
