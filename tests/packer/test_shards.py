"""Reading a folder: views without copies, and nothing accepted that was not written by a finished build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from packer.manifest import load_manifest
from packer.shards import check_row
from tests.support import ROOT, SAMPLE, TINY
from tests.trainer.shards_fixture import random_rows, write_corpus


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards") / "packed"
    packer.build(
        BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=out, shard_rows=16, workers=1)
    )
    return out


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "packed"))


def test_rows_are_the_same_by_index_by_iteration_and_by_batch(built: Path) -> None:
    corpus = packer.open(built)
    whole = [rows for _, _, rows in corpus.batches()]
    ids = np.concatenate([rows.input_ids for rows in whole])
    masks = np.concatenate([rows.loss_mask for rows in whole])
    for number, row in enumerate(corpus):
        assert (row.input_ids == ids[number]).all()
        assert (row.loss_mask == masks[number]).all()
        assert row.num_supervised == masks[number].sum() == corpus.column("num_supervised")[number]
        check_row(corpus, number, row)
    assert len(corpus) == len(ids)


def test_reading_a_row_copies_nothing_but_the_mask(built: Path) -> None:
    row = packer.open(built)[3]
    for name in ("input_ids", "position_ids", "cu_seqlens", "example_ids"):
        array = getattr(row, name)
        assert not array.flags.owndata
        assert not array.flags.writeable, "a map that is read only must not be written through"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 48, 48 and 9 rows of 64 slots: full batches and a short one."""
    folder = tmp_path_factory.mktemp("uneven") / "packed"
    write_corpus(folder, rows=random_rows(105, seed=5), rows_a_shard=48)
    return folder


def test_rows_columns_and_ids_are_what_pyarrow_alone_reads(uneven: Path) -> None:
    corpus = packer.open(uneven)
    table = pa.concat_tables(pa.ipc.open_file(path).read_all() for path in sorted((uneven / "train").iterdir()))
    expected = table.to_pylist()
    assert len(corpus) == len(expected) == 105
    for number in np.random.default_rng(0).permutation(105).tolist():
        row = corpus[number]
        found = {name: np.asarray(getattr(row, name)).tolist() for name in table.column_names}
        assert found == expected[number]
        assert corpus.input_ids(number).tolist() == expected[number]["input_ids"]
    for name in ("num_segments", "num_examples", "num_supervised", "sum_sq_len"):
        assert corpus.column(name).tolist() == table[name].to_pylist()
    assert [(shard.file, first, len(rows)) for shard, first, rows in corpus.batches()] == [
        *((f"train/shard-0000{shard}.arrow", first, 16) for shard in (0, 1) for first in (0, 16, 32)),
        ("train/shard-00002.arrow", 0, 9),
    ]


def test_reading_every_row_keeps_a_byte_a_batch_and_no_open_file_a_shard(tmp_path: Path) -> None:
    rows = random_rows(16, seed=0) * 256
    corpus = write_corpus(tmp_path / "packed", rows=rows, rows_a_shard=1024)
    corpus[0]
    open_files = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    try:
        for number in range(0, len(corpus), 16):
            corpus[number]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    shards, batches = len(corpus.info.shards), len(corpus) // 16
    assert (shards, batches) == (4, 256)
    # A mapped shard is some objects; a view kept of every batch would be 1 kB a batch and more.
    assert held < shards * 8_192 + batches * 2
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_threads_that_read_at_once_read_what_one_reads(uneven: Path) -> None:
    alone = [row.input_ids.sum() for row in packer.open(uneven)]
    for _ in range(20):
        with ThreadPoolExecutor(4) as pool:
            rows = pool.map(packer.open(uneven).__getitem__, range(105))
            assert [row.input_ids.sum() for row in rows] == alone


def rewritten(shard: Path, **options: object) -> None:
    """The same record batches, written otherwise: each with metadata of its own, or compressed."""
    reader = pa.ipc.open_file(pa.BufferReader(shard.read_bytes()))
    with pa.ipc.new_file(str(shard), reader.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for number in range(reader.num_record_batches):
            writer.write_batch(reader.get_batch(number), custom_metadata={"number": "x" * number * 9})


def told_size(folder: Path) -> None:
    for number, shard in enumerate(sorted((folder / "train").iterdir())):
        size = shard.stat().st_size
        edit(folder, lambda d, number=number, size=size: d["splits"]["train"]["shards"][number].update(bytes=size))


def test_batches_that_lie_otherwise_than_the_first_are_read_where_they_lie(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    write_corpus(folder, rows=random_rows(16, seed=2) * 270, rows_a_shard=4320)
    before = [row.cu_seqlens.tolist() for row in packer.open(folder)]
    rewritten(folder / "train" / "shard-00000.arrow")
    told_size(folder)
    assert [row.cu_seqlens.tolist() for row in packer.open(folder)] == before


def test_a_compressed_shard_is_refused(uneven: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(uneven, tmp_path / "packed"))
    rewritten(folder / "train" / "shard-00000.arrow", compression="lz4")
    told_size(folder)
    with pytest.raises(UserError, match=r"shard-00000\.arrow: not a readable shard \(its columns are compressed"):
        packer.open(folder)[0]


def test_a_footer_that_names_one_batch_twice_is_refused(uneven: Path, tmp_path: Path) -> None:
    """The metadata of all full batches are alike: only the footer tells which is which."""
    folder = Path(shutil.copytree(uneven, tmp_path / "packed"))
    shard = folder / "train" / "shard-00001.arrow"
    data = shard.read_bytes()
    # A message starts with four bytes of ones, then the length of its metadata (ones again where it is an unused place of example_ids).
    starts = [
        place
        for place in range(0, len(data), 8)
        if data[place : place + 4] == b"\xff" * 4 != data[place + 4 : place + 8]
    ]
    second, third = (start.to_bytes(8, "little") for start in starts[2:4])  # the first is the schema's
    assert data.count(third) == data.count(second) == 1
    shard.write_bytes(data.replace(third, second))
    with pytest.raises(UserError, match=r"shard-00001\.arrow: not a readable shard \(the footer's batches overlap"):
        packer.open(folder)[48]


def test_opening_and_reading_one_row_does_not_read_the_shards(built: Path) -> None:
    """Peak memory of a process that reads one row of a large split, against one that opens nothing."""
    code = "import resource, packer, packer.shards; {}; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"

    def peak(statement: str) -> int:
        run = subprocess.run(
            [sys.executable, "-c", code.format(statement)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    size = sum(path.stat().st_size for path in (built / "train").iterdir()) // 1024
    assert peak(f"packer.open({str(built)!r})[0]") - peak("pass") < max(size // 2, 4096)


def test_outside_the_corpus_is_an_index_error(built: Path) -> None:
    corpus = packer.open(built)
    for number in (-1, len(corpus)):
        with pytest.raises(IndexError):
            corpus[number]


def edit(folder: Path, change) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.update(format_version=3), "format version 3"),
        (lambda d: d.pop("format_version"), "no format_version"),
        (lambda d: d.update(capacity="4096"), "capacity"),
        (lambda d: d.pop("splits"), "splits"),
        (lambda d: d["splits"]["train"]["shards"][0].update(file="../escape.arrow"), "does not lie in the folder"),
        (lambda d: d["splits"]["train"]["shards"][0].update(file="/etc/passwd"), "does not lie in the folder"),
        (lambda d: d["splits"]["train"]["shards"][0].update(file="a/../../b"), "does not lie in the folder"),
        (lambda d: d["splits"]["train"]["shards"][0].update(bytes=7), "cut short or written over"),
        (lambda d: d["splits"]["train"].update(rows=7), "claims 7 rows"),
        (lambda d: d["splits"]["train"]["shards"].pop(), "claims"),
    ],
)
def test_a_manifest_that_cannot_be_relied_on_is_refused(folder: Path, change, why: str) -> None:
    edit(folder, change)
    with pytest.raises(UserError, match=why):
        packer.open(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": 1}', "\x00", '{"format_version": "one"}'])
def test_a_manifest_that_is_no_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="not a readable manifest"):
        load_manifest(folder)


def test_a_missing_split_folder_or_shard_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match="no split 'eval'") as caught:
        packer.open(folder, split="eval")
    assert "train" in caught.value.hint
    (folder / "train" / "shard-00001.arrow").unlink()
    with pytest.raises(UserError, match=r"shard-00001\.arrow: the manifest names this shard"):
        packer.open(folder)
    with pytest.raises(UserError, match="no such folder"):
        packer.open(folder / "nowhere")


def test_a_cut_shard_is_refused_at_open(folder: Path) -> None:
    shard = folder / "train" / "shard-00000.arrow"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(UserError, match=r"shard-00000\.arrow: .*cut short"):
        packer.open(folder)


@pytest.mark.parametrize("where", [0.3, 0.6, 0.9])
def test_one_flipped_bit_changes_the_digest(folder: Path, where: float) -> None:
    shard = folder / "train" / "shard-00001.arrow"
    data = bytearray(shard.read_bytes())
    data[int(len(data) * where)] ^= 1
    shard.write_bytes(data)
    corpus = packer.open(folder)
    corpus.verify_shard(0)
    with pytest.raises(UserError, match=r"shard-00001\.arrow: its bytes are not those that were written"):
        corpus.verify_shard(1)


def test_a_row_that_breaks_a_rule_is_named_with_its_shard(folder: Path) -> None:
    shard = folder / "train" / "shard-00001.arrow"
    ids = packer.open(folder)[17].input_ids.tobytes()
    data = shard.read_bytes()
    assert data.count(ids) == 1
    shard.write_bytes(data.replace(ids, np.full(len(ids) // 4, 99_999, dtype=np.int32).tobytes()))
    corpus = packer.open(folder)
    with pytest.raises(UserError, match=r"shard-00001\.arrow, row 1: "):
        check_row(corpus, 17, corpus[17])


def test_a_shard_of_another_build_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    packer.build(
        BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=8192, out=other, shard_rows=16, workers=1)
    )
    shutil.copy(other / "train" / "shard-00000.arrow", folder / "train" / "shard-00000.arrow")
    size = (folder / "train" / "shard-00000.arrow").stat().st_size
    edit(folder, lambda d: d["splits"]["train"]["shards"][0].update(bytes=size))
    with pytest.raises(UserError, match="columns are not those of the manifest"):
        packer.open(folder)[0]
    (folder / "train" / "shard-00000.arrow").write_bytes(b"x" * size)
    with pytest.raises(UserError, match="not a readable shard"):
        packer.open(folder)[0]
