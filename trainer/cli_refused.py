"""What trainers elsewhere have and this one does not, refused by its name: in the command line and in a configuration file, before anything is read.

@main.command()
@refuses_what_is_not_there
def run(...): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from packer.errors import UserError

_Function = TypeVar("_Function", bound=Callable[..., object])
_LONG = "for long rows: --activation-checkpointing full, more ranks, --cpu-offload; or build the shards with a smaller --capacity"
_LARGE = "for a large model: more ranks (each holds its share of weights, gradients and optimiser), --cpu-offload"
# Option: why not, and what there is instead.
_REFUSED = {
    "--context-parallel": ("a row would be cut over ranks, and the boundaries of its examples be lost", _LONG),
    "--sequence-parallel": ("a row would be cut over ranks, and the boundaries of its examples be lost", _LONG),
    "--tensor-parallel": ("each layer would be cut over ranks, and its kernels are not told how", _LARGE),
    "--pipeline-parallel": ("layers would lie on other ranks, which the boundaries of examples do not reach", _LARGE),
    "--lora": ("all weights of the model are trained", _LARGE),
    "--packing": ("rows are packed when they are built, always", "`packer stats` says how full they are"),
}


def _refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    del ctx
    if value is not None:
        why, instead = _REFUSED[param.opts[0]]
        raise UserError(f"{param.opts[0]}: there is no such thing here: {why}", instead)


def refuses_what_is_not_there(function: _Function) -> _Function:
    """Adds the options that are refused, with a value or without; --help does not show them."""
    for name in reversed(_REFUSED):
        function = click.option(
            name,
            hidden=True,
            expose_value=False,
            is_flag=False,
            flag_value="",
            default=None,
            callback=_refuse,
            help="; ".join(_REFUSED[name]),
        )(function)
    return function
