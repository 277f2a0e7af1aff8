"""`trainer compare` on the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from packer.completion import folders
from packer.console import config_option
from packer.errors import UserError
from trainer import config as options
from trainer.cli_options import Numbers, choice, hold_shards, option, tokenizer_check
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
@click.option("--shards", required=True, shell_complete=folders, help="Folder that `packer build` wrote.")
@option(
    "eval_shards",
    str,
    "Folder with rows to evaluate on.  [default: the eval split of --shards, else rows kept back]",
    shell_complete=folders,
)
@option("cache", str, "Folder for what is fetched from an address.  [default: ~/.cache/packer]", shell_complete=folders)
@option(
    "model",
    str,
    "Hub name or folder of the model.  [default: the one whose tokenizer made the shards]",
    shell_complete=folders,
)
@option("init", choice(options.Init), "Its weights, or random ones made with each seed.")
@click.option("--steps", type=click.IntRange(min=2), default=60, help="Optimiser steps of each run.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, help="Runs of each rung; fewer than 3 give no verdict.")
@option("seed", int, "The first seed: of the order of rows and of random weights.")
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
    "most_held_out",
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
@option("rows_per_step", int, "Packed rows of an optimiser step; their examples are the padded rungs' step.")
@option("micro_rows", int, "Packed rows of a pass; a padded batch has at most as many slots.")
@option("loss_weighting", choice(options.LossWeighting), "What a step minimises, as in `trainer run`.")
@option("lr", float, "Peak learning rate. The default suits a pretrained model; random weights want 1e-3 or so.")
@option("warmup", str, "Steps of linear warm-up (100), or a share of the run (0.03).")
@option("schedule", choice(options.Schedule), "After warm-up.")
@option("weight_decay", float, "Of matrices.")
@option("betas", Numbers(float), "AdamW's two.")
@option("clip", float, "Largest norm of the whole gradient; 0: no clipping.")
@option("dtype", click.Choice(["auto", "bf16", "fp32"]), "Of the computation; auto: bf16 on a GPU, fp32 on CPU.")
@option("activation_checkpointing", choice(options.Checkpointing), "Recompute in backward, in every rung.")
@option("kernels", choice(options.Kernels), "Of our layers: auto, fused or reference.")
@tokenizer_check
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write it as one page that needs no network: curves, intervals, speeds.  [default: none]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, all else on standard error."
)
@config_option
def compare(
    seeds: int,
    margin: float,
    replicates: bool,
    most_held_out: int,
    strict: bool,
    against: Path | None,
    html: Path | None,
    as_json: bool,
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
        most_held_out=most_held_out,
        strict=strict,
        against=against,
        html=html,
    )
    return run_compare(chosen, as_json=as_json)
