"""The options of `trainer run`, checked once, frozen afterwards; what they mean stands in the command's --help.

    RunConfig(shards="data/packed", steps=100, lr=1e-4)

Defaults live here and nowhere else: the command line reads them from the fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from packer.console import TomlValue, nearest
from packer.errors import UserError

Init = Literal["pretrained", "random"]
Balance = Literal["batch", "window", "off"]
Schedule = Literal["cosine", "linear", "constant", "wsd"]
Dtype = Literal["auto", "bf16", "fp32", "fp64"]
Checkpointing = Literal["none", "selective", "full"]
Reduce = Literal["pass", "step"]
LossWeighting = Literal["token", "example"]
NonFinite = Literal["stop", "skip"]
Kernels = Literal["auto", "fused", "reference"]
Check = Literal["full", "quick", "off"]
Tracker = Literal["tensorboard", "trackio", "wandb"]

_WORDS = {
    "init": Init,
    "balance": Balance,
    "schedule": Schedule,
    "dtype": Dtype,
    "activation_checkpointing": Checkpointing,
    "reduce": Reduce,
    "loss_weighting": LossWeighting,
    "non_finite": NonFinite,
    "kernels": Kernels,
    "check": Check,
}
_AT_LEAST_ONE = ("steps", "epochs", "rows_per_step", "micro_rows", "replicas", "log_every")
# Of what seeds a generator; the other counts stay where products of two of them fit 64 bits.
_MOST = {"seed": 2**63 - 1}
_AT_LEAST_ZERO = ("weight_decay", "clip", "router_aux_loss", "eval_every", "save_every", "keep", "seed")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One training run. steps and epochs exclude each other; neither means one epoch.

    shards, eval_shards: folders, or addresses such as s3://bucket/packed, of which a mirror is kept in `cache` (None: ~/.cache/packer).
    model: hub name or folder; None takes the one that the shards were tokenized for. out: None is runs/ and the name of the shards' folder.
    warmup: a whole number of steps, or a share of the run ("0.03"). eval_every: None evaluates at the end where there are eval rows, 0 never.
    Raises UserError on a value that cannot be meant.
    """

    shards: str
    eval_shards: str | None = None
    cache: str | None = None
    model: str | None = None
    init: Init = "pretrained"
    steps: int | None = None
    epochs: int | None = None
    rows_per_step: int = 8
    micro_rows: int = 1
    balance: Balance = "batch"
    skip_rows: tuple[int, ...] = ()
    loss_weighting: LossWeighting = "token"
    router_aux_loss: float = 0.0
    lr: float = 1e-5
    warmup: str = "0.03"
    schedule: Schedule = "cosine"
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    non_finite: NonFinite = "stop"
    dtype: Dtype = "auto"
    activation_checkpointing: Checkpointing = "none"
    reduce: Reduce = "pass"
    replicas: int = 1
    cpu_offload: bool = False
    compile: bool = False
    kernels: Kernels = "auto"
    check: Check = "quick"
    eval_every: int | None = None
    save_every: int = 0
    keep: int = 0
    log_every: int = 10
    out: str | None = None
    tracker: tuple[Tracker, ...] = ()
    tracker_project: str | None = None
    resume: str = "auto"
    seed: int = 0
    tokenizer_check: bool = True

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UserError(
                "--steps and --epochs were both given", "give one of them: how long the run is must have one answer"
            )
        for name in _AT_LEAST_ONE:
            self._at_least(name, 1)
        for name in _AT_LEAST_ZERO:
            self._at_least(name, 0)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UserError(f"--lr {self.lr}: not a positive number", "give a learning rate such as 1e-5")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"--betas {self.betas}: not two numbers in [0, 1)", "give two numbers such as 0.9,0.95")
        if any(row < 0 for row in self.skip_rows):
            raise UserError(
                f"--skip-rows {min(self.skip_rows)}: no such row",
                "rows are numbered from 0, as in `packer inspect --row`",
            )
        for name, words in _WORDS.items():
            self._one_of(name, getattr(self, name), get_args(words))
        for tracker in self.tracker:
            self._one_of("tracker", tracker, get_args(Tracker))
        if self.compile and self.dtype == "fp64":
            raise UserError(
                "--compile and --dtype fp64 were both given: compiled code would cast parts of the model to fp32",
                "leave one of them out",
            )
        if self.compile and self.router_aux_loss:
            raise UserError(
                "--compile and --router-aux-loss were both given: a compiled block does not give its router's logits away",
                "leave one of them out",
            )
        warmup_steps(self.warmup, total=1)

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        most = _MOST.get(name, 2**31 - 1 if isinstance(value, int) else math.inf)
        if value is None or (math.isfinite(value) and least <= value <= most):
            return
        what = (
            "not a finite number"
            if not math.isfinite(value)
            else f"less than {least}"
            if value < least
            else f"more than {most}"
        )
        raise UserError(
            f"{option(name)} {value}: {what}",
            f"give at most {most}"
            if math.isfinite(value) and value > most
            else f"give a finite number of at least {least}",
        )

    def _one_of(self, name: str, value: str, words: tuple[str, ...]) -> None:
        if value not in words:
            near = nearest(str(value), words)
            raise UserError(
                f"{option(name)} {value}: no such choice",
                f"did you mean {near}?" if near else f"choices: {', '.join(words)}",
            )

    @property
    def run_folder(self) -> Path:
        """Where the run lies."""
        return Path(self.out) if self.out is not None else Path("runs") / (Path(self.shards).resolve().name or "run")

    @property
    def cache_folder(self) -> Path | None:
        """Where what is fetched from an address is kept; None: where packer keeps it."""
        return Path(self.cache) if self.cache is not None else None

    def options(self) -> dict[str, TomlValue | None]:
        """Every option by name, as a TOML file holds them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def option(name: str) -> str:
    """A field's name as it is typed: rows_per_step → --rows-per-step."""
    return f"--{name.replace('_', '-')}"


def warmup_steps(warmup: str, *, total: int) -> int:
    """Steps of warm-up in a run of `total` steps: "100" is 100 steps, "0.03" the share of the run, rounded up."""
    try:
        if warmup.isdecimal():
            return int(warmup)
        share = float(warmup)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise UserError(
            f"--warmup {warmup}: neither a number of steps nor a share below 1",
            "give steps such as 100, or a share of the run such as 0.03",
        )
    return math.ceil(share * total)
