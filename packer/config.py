"""The options of `packer build`, resolved and checked once, past the command line."""

from __future__ import annotations

import datetime
import json
import math
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import get_args

from packer.conversation import Json
from packer.errors import UserError
from packer.formats import Layout
from packer.render import Policies
from packer.schema import CAPACITY_MULTIPLE, ROWS_PER_BATCH, SEGMENTS_MULTIPLE
from packer.sources.column_map import ColumnMap
from packer.tokenizer import DEFAULT_TOKENIZER
from packer.words import (
    EmptyAnswers,
    EncoderName,
    EngineName,
    Format,
    Overlong,
    Policy,
    Reasoning,
    Strategy,
    TrainOn,
)
from packer.wrong_use import no_such_choice

_SHARD_BYTES = 256 << 20
# Far above any model's context; below it, a batch of 16 rows fits the memory of any machine.
_MOST_SLOTS = 1 << 22
_BYTES_A_TOKEN = 6.14


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """What to build from what, and where. Raises UserError on values that cannot be."""

    datasets: tuple[str, ...] = ()
    mix: tuple[tuple[str, Fraction], ...] = ()
    out: Path
    split: str | None = None
    eval_split: str | None = None
    eval_file: tuple[str, ...] = ()
    eval_fraction: Fraction = Fraction(0)
    group_by: str | None = None
    config_name: str | None = None
    revision: str | None = None
    limit: int | None = None
    format: Format = "auto"
    column: str | None = None
    map: ColumnMap = ()
    empty_answers: EmptyAnswers = "drop"
    tokenizer: str = DEFAULT_TOKENIZER
    chat_template: Path | None = None
    template_date: datetime.date | None = None
    capacity: int = 8192
    max_segments: int | None = None
    align: int = 1
    strategy: Strategy = "optimal"
    train_on: TrainOn = "assistant"
    control_tokens: Policy = "split"
    reasoning: Reasoning = "template"
    template_arg: tuple[str, ...] = ()
    max_unprinted: Fraction | None = None
    overlong: Overlong = "auto"
    max_loss: Fraction = Fraction(1, 100)
    encoder: EncoderName = "auto"
    workers: int = 0
    engine: EngineName = "local"
    ray_address: str | None = None
    seed: int = 0
    shard_rows: int = 0
    token_store: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        if not self.tokenizer:
            raise UserError("--tokenizer: no name was given", f"try --tokenizer {DEFAULT_TOKENIZER}")
        if self.capacity < CAPACITY_MULTIPLE or self.capacity % CAPACITY_MULTIPLE:
            near = max(CAPACITY_MULTIPLE, round(self.capacity / CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE)
            raise UserError(
                f"--capacity {self.capacity}: must be a positive multiple of {CAPACITY_MULTIPLE}",
                f"try --capacity {near}",
            )
        if self.capacity > _MOST_SLOTS:
            raise UserError(f"--capacity {self.capacity}: more than {_MOST_SLOTS} slots a row", "try --capacity 8192")
        if self.max_segments is not None and (self.max_segments < 0 or self.max_segments == 1):
            raise UserError(
                f"--max-segments {self.max_segments}: must be auto, 0 (no cap) or at least 2",
                f"try --max-segments {SEGMENTS_MULTIPLE * 8}",
            )
        if self.align < 1 or self.capacity % self.align:
            raise UserError(
                f"--align {self.align}: must divide the capacity ({self.capacity}), so that a row ends where an example could begin",
                f"try --align {math.gcd(max(self.align, 1), self.capacity)}",
            )
        if self.shard_rows < 0 or self.shard_rows % ROWS_PER_BATCH:
            raise UserError(
                f"--shard-rows {self.shard_rows}: must be a multiple of {ROWS_PER_BATCH}",
                "leave it out for shards of about 256 MB",
            )
        if not 0 <= self.eval_fraction < 1:
            raise UserError(
                f"--eval-fraction {float(self.eval_fraction):g}: must be from 0 up to, but not including, 1",
                "try --eval-fraction 0.01",
            )
        if self.eval_fraction and (self.eval_split or self.eval_file):
            other = "--eval-split" if self.eval_split else "--eval-file"
            raise UserError(f"--eval-fraction and {other} were both given", "give one of them")
        if self.group_by is not None and not self.eval_fraction:
            raise UserError(
                f"--group-by {self.group_by}: only --eval-fraction sets groups of rows aside",
                "add --eval-fraction 0.01, or leave it out",
            )
        if not 0 <= self.max_loss <= 1:
            raise UserError(f"--max-loss {float(self.max_loss):.0%}: must be from 0% to 100%", "try --max-loss 1%")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit {self.limit}: must be at least 1", "leave it out to read everything")
        if self.workers < 0:
            raise UserError(f"--workers {self.workers}: must be 0 (a worker a core) or more", "leave it out")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must be 0 or more", "try --seed 0")
        if self.ray_address and self.engine != "ray":
            raise UserError(f"--ray-address {self.ray_address}: only --engine ray has a cluster", "add --engine ray")
        if self.max_unprinted is not None and not 0 <= self.max_unprinted <= 1:
            raise UserError(
                f"--max-unprinted {float(self.max_unprinted):.0%}: must be from 0% to 100%", "try --max-unprinted 1%"
            )
        for text in self.template_arg:
            name, equals, _ = text.partition("=")
            if not equals or not name.isidentifier():
                raise UserError(
                    f"--template-arg {text}: not a name and a value", "write --template-arg enable_thinking=false"
                )
        if self.reasoning in ("every-turn", "context") and self.train_on == "all":
            why = "trains on each turn once" if self.reasoning == "every-turn" else "does not train on reasoning"
            raise UserError(
                f"--reasoning {self.reasoning} {why}, and --train-on all trains on all that is written",
                "leave one of them out",
            )
        for name, weight in self.mix:
            if weight <= 0:
                raise UserError(
                    f"--mix {name}={float(weight):g}: the weight must be above 0",
                    "leave the source out, or write --mix NAME=0.5",
                )
        for option, value, known in (
            ("--strategy", self.strategy, get_args(Strategy)),
            ("--train-on", self.train_on, get_args(TrainOn)),
            ("--overlong", self.overlong, get_args(Overlong)),
            ("--format", self.format, get_args(Format)),
            ("--encoder", self.encoder, get_args(EncoderName)),
            ("--empty-answers", self.empty_answers, get_args(EmptyAnswers)),
            ("--control-tokens", self.control_tokens, get_args(Policy)),
            ("--reasoning", self.reasoning, get_args(Reasoning)),
            ("--engine", self.engine, get_args(EngineName)),
        ):
            if value not in known:
                raise no_such_choice(option, str(value), known)

    @property
    def sources(self) -> tuple[tuple[str, Fraction], ...]:
        """Every source by name, with the number of copies of each of its conversations."""
        return (*((name, Fraction(1)) for name in self.datasets), *self.mix)

    @property
    def rows_a_shard(self) -> int:
        """--shard-rows, or what makes a shard of about 256 MB."""
        if self.shard_rows:
            return self.shard_rows
        batches = int(_SHARD_BYTES / (self.capacity * _BYTES_A_TOKEN * ROWS_PER_BATCH))
        return max(batches, 1) * ROWS_PER_BATCH

    @property
    def worker_count(self) -> int:
        """--workers, or a process a core."""
        return self.workers or os.cpu_count() or 1

    @property
    def policies(self) -> Policies:
        """Those of the options that decide what a conversation is and what of it is learnt."""
        layout = Layout(
            format=self.format,
            column=self.column,
            map=self.map,
            empty_answers=self.empty_answers,
            group_by=self.group_by,
        )
        return Policies(
            layout=layout, train_on=self.train_on, control_tokens=self.control_tokens, reasoning=self.reasoning
        )

    @property
    def template_args(self) -> dict[str, Json]:
        """--template-arg NAME=VALUE as the template sees them: a value that is JSON is that value, any other is text."""
        args: dict[str, Json] = {}
        for text in self.template_arg:
            name, _, value = text.partition("=")
            try:
                args[name] = json.loads(value)
            except ValueError:
                args[name] = value
        return args

    def row_options(self) -> dict[str, str | int]:
        """The options that can change a row, as the manifest keeps them (integers and strings only)."""
        return {
            "column": self.column or "",
            "control_tokens": self.control_tokens,
            "empty_answers": self.empty_answers,
            "eval_fraction": str(self.eval_fraction),
            "format": self.format,
            "limit": self.limit or 0,
            "max_segments": "auto" if self.max_segments is None else self.max_segments,
            "overlong": self.overlong,
            "template_date": str(self.template_date or ""),
            "train_on": self.train_on,
            # Named only where they are not what they were before there was an option.
            **({"reasoning": self.reasoning} if self.reasoning != "template" else {}),
            **({"template_args": json.dumps(self.template_args, sort_keys=True)} if self.template_arg else {}),
            **({"group_by": self.group_by} if self.group_by is not None else {}),
            # Named only where it changes the columns of a shard.
            **({"align": self.align} if self.align > 1 else {}),
            # As JSON, since a column's name may hold any character.
            **({"map": json.dumps([f"{field}={column}" for field, column in self.map])} if self.map else {}),
        }
