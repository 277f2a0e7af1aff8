"""What the documents show is what there is: every command line in them is one that its parser takes, every option that they name exists, every file
that they link to is there, and a step of a run looks as they show it.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from packer.cli import main as packer_main
from tests.support import ROOT
from trainer.cli import main as trainer_main
from trainer.metrics import StepMetrics, step_line

DOCUMENTS = sorted([*ROOT.glob("*.md"), ROOT / "packer" / "FORMAT.md", ROOT / "trainer" / "kernels" / "README.md"])
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS: dict[str, click.Group] = {"packer": packer_main, "trainer": trainer_main}


def blocks(text: str) -> Iterator[str]:
    """What stands between fences."""
    return (found.group(1) for found in re.finditer(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def command_lines() -> list[list[str]]:
    """The words of each command in the README's blocks, without what launches it, what reads its output, and the remark behind it."""
    found = []
    for line in "".join(blocks(README)).replace("\\\n", " ").splitlines():
        if re.match(r"(\$ )?(packer|trainer|torchrun) ", line):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[0] == "torchrun":
                words = words[words.index("-m") + 1 :]
            found.append(list(itertools.takewhile(lambda word: word not in ("|", ">"), words)))
    return found


def test_the_readme_shows_every_command() -> None:
    shown = {tuple(words[:2]) for words in command_lines()}
    assert shown >= {(program, name) for program, group in PROGRAMS.items() for name in group.commands}


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in command_lines()])
def test_a_command_of_the_readme_is_one(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, name, *rest = words
    parent = PROGRAMS[program].make_context(program, [name])
    PROGRAMS[program].commands[name].make_context(name, rest, parent=parent)


def test_every_option_that_the_readme_names_exists() -> None:
    known = {
        option
        for group in PROGRAMS.values()
        for command in (group, *group.commands.values())
        for param in command.get_params(click.Context(command))
        for option in (*param.opts, *param.secondary_opts)
    }
    # Of git, pip, torchrun and ourselves in one breath.
    others = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint"}
    named = set(re.findall(r"`(--[a-z][a-z-]+)", README)) | set(
        re.findall(r"\s(--[a-z][a-z-]+)", "".join(blocks(README)))
    )
    assert named - known - others == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_links_to_is_there(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def shape(line: str) -> str:
    """A line with every number, of whatever length, as one sign."""
    return re.sub(r"[\d.,:]*\d(e[+-]?\d+)?", "#", " ".join(line.split()))


def test_a_step_looks_as_the_readme_shows_it() -> None:
    shown = [line for line in "".join(blocks(README)).splitlines() if re.match(r"step +\d+/40  loss", line)]
    values = {field.name: 1 for field in fields(StepMetrics)}
    values |= {
        "step": 7,
        "loss": 8.3281,
        "lr": 1.5e-3,
        "grad_norm": 1.956,
        "useful_tokens_per_s": 4057.0,
        "step_s": 2.0,
    }
    optional = {field.name: None for field in fields(StepMetrics) if "None" in str(field.type)}
    assert {shape(line) for line in shown} == {shape(step_line(StepMetrics(**values | optional), steps=40))}  # type: ignore[arg-type]
