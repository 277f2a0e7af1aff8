"""What the two command lines share: errors as two lines, near-miss suggestions, TOML configuration files.

    @click.group(cls=Commands, context_settings=context_settings("PACKER"))
    def main() -> None: ...

Precedence of an option: command line > environment (`PACKER_BUILD_CAPACITY`) > `--config FILE` > default. Only click is imported here: `--help`
must answer at once.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import click

from packer.called import nearest_option
from packer.errors import GateError, UserError
from packer.unheard import Unheard
from packer.wrong_use import nearest, told

_Function = TypeVar("_Function", bound=Callable[..., object])
TomlValue = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]
# How a command is called, not what it makes.
_NOT_OF_A_FILE = ("dry_run", "quiet", "verbose")
EXIT_NO = 1
EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 130


def context_settings(prefix: str) -> dict[str, object]:
    """click's settings for a root command whose options may stand in variables that start with `prefix`."""
    return {
        "auto_envvar_prefix": prefix,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    }


def printable(text: str) -> str:
    """Text from data or from elsewhere, safe on a terminal: control, format and surrogate characters are written as escapes."""
    return "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf", "Cs")
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def _fail(message: str, hint: str, status: int) -> NoReturn:
    click.echo(f"error: {printable(message)}\nhint: {printable(hint)}", err=True)
    sys.exit(status)


class Commands(click.Group):
    """A group whose wrong use ends in two lines and status 2, with the nearest command or option named."""

    def main(  # type: ignore[override]  # click overloads on the value of standalone_mode
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: object,
    ) -> object:
        """Runs the command line; `standalone_mode=False`, as click has it, raises instead of ending the process."""
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        if sys.stderr is not None and not isinstance(sys.stderr, Unheard):
            sys.stderr = Unheard(sys.stderr)
        try:
            status: object = run()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(0)
        except click.UsageError as error:
            _fail(*told(error), EXIT_WRONG_USE)
        except click.ClickException as error:
            _fail(error.format_message().rstrip("."), "see --help", EXIT_WRONG_USE)
        except GateError as error:
            _fail(error.message, error.hint, EXIT_NO)
        except UserError as error:
            _fail(error.message, error.hint, EXIT_WRONG_USE)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            # The reader (head, less) has seen enough. Python would complain once more when it flushes at exit.
            sys.stdout = None
            sys.exit(0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EIO):
                raise
            sys.stdout = None
            _fail(
                f"the output cannot be written ({error.strerror})",
                "free some space, or send it elsewhere",
                EXIT_WRONG_USE,
            )
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # click ends with status 1 where it sees the error's number; `main` says what a closed pipe means here.
            raise BrokenPipeError from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            near = nearest(name, self.list_commands(ctx))
            raise UserError(
                f"{ctx.command_path}: no command {name!r}",
                f"did you mean {ctx.command_path} {near}?"
                if near
                else f"commands: {', '.join(self.list_commands(ctx))}",
            )
        found = super().resolve_command(ctx, args)
        if found[1] is not None and not ctx.resilient_parsing and not {"--help", "-h"} & set(args):
            refuse_unknown_variables(os.environ, f"{ctx.auto_envvar_prefix}_{name.upper()}_", found[1])
        return found


# A Kubernetes service called packer-build or trainer-run puts such variables into every container of its namespace.
_OF_A_SERVICE = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?")


def refuse_unknown_variables(environment: Mapping[str, str], prefix: str, command: click.Command) -> None:
    """Raises UserError for a variable with a command's prefix that stands for none of its options: it would change nothing, in silence."""
    known = {str(param.name).upper(): param for param in command.params if isinstance(param, click.Option)}
    for variable in sorted(environment):
        name = variable.removeprefix(prefix)
        if name == variable or name in (*known, "HELP") or _OF_A_SERVICE.fullmatch(name):
            continue
        near = nearest_option(name, known)
        raise UserError(
            f"{variable} is set in the environment: no option has that name",
            f"did you mean {prefix}{near}?" if near else "unset it, or name one of the options that --help lists",
        )


def cache_option(function: _Function) -> _Function:
    """Adds `--cache DIR`: where what is fetched from an address is kept."""
    return click.option(
        "--cache",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="PACKER_CACHE",
        show_envvar=True,
        help="Folder for what is fetched from an address such as s3://bucket/packed.  [default: ~/.cache/packer]",
    )(function)


def json_option(function: _Function) -> _Function:
    """Adds `--json`, of every command that reports."""
    return click.option(
        "--json", is_flag=True, help="One JSON document on standard output, all else on standard error."
    )(function)


def voice_options(function: _Function) -> _Function:
    """Adds `-q/--quiet` and `-v/--verbose`, of which one may be given; errors are told either way."""
    for flags, text in (
        (("-v", "--verbose"), "More about what is done, on standard error."),
        (("-q", "--quiet"), "No progress and no report; the status says how it went."),
    ):
        function = click.option(*flags, is_flag=True, callback=_not_both, help=text)(function)
    return function


def _not_both(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value and ctx.params.get("quiet" if param.name == "verbose" else "verbose"):
        raise UserError("--quiet and --verbose were both given", "give one of them")
    return value


def config_option(function: _Function) -> _Function:
    """Adds `--config FILE`: a TOML file whose keys are the command's option names."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_load_config,
        help="TOML file with any of these options (command line > environment > file > default).",
    )(function)


def _load_config(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror})", "give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"--config {path}: not TOML ({error})", "write one `key = value` a line, strings in quotes"
        ) from None
    known = {param.name: param for param in ctx.command.params if param.name not in (None, "config", "help", "dry_run")}
    values: dict[str, object] = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if isinstance(value, dict):
            raise UserError(
                f"--config {path}: unknown section [{key}]",
                "write the options at the top level of the file, without sections",
            )
        if name not in known:
            raise UserError(f"--config {path}: unknown key {key!r}", _hint_for_key(name, known.values()))
        if _is_hidden(known[name]):
            values[name] = str(value).lower()  # refused whatever it is, by the option itself
            continue
        _check_type(f"--config {path}: {key}", value, known[name])
        takes_one = not known[name].multiple and known[name].nargs == 1
        if isinstance(value, list):
            values[name] = ",".join(map(str, value)) if takes_one else value
        else:
            values[name] = value if isinstance(value, bool | int | float) else str(value)
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _hint_for_key(name: str, params: Iterable[click.Parameter]) -> str:
    options = {str(param.name): param for param in params if isinstance(param, click.Option)}
    near = nearest_option(name, options)
    if near is None:
        return f"keys: {', '.join(option for option, param in options.items() if not param.hidden)}"
    return f"nor is there {near}: {options[near].help}" if options[near].hidden else f"did you mean {near}?"


def _is_hidden(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.hidden


def _check_type(what: str, value: object, param: click.Parameter) -> None:
    """Raises UserError where a TOML value is not of its option's kind; click would make 1 of true, and 2 of 2.7."""
    key = what.rpartition(": ")[2]
    kinds: tuple[type, ...]
    if isinstance(param, click.Option) and param.is_flag:
        kinds, wanted, hint = (bool,), "true or false", f"write {key} = true, without quotes"
    elif isinstance(param.type, click.types.IntParamType):
        kinds, wanted, hint = (int,), "a whole number", f"write {key} = 1 or another, without quotes"
    elif isinstance(param.type, click.types.FloatParamType):
        kinds, wanted, hint = (int, float), "a number", f"write {key} = 0.5 or another, without quotes"
    else:
        kinds, wanted, hint = (str, int, float, list), "text", f'write {key} = "…", in quotes'
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        raise UserError(f"{what} = {shown}: not {wanted}", hint)


def resolved_toml(ctx: click.Context) -> str:
    """Arguments and options of a command as they were resolved, in the order of its help, as a TOML file that `--config` reads back."""
    names = [str(param.name) for param in ctx.command.params if param.expose_value]
    values = {name: ctx.params[name] for name in names if name not in _NOT_OF_A_FILE}
    return to_toml({name: str(value) if isinstance(value, Path) else value for name, value in values.items()})


def to_toml(values: Mapping[str, TomlValue | None]) -> str:
    """Options as a TOML file that `--config` reads back; those without a value are left out."""

    def literal(value: TomlValue) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return repr(value)
        if isinstance(value, str):
            # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return f"[{', '.join(literal(item) for item in value)}]"

    return "".join(f"{name} = {literal(value)}\n" for name, value in values.items() if value is not None)
