"""Options that more than one command of the trainer takes: named, typed and defaulted as `RunConfig` has them.

@click.command()
@run_option("lr", float, "Peak learning rate.")
def compare(lr: float) -> int: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar, get_args

import click

from trainer import config as options
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


def run_option(
    name: str, kind: object, text: str, *, default: object = None, **more: object
) -> Callable[[_Function], _Function]:
    """An option of that name in `RunConfig`, with the default of its field unless another is given."""
    default = DEFAULTS[name] if default is None else default
    shown = (
        ",".join(map(str, default)) if isinstance(default, tuple) and default else bool(default not in (None, (), ""))
    )
    return click.option(options.option(name), name, type=kind, default=default, show_default=shown, help=text, **more)  # type: ignore[arg-type]


def choice(words: object) -> click.Choice[str]:
    """One of the words of a Literal."""
    return click.Choice(get_args(words))
