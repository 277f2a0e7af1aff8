"""`--engine ray` on a real Ray of several worker processes on this machine: the bytes of `local`, also when workers or the driver are killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from tests.packer.test_build import SAMPLE_ROWS, config, content
from tests.support import ROOT, TINY, write_jsonl

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the ray extra is not installed")
PART_ROWS = 80


def driver(folder: Path, data: Path, *, before: str = "") -> list[str]:
    """A command that builds with small parts and shards; `before`: more lines of it."""
    code = f"""
import packer.parts
packer.parts._PART_ROWS = {PART_ROWS}
{before}
from packer.cli import main
main(["build", {str(data)!r}, "--tokenizer", {str(TINY)!r}, "--capacity", "512", "--overlong", "split", "--shard-rows", "64", "--eval-fraction", "1/10",
      "--engine", "ray", "--workers", "2", "-o", {str(folder)!r}])
"""
    (folder.parent / "driver.py").write_text(code, encoding="utf-8")
    return [sys.executable, str(folder.parent / "driver.py")]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=900)


def local(folder: Path, data: Path) -> dict[str, str]:
    from fractions import Fraction

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.parts._PART_ROWS", PART_ROWS)
        packer.build(config(folder, data, capacity=512, overlong="split", shard_rows=64, eval_fraction=Fraction(1, 10)))
    return content(folder)


def test_a_build_on_ray_has_the_bytes_of_a_local_one_and_says_nothing_of_its_own(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS)
    done = run(driver(tmp_path / "ray", data))
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "ray") == local(tmp_path / "local", data)
    assert json.loads((tmp_path / "ray" / "build-log.json").read_text())["engine"] == "ray"
    told = [line for line in done.stderr.splitlines() if not line.startswith(("tokenize:", "write "))]
    assert told == [], "progress and nothing else"


def test_without_ray_the_answer_is_two_lines(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS[:5])
    done = run(driver(tmp_path / "packed", data, before="import sys\nsys.modules['ray'] = None"))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: --engine ray: Ray is not installed",
        "hint: pip install 'packer-trainer[ray]', or take --engine local",
    ]
    assert not (tmp_path / "packed").exists()


def test_an_address_without_ray_is_refused() -> None:
    with pytest.raises(UserError, match="only --engine ray has a cluster"):
        BuildConfig(out=Path("x"), ray_address="10.0.0.1:6379")


def test_a_cluster_that_does_not_answer_is_said_so_and_costs_nothing(tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed"))
    before = content(tmp_path / "packed")
    code = (
        "from packer.cli import main\n"
        f"main(['build', {str(ROOT / 'data/sample/chats.jsonl')!r}, '--tokenizer', {str(TINY)!r}, '--capacity', '512', '--force', "
        f"'--engine', 'ray', '--ray-address', '127.0.0.1:1', '-o', {str(tmp_path / 'packed')!r}])"
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-2].startswith("error: --engine ray: no cluster at 127.0.0.1:1 (")
    assert content(tmp_path / "packed") == before


def busy_workers(process: subprocess.Popen[str]) -> list[int]:
    """The Ray workers under a driver that are at a task."""
    import psutil

    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "ray::_call" in " ".join(child.cmdline()[:1]):
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


def parts(folder: Path) -> list[Path]:
    return [*(folder / "tokens").glob("part-*.arrow")]


def shards(folder: Path) -> list[Path]:
    return [*(folder / "train").glob("shard-*.arrow")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("phase", "begun"),
    [
        ("loading", lambda _folder: True),
        ("tokenizing", lambda folder: len(parts(folder)) > 1),
        ("shards", lambda folder: len(shards(folder)) > 1),
    ],
)
def test_a_worker_that_is_killed_costs_nothing_but_its_task(
    tmp_path: Path, phase: str, begun: Callable[[Path], bool]
) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS * 8)
    expected = local(tmp_path / "local", data)
    command = driver(tmp_path / "ray", data)
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    killed: set[int] = set()
    while process.poll() is None:
        if len(killed) < 2 and begun(tmp_path / "ray"):
            for pid in busy_workers(process)[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.01)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert killed, f"no worker was met in the phase {phase}"
    assert content(tmp_path / "ray") == expected


@pytest.mark.full
@pytest.mark.parametrize("begun", [parts, shards])
def test_a_driver_that_is_killed_is_followed_by_one_that_keeps_what_is_finished(
    tmp_path: Path, begun: Callable[[Path], list[Path]]
) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS * 8)
    expected = local(tmp_path / "local", data)
    command = driver(tmp_path / "ray", data)
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and len(begun(tmp_path / "ray")) < 3:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    made = {path: path.stat().st_ino for path in parts(tmp_path / "ray")}
    again = run(command)
    assert again.returncode == 0, again.stderr
    assert content(tmp_path / "ray") == expected
    assert {path: path.stat().st_ino for path in made} == made
    assert "parts of the token store were there: not tokenized again" in again.stderr


@pytest.mark.full
def test_an_error_in_a_task_is_the_two_lines_that_it_is_here(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS)
    folder = tmp_path / "packed"
    spoil = f"""
import packer.pipeline
from pathlib import Path
real = packer.pipeline.encode_settings
def spoiled(*arguments):
    (Path({str(folder)!r}) / "tokenizer" / "tokenizer.json").unlink()
    return real(*arguments)
packer.pipeline.encode_settings = spoiled
"""
    done = run(driver(folder, data, before=spoil))
    assert done.returncode == 2, done.stderr
    assert "no tokenizer.json in it" in done.stderr.splitlines()[-2]
    assert "Traceback" not in done.stderr
