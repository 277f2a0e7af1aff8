"""`trainer compare` on the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from packer.console import config_option, json_option
from packer.errors import UserError
from trainer.cli_options import DEFAULTS, hold_shards, run_options
from trainer.config import RunConfig


class Share(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A share such as 0.5% or 0.005, above 0 and below 1."""

    name = "SHARE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            self.fail(f"{text}: not a share above 0 and below 1, such as 0.5% or 0.005", param, ctx)
        return share


@click.command(short_help="Padded against packed: what it does to the loss, and to the speed.")
@run_options(
    *("shards", "eval_shards", "cache", "model", "init"),
    eval_shards="Folder with rows to evaluate on.  [default: the eval split of --shards, else rows kept back]",
    init="Start from its weights, or from random ones made with each seed.",
)
@click.option("--steps", type=click.IntRange(min=2), default=60, help="Optimiser steps of each run.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, help="Runs of each rung; fewer than 3 give no verdict.")
@run_options("seed", seed="The first seed: of the order of rows and of random weights.")
@click.option(
    "--margin",
    type=Share(),
    default="0.5%",
    help="The difference that one is ready to live with: a share of the padded held-out loss.",
)
@click.option(
    "--replicates/--no-replicates",
    default=True,
    help="Train the padded reference a second time with its examples in another order inside each step: what that alone changes.",
)
@click.option(
    "--eval-examples",
    type=click.IntRange(min=1),
    default=256,
    help="Evaluate on at most so many examples.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="In float64, with the rungs side by side: are all weights equal after every step? Status 1 where not.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    help="TOML file of another run's options: a fourth rung, packed, with those.  [default: none]",
    metavar="FILE",
)
@run_options(
    *("rows_per_step", "micro_rows", "loss_weighting", "lr", "warmup", "schedule", "weight_decay", "betas", "clip"),
    rows_per_step="Packed rows of an optimiser step; their examples are the padded rungs' step.",
    micro_rows="Packed rows of a pass; a padded batch has at most as many slots.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp32"]),
    default=DEFAULTS["dtype"],
    help="Of the computation; auto: bf16 on a GPU, fp32 on CPU.",
)
@run_options(
    *("activation_checkpointing", "kernels", "tokenizer_check"),
    activation_checkpointing="Recompute in backward, in every rung.",
    kernels="Of our layers: auto, fused or reference.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write it as one page that needs no network: curves, intervals, speeds.  [default: none]",
)
@json_option
@config_option
def compare(
    seeds: int,
    margin: float,
    replicates: bool,
    eval_examples: int,
    strict: bool,
    against: Path | None,
    html: Path | None,
    json: bool,
    **values: object,
) -> int:
    """Trains the same model from the same start on the same examples as padded batches and as packed rows, and says whether the loss moved:

    \b
      trainer compare --shards data/packed --model Qwen/Qwen3.5-0.8B --steps 60 --seeds 3
      trainer compare --shards data/packed --model Qwen/Qwen3.5-0.8B --steps 5 --strict
      trainer compare --shards data/packed --against runs/first/config.toml --json

    Status 1 where a rung's held-out loss is not equivalent to the padded reference's (--strict: where its weights are not equal).
    """
    config = RunConfig(**values)  # type: ignore[arg-type]  # click has checked each option's type
    hold_shards(config.shards)
    if seeds > 1 and config.seed > 2**63 - seeds:
        raise UserError(
            f"--seed {config.seed}: {seeds} seeds from there on do not fit 63 bits", "give a smaller --seed"
        )
    from trainer.compare.command import Options, run_compare

    chosen = Options(
        config=dataclasses.replace(config, check="off"),
        seeds=seeds,
        margin=margin,
        replicates=replicates,
        most_held_out=eval_examples,
        strict=strict,
        against=against,
        html=html,
    )
    return run_compare(chosen, as_json=json)
