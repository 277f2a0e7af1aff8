"""Shell completion of both programs: words where an option has words, paths where it takes one, nothing heavy imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from packer.cli import main as packer_main
from tests.support import ROOT
from trainer.cli import main as trainer_main

PROGRAMS = {"packer": packer_main, "trainer": trainer_main}
SHELLS = ("bash", "zsh", "fish")


def offered(shell: str, line: str) -> list[tuple[str, str]]:
    """(kind, value) of what a shell is offered at the end of a command line."""
    program, *words = line.split(" ")
    complete = get_completion_class(shell)
    assert complete is not None
    items = complete(PROGRAMS[program], {}, program, f"_{program.upper()}_COMPLETE").get_completions(
        words[:-1], words[-1]
    )
    return [(item.type, item.value) for item in items]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("packer re", [("plain", "repack")]),
        ("packer build --str", [("plain", "--strategy")]),
        ("packer build --strategy ", [("plain", word) for word in ("optimal", "bfd", "ffd", "sequential")]),
        ("packer build --train-on l", [("plain", "last")]),
        ("packer build --overlong=s", [("plain", "split")]),
        ("packer repack packed --strategy b", [("plain", "bfd")]),
        ("packer build cha", [("file", "cha")]),
        ("packer build --chat-template t", [("file", "t")]),
        ("packer build -o d", [("dir", "d")]),
        ("packer build --config b", [("file", "b")]),
        ("packer stats d", [("dir", "d")]),
        ("packer inspect packed --split ", [("plain", "train"), ("plain", "eval")]),
        ("packer nothing re", [("plain", "repack")]),
        ("trainer run --schedule c", [("plain", "cosine"), ("plain", "constant")]),
        ("trainer run --no-com", [("plain", "--no-compile")]),
        ("trainer run --shards d", [("dir", "d")]),
        ("trainer run --model m", [("dir", "m")]),
        ("trainer run --config nowhere.toml --dtype f", [("plain", "fp32"), ("plain", "fp64")]),
        ("trainer export r", [("dir", "r")]),
        ("trainer check --kernels fu", [("plain", "fused")]),
    ],
)
def test_what_is_offered(shell: str, line: str, expected: list[tuple[str, str]]) -> None:
    assert offered(shell, line) == expected


def test_every_path_and_every_choice_is_offered() -> None:
    """An option that a person would complete and cannot is found by its words: FILE, folder, address."""
    silent = []
    for program in PROGRAMS.values():
        for command in program.commands.values():
            for param in command.params:
                items = param.shell_complete(click.Context(command), "")
                text = getattr(param, "help", "") or ""
                if (
                    text.lower().startswith(("folder", "hub name or folder", "a run's folder", "the run's folder"))
                    and not items
                ):
                    silent.append((command.name, param.name))
                if isinstance(param.type, click.Choice):
                    assert [item.value for item in items] == list(param.type.choices)
    assert silent == []


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_each_shell_is_printed(program: str, shell: str) -> None:
    variable = f"_{program.upper()}_COMPLETE"
    result = CliRunner().invoke(PROGRAMS[program], [], prog_name=program, env={variable: f"{shell}_source"})
    assert result.exit_code == 0, result.stderr
    assert f"{variable}={shell}_complete" in result.stdout
    asked = {variable: f"{shell}_complete", "COMP_WORDS": f"{program} ", "COMP_CWORD": "1" if shell != "fish" else ""}
    answer = CliRunner().invoke(PROGRAMS[program], [], prog_name=program, env=asked)
    assert answer.exit_code == 0, answer.stderr
    assert ("build" if program == "packer" else "export") in answer.stdout


@pytest.mark.parametrize(
    ("program", "line"), [("packer", "packer build --strategy "), ("trainer", "trainer run --shards packed --dtype ")]
)
def test_nothing_heavy_is_imported_for_it(program: str, line: str) -> None:
    code = (
        f"import sys\nfrom {program}.cli import main\n"
        f"try:\n    main([], prog_name={program!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pyarrow', 'transformers', 'torch', 'datasets', 'tokenizers', 'rich', 'jinja2'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    env = {
        **os.environ,
        f"_{program.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    *words, imported = run.stdout.splitlines()
    assert imported == "[]"
    assert words[0] == ("plain,optimal" if program == "packer" else "plain,auto")


def test_bash_itself_completes(tmp_path: Path) -> None:
    shim = tmp_path / "packer"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m packer "$@"\n')
    shim.chmod(0o755)
    script = (
        'eval "$(_PACKER_COMPLETE=bash_source packer)"\n'
        "COMP_WORDS=(packer build --strategy o) COMP_CWORD=3\n_packer_completion packer\n"
        'echo "${COMPREPLY[@]}"\ncomplete -p packer'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[0] == "optimal"
    assert "_packer_completion packer" in run.stdout.splitlines()[1]
