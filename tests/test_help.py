"""Every command of both programs: its help has an example that its own parser takes, a text for every option, and every default."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator

import click
import pytest

from packer.cli import main as packer_main
from trainer.cli import main as trainer_main

PROGRAMS = {"packer": packer_main, "trainer": trainer_main}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by how it is called, the programs themselves among them."""

    def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield from walk(f"{path} {name}", inner)

    for name, program in PROGRAMS.items():
        yield from walk(name, program)


def examples(command: click.Command) -> list[list[str]]:
    """The command lines in a help text, without what launches them and what reads their output."""
    lines = (command.help or "").replace("\\\n", " ").splitlines()
    found = []
    for line in map(str.strip, lines):
        words = shlex.split(line) if line.startswith(("packer ", "trainer ", "torchrun ")) else []
        if words and words[0] == "torchrun":
            words = words[words.index("-m") + 1 :]
        if words and words[1] in PROGRAMS[words[0]].commands:
            found.append(list(itertools.takewhile(lambda word: word not in ("|", ">"), words)))
    return found


def options(command: click.Command) -> list[click.Option]:
    context = click.Context(command)
    return [param for param in command.get_params(context) if isinstance(param, click.Option) and not param.hidden]


ALL = pytest.mark.parametrize("command", [pytest.param(command, id=path) for path, command in commands()])


@pytest.mark.parametrize(("path", "command"), [pytest.param(*both, id=both[0]) for both in commands()])
def test_the_help_has_an_example_that_parses(path: str, command: click.Command) -> None:
    found = examples(command)
    assert any(" ".join(words).startswith(path) for words in found), "no example of the command itself"
    for program, name, *rest in found:
        parent = PROGRAMS[program].make_context(program, [name])
        PROGRAMS[program].commands[name].make_context(name, rest, parent=parent)


@ALL
def test_every_option_has_a_text(command: click.Command) -> None:
    for option in options(command):
        assert option.help, option.opts
        assert option.help.rstrip().endswith((".", "]")), (option.opts, option.help)
    assert command.help
    assert command.get_short_help_str(limit=200), "nothing to list it by"


@ALL
def test_every_default_is_shown(command: click.Command) -> None:
    context = click.Context(command, show_default=True)
    for option in options(command):
        is_switch = option.is_flag and not option.secondary_opts  # off, if it is not given
        if option.required or option.multiple or is_switch or not option.expose_value:
            continue
        shown = option.get_help_record(context)
        assert shown is not None
        assert "default: " in shown[1], f"{option.opts}: {shown[1]}"


@ALL
def test_no_line_is_wider_than_the_terminals_that_are_common(command: click.Command) -> None:
    context = click.Context(command, info_name="packer", max_content_width=100, terminal_width=80)
    assert all(len(line) <= 100 for line in command.get_help(context).splitlines())


@ALL
def test_an_option_is_called_in_files_and_variables_what_it_is_called_on_the_command_line(
    command: click.Command,
) -> None:
    # --config knows an option, and click its variable (TRAINER_COMPARE_EVAL_EXAMPLES), by the name of its parameter.
    for option in options(command):
        assert not option.expose_value or option.name in {typed.lstrip("-").replace("-", "_") for typed in option.opts}
