"""The options of `trainer run`, once: kind, text and completion, for every command that takes one of them, with the default that `RunConfig` has.

    @click.command()
    @run_options("shards", "model", "seed", seed="Of random weights.")
    def check(shards: str, model: str | None, seed: int) -> None: ...

Only click is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TypeVar, get_args

import click

from packer.completion import folders
from packer.errors import UserError
from trainer import config
from trainer.config import RunConfig

_Function = TypeVar("_Function", bound=Callable[..., object])
DEFAULTS = {field.name: field.default for field in fields(RunConfig)}


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Numbers with commas between them: "0.9,0.95"."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind
        self.name = "N,N,…"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | float, ...]:
        if isinstance(value, tuple | list):
            return tuple(value)
        try:
            return tuple(self.kind(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r}: not numbers with commas between them", param, ctx)


def choice(words: object) -> click.Choice[str]:
    """One of the words of a Literal."""
    return click.Choice(get_args(words))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Option:
    """kind: click's type of the value; bool is a switch with its --no- beside it. folder: a shell offers folders. variable: of the environment."""

    kind: object
    text: str
    folder: bool = False
    repeatable: bool = False
    metavar: str | None = None
    variable: str | None = None


_OPTIONS = {
    "shards": _Option(
        kind=str, folder=True, text="Folder that `packer build` wrote, or its address: s3://bucket/packed."
    ),
    "eval_shards": _Option(
        kind=str,
        folder=True,
        text="Folder with rows to evaluate on.  [default: the eval split of --shards, if it has one]",
    ),
    "cache": _Option(
        kind=str,
        folder=True,
        variable="PACKER_CACHE",
        text="Folder for what is fetched from an address.  [default: ~/.cache/packer]",
    ),
    "model": _Option(
        kind=str,
        folder=True,
        text="Hub name or folder of the model.  [default: the one whose tokenizer made the shards]",
    ),
    "init": _Option(kind=choice(config.Init), text="Start from its weights, or from random ones made with --seed."),
    "steps": _Option(kind=int, text="Optimiser steps.  [default: as many as --epochs takes]"),
    "epochs": _Option(kind=int, text="Times through the rows.  [default: 1, unless --steps]"),
    "rows_per_step": _Option(kind=int, text="Rows of an optimiser step, over all ranks."),
    "micro_rows": _Option(kind=int, text="Rows a rank computes in one pass."),
    "balance": _Option(
        kind=choice(config.Balance),
        text="batch: sort a step's rows by attention cost, so that ranks work on like rows; window: make each step of like rows, out of 16 steps; off: stream order.",
    ),
    "skip_rows": _Option(
        kind=Numbers(int),
        text="Rows that keep their place but are neither trained on nor computed: 17,1204.  [default: none]",
    ),
    "loss_weighting": _Option(
        kind=choice(config.LossWeighting),
        text="What a step minimises. token: the sum of cross-entropy over its targets ÷ their number. example: the mean over its examples of the mean over "
        "each one's targets, so that a long answer weighs no more than a short one. Weights that the rows give to targets multiply either.",
    ),
    "router_aux_loss": _Option(
        kind=float,
        text="Of a mixture of experts: this coefficient times how unevenly its tokens (no pads) are spread over the experts is minimised too; 0: not.",
    ),
    "lr": _Option(
        kind=float, text="Peak learning rate. The default suits a pretrained model; random weights want 1e-3 or so."
    ),
    "warmup": _Option(kind=str, text="Steps of linear warm-up (100), or a share of the run (0.03)."),
    "schedule": _Option(
        kind=choice(config.Schedule),
        text="After warm-up, down to 0 at the end; wsd: constant, then linear over the last fifth.",
    ),
    "weight_decay": _Option(kind=float, text="Of matrices; biases, norms, gates and short convolutions have none."),
    "betas": _Option(kind=Numbers(float), text="AdamW's two."),
    "clip": _Option(kind=float, text="Largest norm of the whole gradient; 0: no clipping."),
    "non_finite": _Option(
        kind=choice(config.NonFinite),
        text="After a step whose gradient is not finite, which updates nothing. stop: the run ends at the next line of metrics, naming step and rows; skip: "
        "it goes on, counting them.",
    ),
    "dtype": _Option(
        kind=choice(config.Dtype),
        text="Of the computation; auto: bf16 on a GPU, fp32 on CPU. Master weights and optimiser are fp32, always, but with fp64, which is for checks: all "
        "is float64 then.",
    ),
    "activation_checkpointing": _Option(
        kind=choice(config.Checkpointing),
        text="Recompute in backward: nothing, all but matrix products and attention, or all. With --compile none is selective: the compiler sees to it.",
    ),
    "compile": _Option(
        kind=bool, text="Compile each block (torch.compile), all but its kernels: minutes at the start, faster steps."
    ),
    "reduce": _Option(
        kind=choice(config.Reduce),
        text="Sum gradients over ranks after each pass, or once a step (holds 4 bytes for every parameter on every rank).",
    ),
    "replicas": _Option(kind=int, text="Whole copies of the model (HSDP): each is sharded over ranks ÷ N neighbours."),
    "cpu_offload": _Option(
        kind=bool,
        text="Keep master weights and optimiser in the host's memory, and update there: less of the GPU's memory, slower steps.",
    ),
    "kernels": _Option(
        kind=choice(config.Kernels), text="auto: fused on a GPU (a missing package is an error), reference on CPU."
    ),
    "check": _Option(
        kind=choice(config.Check),
        text="Before the first step: prove what `trainer check` does, isolation alone, or nothing. A stored proof that still holds is taken.",
    ),
    "eval_every": _Option(
        kind=int,
        text="Evaluate every N steps and at the end; 0: never.  [default: at the end, where there are eval rows]",
    ),
    "save_every": _Option(kind=int, text="Checkpoint every N steps, besides at the end and on Ctrl-C; 0: only then."),
    "keep": _Option(kind=int, text="Keep the newest N checkpoints; 0: all."),
    "log_every": _Option(kind=int, text="A line of metrics every N steps."),
    "out": _Option(
        kind=str, folder=True, text="The run's folder.  [default: runs/NAME, the name of the shards' folder]"
    ),
    "tracker": _Option(
        kind=choice(config.Tracker),
        repeatable=True,
        text="Also tell this tracker the numbers of metrics.jsonl (repeatable): tensorboard writes into the run's folder. One that fails does not end the run.",
    ),
    "tracker_project": _Option(
        kind=str, text="The project of trackio and wandb.  [default: trainer for trackio; wandb's own]"
    ),
    "resume": _Option(
        kind=str,
        folder=True,
        metavar="auto|never|DIR",
        text="auto: go on from the run folder's newest checkpoint; never; or a run's or checkpoint's folder.",
    ),
    "seed": _Option(kind=int, text="Of the order of rows and of random weights."),
    "tokenizer_check": _Option(
        kind=bool, text="Refuse a model whose tokenizer.json is not the one that made the shards."
    ),
}


def run_options(*names: str, **texts: str) -> Callable[[_Function], _Function]:
    """Adds options of `run` to a command, in this order. texts: by name, what its help says here instead."""

    def add(function: _Function) -> _Function:
        for name in reversed(names):
            function = _added(name, texts.get(name, _OPTIONS[name].text))(function)
        return function

    return add


def _added(name: str, text: str) -> Callable[[_Function], _Function]:
    option, default, typed = _OPTIONS[name], DEFAULTS[name], config.option(name)
    if option.kind is bool:
        return click.option(f"{typed}/--no-{typed[2:]}", name, default=default, help=text)
    more: dict[str, object] = {"required": True} if default is MISSING else {"default": default}
    if isinstance(default, tuple) and default:
        more["show_default"] = ",".join(map(str, default))
    elif default in (None, (), "", MISSING):
        more["show_default"] = False
    return click.option(
        typed,
        name,
        type=option.kind,
        multiple=option.repeatable,
        metavar=option.metavar,
        shell_complete=folders if option.folder else None,
        envvar=option.variable,
        show_envvar=option.variable is not None,
        help=text,
        **more,  # type: ignore[arg-type]  # click's own words
    )


def hold_run(folder: Path) -> None:
    """Refuses a run's folder that is not there, before anything heavy is imported."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", "give a run's folder, the --out of `trainer run`")


def hold_shards(folder: str | None) -> None:
    """Refuses a folder that holds no shards likewise; an address is looked at later."""
    if folder is not None and "://" not in folder:
        from packer.manifest import load_manifest

        load_manifest(Path(folder))
