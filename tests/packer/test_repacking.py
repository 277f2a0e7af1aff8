"""`packer repack`: what comes of the token store is, byte for byte, what a build from the sources makes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import packer
from packer.config import BuildConfig
from packer.errors import GateError, UserError
from packer.repacking import RepackConfig
from packer.verify import verify
from tests.packer.test_build import SAMPLE_ROWS, config, content
from tests.packer.test_resume import Said
from tests.support import ROOT, SAMPLE, TINY, write_jsonl

ALL = Fraction(1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """A build with all that a repack has to take up: weights, rejects, an eval split, over-long ones, control tokens, several parts."""
    folder = tmp_path_factory.mktemp("mixed")
    first = write_jsonl(folder / "a.jsonl", [*SAMPLE_ROWS[:150], "{broken", *SAMPLE_ROWS[150:250]])
    second = write_jsonl(folder / "b.jsonl", ["[]", *SAMPLE_ROWS[250:]])
    built = BuildConfig(
        mix=((str(first), Fraction(3, 2)), (str(second), Fraction(2, 3))),
        tokenizer=str(TINY),
        capacity=512,
        eval_fraction=Fraction(1, 10),
        seed=7,
        shard_rows=64,
        max_loss=ALL,
        workers=1,
        out=folder / "packed",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.parts._PART_ROWS", 60)
        packer.build(built)
    return built


def built_and_repacked(
    mixed: BuildConfig, out: Path, monkeypatch: pytest.MonkeyPatch, **options: object
) -> tuple[dict[str, str], dict[str, str]]:
    monkeypatch.setattr("packer.parts._PART_ROWS", 60)
    packer.build(replace(mixed, out=out / "built", **options))  # type: ignore[arg-type]
    values = {"capacity": mixed.capacity, "max_loss": ALL, "shard_rows": mixed.shard_rows, **options}
    packer.repack(RepackConfig(source=mixed.out, out=out / "repacked", workers=1, **values))  # type: ignore[arg-type]
    return content(out / "built"), content(out / "repacked")


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 4096},
        {"capacity": 256, "overlong": "split"},
        {"capacity": 256, "overlong": "truncate"},
        {"seed": 8},
        {"strategy": "sequential", "max_segments": 16},
        {"max_segments": 0, "strategy": "bfd"},
        {"shard_rows": 16, "capacity": 1024},
        {"token_store": False, "capacity": 1024},
        {"align": 64},
        {"align": 64, "capacity": 1024, "overlong": "split"},
    ],
    ids=str,
)
def test_a_repack_is_the_build_with_its_options(
    mixed: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    """Shards, examples/, tokens/, tokenizer/, rejects and manifest; more than one capacity brings over-long ones back in, or leaves more of them out."""
    built, repacked = built_and_repacked(mixed, tmp_path, monkeypatch, **options)
    assert repacked == built
    assert ("tokens/part-00000.arrow" in repacked) == bool(options.get("token_store", True))
    for name in ("built", "repacked"):
        report = verify(tmp_path / name, deep="align" in options)
        assert report.findings == ()
        assert report.token_store == options.get("token_store", True)
    if "align" in options:
        assert packer.open(tmp_path / "repacked")[0].example_lens is not None


def test_conversations_that_were_too_long_come_back_at_a_larger_capacity(mixed: BuildConfig, tmp_path: Path) -> None:
    before = packer.open(mixed.out).manifest.ledger.conversations
    after = packer.repack(RepackConfig(source=mixed.out, out=tmp_path / "large", capacity=4096, max_loss=ALL))
    assert before["overlong"] > 0
    assert "overlong" not in after.ledger.conversations
    assert after.ledger.conversations["in"] == before["in"] + before["overlong"]


def test_an_unnamed_option_is_as_the_folder_was_built(mixed: BuildConfig, tmp_path: Path) -> None:
    packer.build(replace(mixed, out=tmp_path / "built", strategy="bfd", max_segments=24, overlong="split", align=64))
    manifest = packer.repack(
        RepackConfig(source=tmp_path / "built", out=tmp_path / "again", capacity=1024, max_loss=ALL)
    )
    assert (manifest.strategy, manifest.seed, manifest.align) == ("bfd", 7, 64)
    assert (manifest.options["max_segments"], manifest.options["overlong"]) == (24, "split")
    free = packer.repack(
        RepackConfig(
            source=tmp_path / "built", out=tmp_path / "free", capacity=1024, max_loss=ALL, max_segments="auto", align=1
        )
    )
    assert (free.options["max_segments"], free.align) == ("auto", 1)


def test_the_tokens_are_linked_not_copied_and_a_new_build_of_the_source_leaves_them_alone(tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed"))
    packer.repack(RepackConfig(source=tmp_path / "packed", out=tmp_path / "again", capacity=8192))
    part = tmp_path / "again" / "tokens" / "part-00000.arrow"
    assert part.stat().st_ino == (tmp_path / "packed" / "tokens" / part.name).stat().st_ino
    before = part.read_bytes()
    packer.build(config(tmp_path / "packed", train_on="all", force=True))
    assert part.read_bytes() == before
    assert packer.repack(RepackConfig(source=tmp_path / "again", out=tmp_path / "third", capacity=4096)) is not None


def test_where_links_cannot_be_made_tokens_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_paths: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    packer.build(config(tmp_path / "packed"))
    monkeypatch.setattr(os, "link", refuse)
    packer.repack(RepackConfig(source=tmp_path / "packed", out=tmp_path / "again", capacity=8192))
    parts = [tmp_path / name / "tokens" / "part-00000.arrow" for name in ("packed", "again")]
    assert parts[0].read_bytes() == parts[1].read_bytes()
    assert parts[0].stat().st_ino != parts[1].stat().st_ino


def test_a_repack_asked_for_again_writes_nothing_and_another_needs_force(tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed"))
    first = RepackConfig(source=tmp_path / "packed", out=tmp_path / "again", capacity=8192)
    packer.repack(first)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "again").rglob("*")}
    said = Said()
    packer.repack(first, said)
    assert said.has("already holds these rows: nothing to do")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "again").rglob("*")} == before
    with pytest.raises(UserError, match=r"another build.*capacity"):
        packer.repack(replace(first, capacity=4096))
    packer.repack(replace(first, capacity=4096, force=True))


@pytest.mark.parametrize("where", ["packed", "packed/inside", "."])
def test_a_repack_never_writes_into_what_it_reads(tmp_path: Path, where: str) -> None:
    packer.build(config(tmp_path / "packed"))
    before = content(tmp_path / "packed")
    with pytest.raises(UserError, match="lies in the folder that is read, or around it"):
        packer.repack(RepackConfig(source=tmp_path / "packed", out=tmp_path / where, capacity=8192, force=True))
    assert content(tmp_path / "packed") == before


def test_a_folder_that_cannot_be_repacked_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.parts._PART_ROWS", 100)
    packer.build(config(tmp_path / "packed"))
    out = tmp_path / "again"

    def refused(folder: Path, match: str, capacity: int = 8192) -> None:
        with pytest.raises(UserError, match=match):
            packer.repack(RepackConfig(source=folder, out=out, capacity=capacity))
        assert not (out / "manifest.json").exists()

    refused(tmp_path / "nowhere", "no such folder")
    packer.build(config(tmp_path / "without", token_store=False))
    refused(tmp_path / "without", "has no token store")
    refused(tmp_path / "packed", "must be a positive multiple of 64", capacity=100)
    shutil.copytree(tmp_path / "packed", tmp_path / "fewer")
    (tmp_path / "fewer" / "tokens" / "part-00004.arrow").unlink()
    refused(tmp_path / "fewer", "holds 400 conversations, but 480 were read")
    shutil.copytree(tmp_path / "packed", tmp_path / "damaged")
    part = tmp_path / "damaged" / "tokens" / "part-00002.arrow"
    whole = bytearray(part.read_bytes())
    whole[len(whole) // 2] ^= 1
    part.write_bytes(whole)
    refused(tmp_path / "damaged", r"part-00002\.arrow: its tokens are not those that were written")
    shutil.copytree(tmp_path / "packed", tmp_path / "garbled")
    part = tmp_path / "garbled" / "tokens" / "part-00002.arrow"
    whole = part.read_bytes()
    # A place that is not UTF-8 any more.
    part.write_bytes(whole.replace(SAMPLE.name.encode() + b":2", b"\xff" * len(SAMPLE.name) + b":2"))
    refused(tmp_path / "garbled", r"part-00002\.arrow: not a readable part of a token store")
    monkeypatch.setattr("packer.__version__", "99")
    refused(tmp_path / "packed", "was built by packer .*, and this is 99")


def test_the_gate_of_losses_holds_in_a_repack(tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed"))
    with pytest.raises(GateError, match="overlong"):
        packer.repack(RepackConfig(source=tmp_path / "packed", out=tmp_path / "again", capacity=256))
    assert not (tmp_path / "again" / "manifest.json").exists()


def test_a_repack_reads_no_source_and_no_tokenizer_and_says_where_its_tokens_come_from(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS[:100])
    packer.build(config(tmp_path / "packed", data))
    data.unlink()
    code = (
        "import sys, packer; from packer.cli import main\n"
        f"main(['repack', {str(tmp_path / 'packed')!r}, '--capacity', '8192', '-o', {str(tmp_path / 'again')!r}], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('tokenizers', 'splintr', 'torch', 'datasets')])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    logs = [json.loads((tmp_path / name / "build-log.json").read_text()) for name in ("packed", "again")]
    for field in ("encoder", "tokenizer_path", "chat_template_path", "sources"):
        assert logs[0][field] == logs[1][field]


def test_a_killed_repack_goes_on(tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed"))
    code = f"""
import os, signal
import packer.repacking
from packer.cli import main
packer.repacking._link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(["repack", {str(tmp_path / "packed")!r}, "--capacity", "512", "--overlong", "split", "--shard-rows", "64", "-o", {str(tmp_path / "again")!r}])
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    what = RepackConfig(
        source=tmp_path / "packed", out=tmp_path / "again", capacity=512, overlong="split", shard_rows=64
    )
    said = Said()
    packer.repack(what, said)
    shards = len(list((tmp_path / "again" / "train").iterdir()))
    assert said.has(f"{shards} of {shards} shards were there")
    packer.repack(replace(what, out=tmp_path / "fresh"))
    assert content(tmp_path / "again") == content(tmp_path / "fresh")


def test_the_command_line_answers_in_two_lines(packer_cli: object, tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed", token_store=False))
    run = packer_cli("repack", tmp_path / "packed", "--capacity", "8192", "-o", tmp_path / "again")  # type: ignore[operator]
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        f"error: {tmp_path / 'packed'}: has no token store (it was built with --no-token-store)",
        f"hint: build from the sources: packer build … --capacity 8192 -o {tmp_path / 'again'}",
    ]
