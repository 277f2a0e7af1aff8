"""What click says of a wrong use, in the voice of our own errors: what happened and where, then what to do.

    told(error)     # ("--dtype fp16: no such choice", "did you mean --dtype bf16?")

Held by tests/test_wrong_uses.py, word for word: click's own wording may change with its version.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

import click

from packer.called import nearest_option
from packer.errors import UserError


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a mistyped one most likely meant."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def no_such_choice(option: str, value: str, words: Sequence[str]) -> UserError:
    """The error for a word that is none of an option's, with the nearest, or all of them where no one word is (fp16: bf16 or fp64?)."""
    close = difflib.get_close_matches(value, words, n=2, cutoff=0.6)
    alike = [difflib.SequenceMatcher(None, value, word).ratio() for word in close]
    near = close[0] if len(set(alike)) == len(alike) > 0 else None
    return UserError(
        f"{option} {value}: no such choice",
        f"did you mean {option} {near}?" if near else f"choices: {', '.join(words)}",
    )


def told(error: click.UsageError) -> tuple[str, str]:
    """Message and hint, neither ending in a full stop."""
    path = error.ctx.command_path if error.ctx else "this command"
    see = f"see {path} --help"
    if isinstance(error, click.NoSuchOption):
        offered = _options(error.ctx)
        refused = {name: option for option in _options(error.ctx, hidden=True) for name in option.opts}
        # What --help does not show is refused, and its help says why: --no-packing and --tensor-parallel-size are answered as well.
        near = next((name for name in refused if name.lstrip("-") in error.option_name), None) or nearest_option(
            error.option_name, [name for o in offered for name in (*o.opts, *o.secondary_opts)] + list(refused)
        )
        if near in refused:
            return f"{path}: no option {error.option_name}", f"nor is there {near}: {refused[near].help}"
        return f"{path}: no option {error.option_name}", f"did you mean {near}?" if near else see
    if isinstance(error, click.BadOptionUsage):
        if "not take" in error.message:
            return f"{error.option_name}: takes no value", f"write {error.option_name} alone"
        return f"{error.option_name}: no value was given", f"write one behind it, or leave {error.option_name} out"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{path}: no {_name(error.param, error.ctx)} was given", f"`{path} --help` has an example"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return _bad_value(error.param, _name(error.param, error.ctx), error.message, see)
    if found := re.match(r"Got unexpected extra arguments? \((.*)\)", error.message):
        return f"{path}: takes no further argument: {found.group(1)}", see
    return f"{path}: {_without_stop(error.format_message())}", see


def _options(ctx: click.Context | None, *, hidden: bool = False) -> list[click.Option]:
    params = ctx.command.get_params(ctx) if ctx else []
    return [param for param in params if isinstance(param, click.Option) and param.hidden == hidden]


def _name(param: click.Parameter, ctx: click.Context | None) -> str:
    """As it is typed: "--out", not "-o"; an argument as the help calls it."""
    if isinstance(param, click.Argument):
        return (param.name or "argument").upper() if ctx is None else param.make_metavar(ctx).strip("[].")
    return max(param.opts, key=len)


def _bad_value(param: click.Parameter, name: str, message: str, see: str) -> tuple[str, str]:
    kind = param.type
    default = param.default if isinstance(param.default, int | float) else None
    found = re.match(r"'?(.*?)'?(?: is not |: )", message, re.DOTALL)
    value = found.group(1) if found else ""
    if isinstance(kind, click.Choice):
        error = no_such_choice(name, value, [str(word) for word in kind.choices])
        return error.message, error.hint
    if isinstance(kind, click.IntRange) and "range" in message:
        return f"{name} {value}: must be at least {kind.min}", f"try {name} {default or kind.min}"
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        what = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
        return f"{name} {value}: not {what}", f"give {what}" if default is None else f"try {name} {default}"
    if isinstance(kind, click.Path) and (folder := re.match(r"File '(.*)' is a directory", message, re.DOTALL)):
        return f"{name} {folder.group(1)}: a folder, not a file", "name a file"
    if isinstance(kind, click.types.BoolParamType):
        return f"{name} {value}: not true or false", f"write {name} alone, or leave it out"
    return f"{name} {value}: {_without_stop(message[found.end() :] if found else message)}", see


def _without_stop(text: str) -> str:
    return text.rstrip().rstrip(".")
