"""Options that several commands take, each with the default that `RunConfig` has. Only click is imported.

@click.command()
@option("rows_per_step", int, "Rows of an optimiser step, over all ranks.")
def run(...): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TypeVar, get_args

import click

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


def option(name: str, kind: object, text: str, **more: object) -> Callable[[_Function], _Function]:
    """An option of `run` with the default of `RunConfig`, for any command that takes it."""
    default = DEFAULTS[name]
    shown = (
        ",".join(map(str, default)) if isinstance(default, tuple) and default else bool(default not in (None, (), ""))
    )
    return click.option(config.option(name), name, type=kind, default=default, show_default=shown, help=text, **more)  # type: ignore[arg-type]


def choice(words: object) -> click.Choice[str]:
    """One of the words of a Literal."""
    return click.Choice(get_args(words))


tokenizer_check = click.option(
    "--tokenizer-check/--no-tokenizer-check",
    "tokenizer_check",
    default=DEFAULTS["tokenizer_check"],
    help="Refuse a model whose tokenizer.json is not the one that made the shards.",
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
