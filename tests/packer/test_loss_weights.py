"""Weights of targets from the renderer to the rows: format version 2, held against what the renderer gave by pyarrow and numpy alone."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import packer
from packer.cli import main
from packer.config import BuildConfig
from packer.conversation import Rejected
from packer.diff import diff
from packer.errors import UserError
from packer.render import Example, Policies, Renderer
from packer.repacking import RepackConfig, repack
from packer.shards import open_corpus
from packer.stats import measure
from packer.template import ChatTemplate
from packer.token_part import read_part
from packer.tokenizer import load_tokenizer
from packer.verify import verify
from tests.fixtures.weighted_examples import DRAWN, all_ones, drawn_weights, weighted_examples
from tests.support import SAMPLE, TINY, chat, write_jsonl


def build(out: Path, *, source: Path = SAMPLE, **options: object) -> packer.Manifest:
    base = {"capacity": 1024, "shard_rows": 16, "max_loss": 1, "workers": 1}
    return packer.build(
        BuildConfig(datasets=(str(source),), tokenizer=str(TINY), out=out, **{**base, **options})  # type: ignore[arg-type]
    )


def files(folder: Path) -> dict[str, bytes]:
    """All that must be the same bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "tokens" and path.name != "build-log.json"
    }


def rows_of(folder: Path, split: str) -> list[dict[str, np.ndarray]]:
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = []
    for shard in manifest["splits"][split]["shards"]:
        table = pa.ipc.open_file((folder / shard["file"]).read_bytes()).read_all()
        rows += [{name: np.array(value) for name, value in row.items()} for row in table.to_pylist()]
    return rows


@pytest.fixture(scope="module")
def given() -> dict[int, Example]:
    """What a renderer gives for each row of the sample."""
    tokenizer = load_tokenizer(str(TINY))
    template = ChatTemplate(
        (TINY / "chat_template.jinja").read_text(encoding="utf-8"), special_tokens=tokenizer.special_tokens, date=None
    )
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    found = Renderer(tokenizer, template, Policies()).examples([json.loads(line) for line in lines])
    return {row: one for row, one in enumerate(found) if not isinstance(one, Rejected)}


@pytest.mark.parametrize(
    "options",
    [
        {"eval_fraction": 0.1},
        {"align": 16},
        {"capacity": 512, "overlong": "split"},
        {"capacity": 512, "overlong": "truncate", "align": 64},
    ],
    ids=str,
)
def test_every_slot_counts_what_the_renderer_gave_its_token(
    tmp_path: Path, given: dict[int, Example], options: dict[str, object]
) -> None:
    with weighted_examples():
        manifest = build(tmp_path / "packed", **options)
        report = verify(tmp_path / "packed", deep=True)
    assert report.broken == 0, report.findings
    assert report.deep is not None
    assert report.deep.stored == report.examples
    assert manifest.format_version == 2
    listed = pa.ipc.open_file((tmp_path / "packed/examples/part-00000.arrow").read_bytes()).read_all().to_pylist()
    behind = Counter[int]()  # tokens of a conversation's pieces before each piece
    starts = {}
    for one in listed:
        starts[one["example_id"]] = behind[one["row"]]
        behind[one["row"]] += one["tokens"]
    seen: list[float] = []
    for split in manifest.splits:
        for row in rows_of(tmp_path / "packed", split):
            weights, mask = row["loss_weights"], row["loss_mask"]
            expected = np.zeros(len(weights), dtype=np.float32)
            for place in range(int(row["num_examples"])):
                entry = listed[int(row["example_ids"][place])]
                at, length = int(row["cu_seqlens"][place]), entry["tokens"]
                example, start = given[entry["row"]], starts[entry["example_id"]]
                own = np.where(example.loss_mask, drawn_weights(example), 0)[start : start + length]
                expected[at + 1 : at + length] = own[1:]
            assert weights.astype(np.float32).tolist() == expected.tolist()
            assert ((weights != 0) == mask).all()
            assert row["num_supervised"] == mask.sum()
            seen += weights[mask].astype(np.float32).tolist()
    assert set(seen) == set(np.array(DRAWN, dtype=np.float32).tolist())
    if "overlong" not in options:
        due = [drawn_weights(one)[one.loss_mask] for one in given.values() if len(one.ids) <= 1024]
        assert Counter(seen) == Counter(np.concatenate(due).tolist())


def test_a_reader_gives_each_row_its_weights_and_a_build_of_version_1_none(tmp_path: Path) -> None:
    with weighted_examples():
        build(tmp_path / "weighted")
    build(tmp_path / "plain")
    corpus, plain = open_corpus(tmp_path / "weighted"), open_corpus(tmp_path / "plain")
    for row, read in zip(rows_of(tmp_path / "weighted", "train"), corpus, strict=True):
        assert read.loss_weights is not None
        assert read.loss_weights.dtype == np.float32
        assert read.loss_weights.tolist() == row["loss_weights"].tolist()
    assert all(row.loss_weights is None for row in plain)
    assert corpus.column("loss_weights").shape == (len(corpus), 1024)
    # Weights change what a target counts, and nothing else.
    for one, other in zip(corpus, plain, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.loss_mask.tolist() == other.loss_mask.tolist()


def test_weights_of_1_make_the_bytes_of_a_build_without_any(tmp_path: Path) -> None:
    build(tmp_path / "plain", eval_fraction=0.1)
    with weighted_examples(all_ones):
        build(tmp_path / "ones", eval_fraction=0.1)
    assert files(tmp_path / "ones") == files(tmp_path / "plain")
    parts = [read_part(tmp_path / name / "tokens/part-00000.arrow") for name in ("plain", "ones")]
    assert all(part.loss_weights is None for _, part in parts)
    assert parts[0][0].digest == parts[1][0].digest
    shard = pa.ipc.open_file((tmp_path / "ones/train/shard-00000.arrow").read_bytes())
    assert shard.schema.metadata[b"format_version"] == b"1"
    assert "loss_weights" not in shard.schema.names


def test_a_build_is_of_version_2_only_for_a_weight_that_goes_into_rows(tmp_path: Path) -> None:
    """One conversation has a weight and is too long: nothing of it is in rows, unless it is cut."""
    source = write_jsonl(tmp_path / "chats.jsonl", [chat("a", "b"), chat("c", "a long answer " * 60, "d", "e")])

    def weigh(example: Example) -> np.ndarray | None:
        return np.full(len(example.ids), 0.5, dtype=np.float32) if len(example.ids) > 64 else None

    build(tmp_path / "plain", source=source, capacity=64)
    with weighted_examples(weigh):
        assert build(tmp_path / "dropped", source=source, capacity=64).format_version == 1
        assert build(tmp_path / "cut", source=source, capacity=64, overlong="split").format_version == 2
    assert files(tmp_path / "dropped") == files(tmp_path / "plain")
    assert verify(tmp_path / "dropped").broken == 0
    assert verify(tmp_path / "cut").broken == 0


def test_a_repack_is_byte_for_byte_the_build_of_its_options(tmp_path: Path) -> None:
    with weighted_examples():
        build(tmp_path / "1024")
        build(tmp_path / "built", capacity=2048, align=8, shard_rows=0)
    repack(
        RepackConfig(source=tmp_path / "1024", out=tmp_path / "repacked", capacity=2048, align=8, workers=1, max_loss=1)
    )  # type: ignore[arg-type]
    assert files(tmp_path / "repacked") == files(tmp_path / "built")
    assert verify(tmp_path / "repacked").broken == 0


def test_parts_of_a_build_that_was_stopped_are_taken_up_with_their_weights(tmp_path: Path) -> None:
    with weighted_examples():
        build(tmp_path / "packed")
        before = files(tmp_path / "packed")
    (tmp_path / "packed/manifest.json").unlink()
    (tmp_path / "packed/.packer-building").touch()
    # What a renderer would give now has no part in it: the part is there.
    build(tmp_path / "packed")
    assert files(tmp_path / "packed") == before


def test_only_parts_with_a_weight_have_the_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.parts._PART_ROWS", 20)
    marked: list[int] = []

    def weigh(example: Example) -> np.ndarray | None:
        marked.append(example.content_hash)
        return np.full(len(example.ids), 0.5, dtype=np.float32) if example.content_hash == marked[0] else None

    with weighted_examples(weigh):
        build(tmp_path / "packed")
    parts = [read_part(path) for path in sorted((tmp_path / "packed/tokens").iterdir())]
    assert [part.loss_weights is not None for _, part in parts] == [True, *[False] * (len(parts) - 1)]
    versions = [
        pa.ipc.open_file(path.read_bytes()).schema.metadata[b"store_version"]
        for path in sorted((tmp_path / "packed/tokens").iterdir())
    ]
    assert versions == [b"2", *[b"1"] * (len(parts) - 1)]
    weights = np.concatenate([row["loss_weights"] for row in rows_of(tmp_path / "packed", "train")])
    assert (weights == 0.5).sum() == parts[0][1].supervised[0]
    assert set(weights.tolist()) == {0.0, 0.5, 1.0}


def test_a_part_whose_weights_changed_has_another_digest(tmp_path: Path) -> None:
    with weighted_examples():
        build(tmp_path / "packed")
    head, part = read_part(tmp_path / "packed/tokens/part-00000.arrow")
    assert part.digest() == head.digest
    assert part.loss_weights is not None
    changed = part.loss_weights.copy()
    changed[int(np.flatnonzero(changed)[0])] = 0.75
    assert dataclasses.replace(part, loss_weights=changed).digest() != head.digest


def test_a_reader_of_version_1_refuses_version_2_and_ours_reads_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with weighted_examples():
        build(tmp_path / "weighted")
    build(tmp_path / "plain")
    assert len(open_corpus(tmp_path / "weighted")) == len(open_corpus(tmp_path / "plain"))
    monkeypatch.setattr("packer.manifest.FORMAT_VERSION", 1)
    assert len(open_corpus(tmp_path / "plain"))
    with pytest.raises(UserError, match="format version 2, but this reader knows versions up to 1"):
        open_corpus(tmp_path / "weighted")


def test_a_manifest_that_hides_the_weights_does_not_open_the_shards(tmp_path: Path) -> None:
    with weighted_examples():
        build(tmp_path / "packed")
    path = tmp_path / "packed/manifest.json"
    path.write_text(path.read_text().replace('"format_version": 2', '"format_version": 1'))
    with pytest.raises(UserError, match="its columns are not those of the manifest"):
        open_corpus(tmp_path / "packed")[0]


def test_stats_and_inspect_say_what_targets_count(tmp_path: Path) -> None:
    with weighted_examples():
        build(tmp_path / "packed", eval_fraction=0.1)
    build(tmp_path / "plain", eval_fraction=0.1)
    for split in ("train", "eval"):
        rows = rows_of(tmp_path / "packed", split)
        weights = np.concatenate([row["loss_weights"][row["loss_mask"]] for row in rows]).astype(np.float32)
        found = measure(tmp_path / "packed").splits[split].loss_weights
        assert found is not None
        expected = {f"{weight:.7g}": int((weights == weight).sum()) for weight in sorted(set(weights.tolist()))}
        assert found.targets == expected
        assert found.distinct == len(expected)
        assert found.mean == pytest.approx(weights.astype(np.float64).mean(), rel=1e-12)
        assert measure(tmp_path / "plain").splits[split].loss_weights is None
    run = CliRunner()
    document = json.loads(run.invoke(main, ["stats", str(tmp_path / "packed"), "--json"]).stdout)
    assert document["splits"]["eval"]["loss_weights"]["targets"] == expected
    assert (
        "Weights of targets in the loss (train): 1e-06 × "
        in run.invoke(main, ["stats", str(tmp_path / "packed")]).stdout
    )
    assert "Weights of targets" not in run.invoke(main, ["stats", str(tmp_path / "plain")]).stdout
    row = rows_of(tmp_path / "packed", "train")[0]
    start, end = row["cu_seqlens"][:2]
    own = row["loss_weights"][start:end].astype(np.float32)
    said = ", ".join(f"{weight:.7g} × {int((own == weight).sum()):,}" for weight in sorted({*own.tolist()} - {0.0}))
    assert f"targets (weights {said})" in run.invoke(main, ["inspect", str(tmp_path / "packed")]).stdout
    assert "weights" not in run.invoke(main, ["inspect", str(tmp_path / "plain")]).stdout


def test_diff_names_examples_of_which_only_weights_changed(tmp_path: Path) -> None:
    def other(example: Example) -> np.ndarray:
        weights = drawn_weights(example)
        return np.where(weights == np.float32(2), np.float32(3), weights)

    with weighted_examples():
        build(tmp_path / "a")
    with weighted_examples(other):
        build(tmp_path / "b")
    build(tmp_path / "plain")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different"
    assert found.examples is not None
    due = len({int(i) for row in rows_of(tmp_path / "a", "train") for i in _with(row, 2.0)})
    assert due
    assert (found.examples.weights_changed, found.examples.ids_changed, found.examples.mask_changed) == (due, 0, 0)
    assert any(one.detail.endswith(": 2 → 3") for one in found.examples.named)
    against_plain = diff(tmp_path / "plain", tmp_path / "a")
    assert ("versions", "format", "1", "2") in [(one.subject, one.what, one.a, one.b) for one in against_plain.changes]
    assert against_plain.examples is not None
    assert against_plain.examples.weights_changed > due


def _with(row: dict[str, np.ndarray], weight: float) -> set[int]:
    bounds = row["cu_seqlens"].tolist()
    return {
        int(row["example_ids"][place])
        for place in range(int(row["num_examples"]))
        if (row["loss_weights"][bounds[place] : bounds[place + 1]] == weight).any()
    }


def test_the_weight_of_a_message_becomes_that_of_its_targets(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "half", "weight": 0.5},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "whole"},
    ]
    manifest = build(tmp_path / "packed", source=write_jsonl(tmp_path / "chats.jsonl", [{"messages": messages}]))
    assert manifest.format_version == 2
    row = rows_of(tmp_path / "packed", "train")[0]
    weights = row["loss_weights"][row["loss_mask"]].tolist()
    half = weights.count(0.5)
    assert 2 <= half < len(weights)
    assert weights == [0.5] * half + [1.0] * (len(weights) - half)


@pytest.mark.parametrize(("weight", "goes_in"), [(1e-6, True), (1000, True), (9e-7, False), (1001, False)])
def test_what_is_read_of_the_data_can_be_written_and_the_rest_is_refused_by_name(
    tmp_path: Path, weight: float, goes_in: bool
) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": weight}]
    source = write_jsonl(tmp_path / "chats.jsonl", [chat("c", "d"), {"messages": messages}])
    manifest = build(tmp_path / "packed", source=source)
    assert manifest.format_version == (2 if goes_in else 1)
    assert manifest.ledger.conversations.get("bad_weight", 0) == (not goes_in)
    assert verify(tmp_path / "packed", deep=True).broken == 0
