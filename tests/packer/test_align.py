"""`--align`: where examples begin, what fills the room between them, and that nobody counts it as tokens."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import packer
from packer.cli import main
from packer.config import BuildConfig
from packer.errors import UserError
from packer.shards import check_row
from packer.show import show
from tests.support import SAMPLE, TINY

CAPACITY, ALIGN = 1024, 64


def build(out: Path, **more: object) -> Path:
    packer.build(
        BuildConfig(
            datasets=(str(SAMPLE),),
            tokenizer=str(TINY),
            capacity=CAPACITY,
            overlong="split",
            out=out,
            workers=1,
            **more,
        )  # type: ignore[arg-type]
    )
    return out


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("align") / "aligned", align=ALIGN)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("align") / "plain")


def columns(folder: Path) -> list[dict]:
    """Every row by pyarrow alone."""
    files = sorted((folder / "train").iterdir())
    return [row for path in files for row in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist()]


def tokens_by_example(folder: Path) -> dict[int, tuple[list[int], list[bool]]]:
    found = {}
    for row in columns(folder):
        for place in range(row["num_examples"]):
            start, end = row["cu_seqlens"][place : place + 2]
            length = row["example_lens"][place] if "example_lens" in row else end - start
            found[row["example_ids"][place]] = (
                row["input_ids"][start : start + length],
                row["loss_mask"][start : start + length],
            )
    return found


def test_every_rule_of_alignment_holds_by_pyarrow_alone(aligned: Path) -> None:
    manifest = json.loads((aligned / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["options"]["align"] == ALIGN
    split = manifest["splits"]["train"]
    tokens = 0
    for row in columns(aligned):
        cu, used, count = row["cu_seqlens"], row["num_segments"], row["num_examples"]
        assert all(place % ALIGN == 0 for place in cu)
        assert used - count in (0, 1)
        lengths = row["example_lens"]
        assert lengths[count:] == [0] * (len(lengths) - count)
        for place in range(count):
            start, end = cu[place : place + 2]
            assert 0 <= end - start - lengths[place] < ALIGN
            assert row["input_ids"][start + lengths[place] : end] == [manifest["pad_id"]] * (
                end - start - lengths[place]
            )
            assert not any(row["loss_mask"][start + lengths[place] : end])
            assert row["position_ids"][start:end] == list(range(end - start))
        assert row["sum_sq_len"] == sum((end - start) ** 2 for start, end in itertools.pairwise(cu[: count + 1]))
        # What a chunked kernel's grid over the row comes to: the same for every row.
        assert sum(-(-(cu[place + 1] - cu[place]) // ALIGN) for place in range(used)) == CAPACITY // ALIGN
        tokens += sum(lengths)
    assert tokens == split["tokens"] == split["rows"] * CAPACITY - split["pad_tokens"]
    assert manifest["max_example_len"] % ALIGN == 0


def test_alignment_changes_no_token_and_no_target(aligned: Path, plain: Path) -> None:
    assert tokens_by_example(aligned) == tokens_by_example(plain)
    ours, theirs = packer.open(aligned).manifest, packer.open(plain).manifest
    assert ours.ledger == theirs.ledger
    for name in ("examples", "tokens", "supervised_tokens"):
        assert getattr(ours.splits["train"], name) == getattr(theirs.splits["train"], name)


def test_what_reads_the_rows_counts_tokens_and_not_filling(aligned: Path, plain: Path) -> None:
    listed = pa.ipc.open_file(pa.memory_map(str(aligned / "examples" / "part-00000.arrow"))).read_all()["tokens"]
    for folder in (aligned, plain):
        corpus = packer.open(folder)
        for number, row in enumerate(corpus):
            check_row(corpus, number, row)
            expected = [listed[example].as_py() for example in row.example_ids[: row.num_examples].tolist()]
            assert row.lengths.tolist() == expected
            assert row.tokens == sum(expected)


def test_inspect_counts_tokens_and_tells_the_filling_apart(aligned: Path, plain: Path) -> None:
    listed = pa.ipc.open_file(pa.memory_map(str(aligned / "examples" / "part-00000.arrow"))).read_all()["tokens"]
    for folder in (aligned, plain):
        for segment in show(folder, split=None, row=0, example=None, limit=None).rows[0].segments:
            expected = 0 if segment.example is None else listed[segment.example].as_py()
            assert segment.tokens == sum(len(piece.ids) for piece in segment.pieces) == expected
    found = CliRunner().invoke(main, ["inspect", str(aligned), "--example", "0"], prog_name="packer").stdout
    tokens = listed[0].as_py()
    assert f"· {tokens:,} tokens, " in found
    filling = -tokens % ALIGN
    assert (f", {filling} slots of alignment padding" in found) == bool(filling)


def test_a_pass_of_aligned_rows_counts_its_useful_tokens(aligned: Path) -> None:
    from trainer.batch import Shape, make_batch

    corpus = packer.open(aligned)
    manifest = corpus.manifest
    shape = Shape(rows=4, capacity=CAPACITY, max_segments=corpus.max_segments, max_segment_len=manifest.max_segment_len)
    rows = [corpus[number] for number in range(4)]
    batch = make_batch(rows, numbers=range(4), weights=[True, True, True, False], shape=shape, pin=False)
    assert batch.useful_tokens == sum(int(row.example_lens.sum()) for row in rows[:3])
    assert batch.count == sum(row.num_supervised for row in rows[:3])


def test_an_alignment_of_one_gives_the_bytes_of_none(plain: Path, tmp_path: Path) -> None:
    out = build(tmp_path / "one", align=1)
    names = [path.relative_to(plain) for path in sorted(plain.rglob("*")) if path.is_file()]
    assert names == [path.relative_to(out) for path in sorted(out.rglob("*")) if path.is_file()]
    for name in names:
        assert name.name == "build-log.json" or (plain / name).read_bytes() == (out / name).read_bytes(), name
    assert "align" not in json.loads((out / "manifest.json").read_text(encoding="utf-8"))["options"]
    assert "example_lens" not in columns(out)[0]


@pytest.mark.parametrize(("first", "second"), [(ALIGN, 1), (1, ALIGN)])
def test_another_alignment_is_another_build(aligned: Path, plain: Path, first: int, second: int) -> None:
    folder = aligned if first == ALIGN else plain
    with pytest.raises(UserError, match=r"another build \(other align\)"):
        build(folder, align=second)


def test_a_manifest_that_claims_another_alignment_is_refused(aligned: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(aligned, tmp_path / "changed")
    path = tmp_path / "changed" / "manifest.json"
    for claim in (1, 32, "64"):
        document = json.loads(path.read_text(encoding="utf-8"))
        document["options"]["align"] = claim
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(UserError, match="columns are not those of the manifest"):
            packer.open(tmp_path / "changed")[0]


@pytest.mark.parametrize(("align", "near"), [(0, 1), (-64, 1), (48, 16), (4096, 1024)])
def test_an_alignment_that_does_not_divide_the_capacity_is_refused_with_one_that_does(align: int, near: int) -> None:
    with pytest.raises(UserError, match=f"--align {align}: must divide the capacity") as caught:
        BuildConfig(out=Path("x"), capacity=CAPACITY, align=align)
    assert caught.value.hint == f"try --align {near}"


def test_rows_of_an_aligned_build_stay_near_the_bound_of_rounded_lengths(aligned: Path) -> None:
    split = packer.open(aligned).manifest.splits["train"]
    tokens = pa.ipc.open_file(pa.memory_map(str(aligned / "examples" / "part-00000.arrow"))).read_all()["tokens"]
    rounded = -(-tokens.to_numpy() // ALIGN) * ALIGN
    assert split.lower_bound_rows >= -(-int(rounded.sum()) // CAPACITY)
    assert split.rows <= split.lower_bound_rows * 1.05
    assert np.all(rounded <= CAPACITY)
