"""A build that was killed, at whatever moment, goes on where it was and ends with the same bytes; and nothing is kept that was decided by anything else."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import packer
from packer.errors import UserError
from packer.progress import Progress
from tests.packer.test_build import SAMPLE_ROWS, config, content
from tests.support import ROOT, SAMPLE, TINY, write_jsonl


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def has(self, words: str) -> bool:
        return any(words in line for line in self.lines)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.parts._PART_ROWS", 50)


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*.arrow")}


@pytest.mark.parametrize(
    ("kills", "store"),
    [(12, 1), (3, 0), pytest.param(80, 1, marks=pytest.mark.full), pytest.param(40, 0, marks=pytest.mark.full)],
)
def test_a_build_killed_at_any_moment_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, kills: int, store: int
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.packer.killing", SAMPLE, TINY, tmp_path, str(kills), str(kills), str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    parts = sum(touch.startswith("os.rename tokens/") for touch in report["touches"])
    assert parts == 12
    assert len(report["kills"]) > kills
    assert report["kills"][-1]["moment"] == "open .manifest.json.tmp"
    assert report["kills"][-1]["parts"] == parts, "also where tokens are not wanted in the end"
    for kill in report["kills"]:
        assert kill["status"] == -signal.SIGKILL, kill
        assert not kill["broken"], kill
        assert kill["again"] == 0, kill
        assert kill["same_bytes"], kill
        assert not kill["made_again"], kill
        if not kill["looked_finished"]:
            told = f"{kill['parts']} of {parts} parts of the token store were there"
            assert (told in " ".join(kill["said"])) == (kill["parts"] > 0), kill
    looked_finished = [kill["moment"] for kill in report["kills"] if kill["looked_finished"]]
    # Only behind the manifest's rename.
    last = len(report["touches"]) - 1 - [*reversed(report["touches"])].index("os.rename .manifest.json.tmp")
    assert all(moment in report["touches"][last + 1 :] for moment in looked_finished)
    assert {kill["phase"] for kill in report["kills"]} == {
        "folder", "tokenizer", "tokens", "examples", "rejects", "plan/train", "train", "plan/eval", "eval", "build-log", "manifest",
    }  # fmt: skip
    assert any(kill["shards"] for kill in report["kills"])


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.full)])
def test_a_parent_killed_from_outside_leaves_parts_that_the_next_build_keeps(tmp_path: Path, kills: int) -> None:
    """Two workers are at work, and outlive their parent by a moment: the next build waits for them."""
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS * 6)
    code = f"""
import packer.parts
packer.parts._PART_ROWS = 100
from packer.cli import main
if __name__ == "__main__":
    main(["build", {str(data)!r}, "--tokenizer", {str(TINY)!r}, "--capacity", "512", "--shard-rows", "128", "--overlong", "split",
          "--workers", "2", "-o", {str(tmp_path / "packed")!r}])
"""
    (tmp_path / "build.py").write_text(code)
    command = [sys.executable, str(tmp_path / "build.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    run()
    expected = content(tmp_path / "packed")
    files = [name for name in expected if name.startswith(("tokens/", "train/"))]
    chance = random.Random(kills)
    for _ in range(kills):
        shutil.rmtree(tmp_path / "packed")
        enough = chance.randrange(1, len(files) - 2)
        while True:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and len(made := written(tmp_path / "packed")) < enough:
                time.sleep(0.002)
            process.kill()
            if process.wait() == -signal.SIGKILL and not (tmp_path / "packed" / "manifest.json").exists():
                break
            # It was done before it was looked at: once more, and earlier.
            assert enough > 1
            enough //= 2
            shutil.rmtree(tmp_path / "packed")
        with pytest.raises(UserError, match=r"no manifest\.json"):
            packer.open(tmp_path / "packed")
        parts = {path: path.stat().st_ino for path in made if path.parent.name == "tokens"}
        again = run()
        assert content(tmp_path / "packed") == expected
        assert {path: path.stat().st_ino for path in parts} == parts
        assert "parts of the token store were there: not tokenized again" in again.stderr


def written(out: Path) -> list[Path]:
    return [*(out / "tokens").glob("part-*.arrow"), *(out / "train").glob("shard-*.arrow")]


def unfinished(built: Path) -> None:
    """As a build leaves a folder that is killed right before its manifest, but for the notes about shards."""
    (built / "manifest.json").unlink()
    (built / ".packer-building").touch()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("damage", ["cut short", "a flipped bit", "of another template", "of other rows"])
def test_a_part_that_is_not_the_one_that_is_due_is_made_again(tmp_path: Path, damage: str) -> None:
    packer.build(config(tmp_path / "packed"))
    expected = content(tmp_path / "packed")
    part = tmp_path / "packed" / "tokens" / "part-00003.arrow"
    if damage == "cut short":
        part.write_bytes(part.read_bytes()[:-100])
    elif damage == "a flipped bit":
        whole = bytearray(part.read_bytes())
        whole[len(whole) // 2] ^= 4
        part.write_bytes(whole)
    elif damage == "of another template":
        template = tmp_path / "other.jinja"
        template.write_text((TINY / "chat_template.jinja").read_text(encoding="utf-8") + "{# #}", encoding="utf-8")
        packer.build(config(tmp_path / "other", chat_template=template))
        shutil.copy(tmp_path / "other" / "tokens" / part.name, part)
    else:
        shutil.copy(part.with_name("part-00004.arrow"), part)
    unfinished(tmp_path / "packed")
    said = Said()
    packer.build(config(tmp_path / "packed"), said)
    assert said.has("9 of 10 parts of the token store were there")
    assert content(tmp_path / "packed") == expected


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "change", ["template", "data", "tokenizer", "train_on", "control_tokens", "template_date", "code", "version"]
)
def test_whatever_decides_tokens_makes_all_parts_anew(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS[:200])
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(TINY, tokenizer)
    first = config(tmp_path / "packed", data, tokenizer=str(tokenizer))
    packer.build(first)
    other: dict[str, object] = {}
    if change == "template":
        template = tmp_path / "other.jinja"
        template.write_text((TINY / "chat_template.jinja").read_text(encoding="utf-8") + "{# #}", encoding="utf-8")
        other = {"chat_template": template}
    elif change == "data":
        write_jsonl(data, [*SAMPLE_ROWS[:199], SAMPLE_ROWS[300]])
    elif change == "tokenizer":
        settings = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
        (tokenizer / "tokenizer_config.json").write_text(json.dumps({**settings, "note": 1}), encoding="utf-8")
    elif change == "code":
        monkeypatch.setattr("packer.keys.code_digest", lambda: "other")
    elif change == "version":
        monkeypatch.setattr("packer.__version__", "99")
    else:
        values = {"train_on": "all", "control_tokens": "keep", "template_date": datetime.date(2026, 1, 31)}
        other = {change: values[change]}
    said = Said()
    packer.build(replace(first, force=True, **other), said)  # type: ignore[arg-type]
    assert not said.has("parts of the token store were there")
    fresh = replace(first, out=tmp_path / "fresh", **other)  # type: ignore[arg-type]
    packer.build(fresh)
    assert content(tmp_path / "packed") == content(tmp_path / "fresh")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "change",
    [
        {"capacity": 512, "overlong": "split"},
        {"seed": 3},
        {"strategy": "bfd"},
        {"max_segments": 8},
        {"eval_fraction": Fraction(1, 5)},
        {"shard_rows": 16},
        {"limit": 100},
        {"token_store": False},
    ],
    ids=str,
)
def test_what_decides_rows_alone_takes_up_the_tokens_of_the_folder(tmp_path: Path, change: dict) -> None:
    packer.build(config(tmp_path / "packed", max_loss=Fraction(1)))
    before = stamps(tmp_path / "packed" / "tokens")
    said = Said()
    other = replace(config(tmp_path / "packed", max_loss=Fraction(1), force=True), **change)
    packer.build(other, said)
    count = 2 if "limit" in change else 10
    assert said.has(f"{count} of {count} parts of the token store were there: not tokenized again")
    if other.token_store:
        kept = stamps(tmp_path / "packed" / "tokens")
        assert len(kept) == count
        assert kept.items() <= before.items()
    packer.build(replace(other, out=tmp_path / "fresh"))
    assert content(tmp_path / "packed") == content(tmp_path / "fresh")


@pytest.mark.usefixtures("small_parts")
def test_a_source_that_grew_by_a_file_keeps_the_parts_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", SAMPLE_ROWS[:200])
    packer.build(config(tmp_path / "packed", tmp_path / "in"))
    write_jsonl(tmp_path / "in" / "b.jsonl", SAMPLE_ROWS[200:])
    said = Said()
    packer.build(config(tmp_path / "packed", tmp_path / "in", force=True), said)
    assert said.has("4 of 10 parts")


def test_shards_are_kept_only_where_tokens_and_plan_are_the_same(tmp_path: Path) -> None:
    """A note about a shard of another plan lies where this build would write its own."""
    first = config(tmp_path / "packed", shard_rows=16, capacity=512, overlong="split", max_loss=Fraction(1))
    kill_before_the_manifest(first)
    said = Said()
    packer.build(replace(first, seed=1), said)
    assert not said.has("shards were there")
    packer.build(replace(first, seed=1, out=tmp_path / "fresh"))
    assert content(tmp_path / "packed") == content(tmp_path / "fresh")
    kill_before_the_manifest(replace(first, out=tmp_path / "second"))
    shard = tmp_path / "second" / "train" / "shard-00002.arrow"
    whole = bytearray(shard.read_bytes())
    whole[len(whole) // 2] ^= 4
    shard.write_bytes(whole)
    said = Said()
    packer.build(replace(first, out=tmp_path / "second"), said)
    packer.build(replace(first, out=tmp_path / "third"))
    shards = len(list((tmp_path / "third" / "train").iterdir()))
    assert said.has(f"{shards - 1} of {shards} shards were there")
    assert content(tmp_path / "second") == content(tmp_path / "third")


class StopError(Exception):
    pass


def kill_before_the_manifest(what: packer.config.BuildConfig) -> None:
    """Ends a build after its last shard."""

    def stop(*_arguments: object, **_options: object) -> None:
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.pipeline.set_aside", stop)
        with pytest.raises(StopError):
            packer.build(what)


def test_a_build_waits_for_the_workers_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them might still put a part of other tokens in the place of ours."""
    from packer.folder import at_work, claim

    monkeypatch.setattr("packer.folder._SECONDS_FOR_ORPHANS", 0.3)
    with claim(tmp_path / "packed"):
        (tmp_path / "packed" / "tokens").mkdir()
    (tmp_path / "packed" / ".packer-building").touch()
    (tmp_path / "packed" / ".packer-working").touch()
    with (
        at_work(tmp_path / "packed"),
        pytest.raises(UserError, match="worker processes of an earlier build are still writing"),
    ):
        packer.build(config(tmp_path / "packed"))
    packer.build(config(tmp_path / "packed"))


def test_a_worker_that_starts_when_the_build_has_ended_leaves_no_mark(tmp_path: Path) -> None:
    from packer.folder import at_work

    packer.build(config(tmp_path / "packed"))
    before = sorted(entry.name for entry in (tmp_path / "packed").iterdir())
    with at_work(tmp_path / "packed"):
        assert sorted(entry.name for entry in (tmp_path / "packed").iterdir()) == before


def test_a_fast_encoder_that_differs_in_a_worker_leaves_none_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that other workers were still at are not taken for the reference's: they have the same key."""
    from tests.packer import spy

    monkeypatch.setattr("packer.parts._PART_ROWS", 40)
    monkeypatch.setattr("packer.pipeline.make_part_writer", spy.make_lying_writer)
    said = Said()
    packer.build(config(tmp_path / "packed", workers=2, encoder="splintr"), said)
    assert said.has("starting over with tokenizers")
    monkeypatch.undo()
    monkeypatch.setattr("packer.parts._PART_ROWS", 40)
    packer.build(config(tmp_path / "fresh"))
    assert content(tmp_path / "packed") == content(tmp_path / "fresh")


def test_a_gate_that_said_no_costs_no_second_tokenizing(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [*SAMPLE_ROWS[:9], "{broken"])
    with pytest.raises(UserError, match="were lost"):
        packer.build(config(tmp_path / "packed", data))
    said = Said()
    packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1, 5)), said)
    assert said.has("1 of 1 parts of the token store were there")


def test_a_source_that_changes_while_it_is_read_is_said_so_and_leaves_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packer import pipeline

    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS[:50])
    real = pipeline.raw_parts

    def appending(*arguments: object, **options: object):
        with data.open("a") as file:
            file.write(SAMPLE_ROWS[60] + "\n")
        return real(*arguments, **options)

    monkeypatch.setattr(pipeline, "raw_parts", appending)
    with pytest.raises(UserError, match=r"chats\.jsonl: changed while it was read"):
        packer.build(config(tmp_path / "packed", data))
    assert not (tmp_path / "packed" / "tokens").exists()
    assert not (tmp_path / "packed" / "manifest.json").exists()


@pytest.mark.usefixtures("small_parts")
def test_a_source_that_vanishes_is_said_so_and_what_was_made_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packer import pipeline

    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "0.jsonl", SAMPLE_ROWS[:100])
    write_jsonl(tmp_path / "in" / "1.jsonl", SAMPLE_ROWS[100:200])
    real = pipeline.raw_parts

    def vanishing(*arguments: object, **options: object):
        for raw in real(*arguments, **options):
            (tmp_path / "in" / "1.jsonl").unlink(missing_ok=True)
            yield raw

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "raw_parts", vanishing)
        with pytest.raises(UserError, match=r"1\.jsonl: .*No such file"):
            packer.build(config(tmp_path / "packed", tmp_path / "in"))
    assert not (tmp_path / "packed" / "manifest.json").exists()
    write_jsonl(tmp_path / "in" / "1.jsonl", SAMPLE_ROWS[100:200])
    said = Said()
    packer.build(config(tmp_path / "packed", tmp_path / "in"), said)
    assert said.has("2 of 4 parts")


@pytest.mark.parametrize(("workers", "limits"), [(1, (170_000, 400_000)), (2, (170_000,))])
def test_a_disk_that_is_full_is_said_so_and_the_build_goes_on_when_there_is_room(
    tmp_path: Path, workers: int, limits: tuple[int, ...]
) -> None:
    """The limit of a file's size fails a write as a full disk does, in workers too."""
    code = f"""
import packer.parts, resource, signal, sys
packer.parts._PART_ROWS = 100
from packer.cli import main
if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
    main(["build", {str(SAMPLE)!r}, "--tokenizer", {str(TINY)!r}, "--capacity", "4096", "--workers", "{workers}", "-o", {str(tmp_path / "packed")!r}])
"""
    (tmp_path / "build.py").write_text(code)

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "build.py"), str(limit)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    # Below a part; above a part and below the shard, which holds all of them.
    for limit in limits:
        found = run(limit)
        assert found.returncode == 2, found.stderr
        assert found.stderr.splitlines()[-2:] == [
            f"error: {tmp_path / 'packed'}: cannot be written (File too large)",
            "hint: free some space or mend the folder's permissions, and run the same command again: what is finished is kept",
        ]
        assert not (tmp_path / "packed" / "manifest.json").exists()
        # A worker that another one ends with is ended where it is.
        assert workers > 1 or not list((tmp_path / "packed").rglob("*.tmp"))
    last = run(1 << 30)
    assert last.returncode == 0
    assert ("5 of 5 parts of the token store were there" in last.stderr) == (len(limits) == 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_small_disk_that_fills_up_is_said_so(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1400k", "none", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("no mounting here")
    try:
        # Room for the tokens, not for the shard.
        with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
            packer.build(config(disk / "packed"))
        assert not (disk / "packed" / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        said = Said()
        packer.build(config(disk / "packed"), said)
        assert said.has("1 of 1 parts of the token store were there")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
