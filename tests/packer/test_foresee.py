"""A dry run: its file builds the same corpus, its numbers are those of the build where it has seen everything, and it says what it does not know."""

from __future__ import annotations

import gzip
import json
import tomllib
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import packer
import packer.foresee as dry
from packer.cli import main
from packer.config import BuildConfig
from packer.manifest import load_manifest
from packer.source import SourceSpec, hub_rows
from tests.support import SAMPLE, TINY, chat, write_jsonl

LINES = SAMPLE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "chats.jsonl", LINES[:60])


def cli(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="packer")
    assert result.exit_code == 0, result.stderr
    return result


def config(*datasets: str, **options: object) -> BuildConfig:
    chosen: dict[str, object] = {
        "tokenizer": str(TINY),
        "capacity": 1024,
        "out": Path("packed"),
        "workers": 1,
        "max_loss": 1,
    }
    return BuildConfig(datasets=datasets, **{**chosen, **options})  # type: ignore[arg-type]


OPTIONS = ("--tokenizer", str(TINY), "--capacity", "1024", "--max-loss", "50%", "--workers", "1", "-o", "packed")


def test_the_file_it_prints_builds_the_same_corpus() -> None:
    write_jsonl(Path("more.jsonl"), LINES[60:90])
    other = ("chats.jsonl", "--mix", "more.jsonl=1/2", "--overlong", "split", "--seed", "3", "--eval-fraction", "10%")
    printed = cli("build", *other, *OPTIONS, "--dry-run")
    assert tomllib.loads(printed.stdout)["dataset"] == ["chats.jsonl"]
    assert not Path("packed").exists()
    Path("build.toml").write_text(printed.stdout)
    cli("build", "--config", "build.toml", "-q")
    cli("build", *other, *OPTIONS, "-o", "by-hand", "-q")
    digest = load_manifest(Path("packed")).corpus_digest
    assert digest == load_manifest(Path("by-hand")).corpus_digest
    cli("build", "chats.jsonl", *OPTIONS, "-o", "other", "-q")
    assert digest != load_manifest(Path("other")).corpus_digest


def test_people_read_on_stderr_and_programs_on_stdout() -> None:
    run = cli("build", "chats.jsonl", *OPTIONS, "--dry-run")
    assert tomllib.loads(run.stdout)["capacity"] == 1024
    said = " ".join(run.stderr.split())
    assert "chats.jsonl train 1" in said
    assert "encoded: all 60 rows" in said
    assert "<|im_start|>assistant ⟦The coast redwood.<|im_end|>⟧" in said
    assert "What is the tallest tree?<|im_end|>" in said
    assert "⟦What" not in said
    assert "out: packed, a new folder" in said
    quiet = cli("build", "chats.jsonl", *OPTIONS, "--dry-run", "--quiet")
    assert (quiet.stderr, quiet.stdout) == ("", run.stdout)


def test_the_probe_is_learnt_as_the_options_say() -> None:
    seen = dry.foresee(config("chats.jsonl", train_on="last", format="text", column="nothing"))
    learnt = [piece.text for piece in seen.probe if piece.is_target]
    assert "".join(learnt) == "A Montezuma cypress.<|im_end|>"


def test_what_was_encoded_whole_is_exactly_what_the_build_makes() -> None:
    write_jsonl(Path("data.jsonl"), [*LINES[:80], "{", json.dumps(chat("only a question")), json.dumps({"title": 1})])
    for overlong in ("drop", "split"):
        wanted = config("data.jsonl", overlong=overlong, out=Path(overlong), shard_rows=16)
        seen = dry.foresee(wanted)
        manifest = packer.build(wanted)
        ledger, estimate = manifest.ledger, seen.estimate
        assert estimate is not None
        assert (estimate.exact, estimate.conversations) == (overlong == "drop", ledger.conversations["read"])
        left_out = {name: count for name, count in ledger.conversations.items() if name not in ("read", "in")}
        assert dict(seen.sampled.left_out) == {name: count for name, count in left_out.items() if count}
        if overlong == "drop":
            assert left_out["overlong"] > 0
            train = manifest.splits["train"]
            assert (estimate.tokens, seen.sampled.supervised) == (train.tokens, train.supervised_tokens)
            assert estimate.rows == train.lower_bound_rows


def test_a_sample_is_extrapolated_by_bytes_and_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry, "_ROWS_SAMPLED", 64)
    # The second half is twice as long, which rows would not show and bytes do.
    rows = [json.loads(line)["messages"] for line in LINES[:200]]
    write_jsonl(Path("a.jsonl"), [{"messages": one} for one in rows])
    write_jsonl(Path("b.jsonl"), [{"messages": one + two} for one, two in zip(rows[::2], rows[1::2], strict=True)])
    wanted = config("a.jsonl", "b.jsonl", capacity=4096)
    seen = dry.foresee(wanted)
    assert seen.estimate is not None
    assert (seen.sampled.rows, seen.sampled.is_all, seen.estimate.exact) == (64, False, False)
    train = packer.build(wanted).splits["train"]
    assert seen.estimate.tokens == pytest.approx(train.tokens, rel=0.1)
    assert seen.estimate.conversations == pytest.approx(300, rel=0.2)
    on_disk = sum(shard.bytes for shard in train.shards)
    assert seen.estimate.shard_bytes == pytest.approx(on_disk, rel=0.15)
    store = sum(path.stat().st_size for path in Path("packed/tokens").iterdir())
    assert seen.estimate.store_bytes == pytest.approx(store, rel=0.25)
    said = " ".join(cli("build", "a.jsonl", "b.jsonl", *OPTIONS, "--dry-run").stderr.split())
    assert "encoded: the first 64 rows;" in said
    assert "Estimate, if the rest is like the rows that were encoded" in said


def test_weights_count_copies_and_a_limit_cuts_the_rest() -> None:
    once = dry.foresee(config("chats.jsonl"))
    thrice = dry.foresee(config(mix=(("chats.jsonl", Fraction(3)),)))
    some = dry.foresee(config("chats.jsonl", limit=15))
    assert once.estimate is not None
    assert thrice.estimate is not None
    assert some.estimate is not None
    assert thrice.estimate.tokens == 3 * once.estimate.tokens
    assert thrice.estimate.store_bytes == once.estimate.store_bytes
    assert (some.estimate.conversations, some.estimate.tokens) == (15, round(once.estimate.tokens / 4))


def test_rows_are_known_where_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry, "_ROWS_SAMPLED", 10)
    pq.write_table(pa.Table.from_pylist([json.loads(line) for line in LINES[:60]]), "chats.parquet")
    (parquet,) = dry.foresee(config("chats.parquet")).sources
    (lines,) = dry.foresee(config("chats.jsonl")).sources
    assert (parquet.rows, lines.rows, lines.bytes) == (60, None, Path("chats.jsonl").stat().st_size)


def test_what_cannot_be_known_is_not_estimated(packer_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry, "_ROWS_SAMPLED", 10)
    Path("chats.jsonl.gz").write_bytes(gzip.compress(Path("chats.jsonl").read_bytes()))
    packed = dry.foresee(config("chats.jsonl.gz"))
    assert (packed.estimate, packed.sampled.rows) == (None, 10)
    assert packed.unknown == "how many rows chats.jsonl.gz has is not known before it is read, so nothing is estimated"
    write_jsonl(Path("bad.jsonl"), ["{"] * 3)
    assert dry.foresee(config("bad.jsonl")).unknown == (
        "none of the 3 conversations that were encoded goes in, so nothing is estimated"
    )
    hub = packer_cli("build", "someone/some-chats", *OPTIONS, "--dry-run")
    assert hub.returncode == 0, hub.stderr
    assert "someone/some-chats is fetched by the build and not before, so nothing is estimated" in hub.stderr


def test_many_files_are_sampled_evenly() -> None:
    for number in range(70):
        write_jsonl(Path(f"part-{number:02}.jsonl"), LINES[number : number + 3])
    seen = dry.foresee(config("part-*.jsonl"))
    sampled = [place for place, one in enumerate(seen.sources) if one.sampled]
    assert len(sampled) <= 32
    assert sampled == list(range(0, 70, 3))
    assert seen.estimate is not None
    assert seen.estimate.conversations == pytest.approx(210, rel=0.2)


def test_rows_of_the_hub_are_those_of_the_data_sets_page(tmp_path: Path) -> None:
    """A folder laid out as the hub lays data sets out: `datasets` reads its page alike."""
    page = "---\ndataset_info:\n  splits:\n  - name: train_sft\n    num_examples: 60\n    num_bytes: 1\n---\n"
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "README.md").write_text(page)
    write_jsonl(tmp_path / "hub" / "train_sft.jsonl", LINES[:3])
    assert hub_rows(SourceSpec(name=str(tmp_path / "hub"), split="train_sft")) == 60
    assert hub_rows(SourceSpec(name=str(tmp_path / "hub"), split="other")) is None
    assert hub_rows(SourceSpec(name=str(tmp_path / "nowhere"), split="train")) is None
