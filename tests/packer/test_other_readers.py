"""Shards open in other programs, and what they read is what our own reader reads: polars, duckdb (by way of pyarrow) and `datasets`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.config import BuildConfig
from packer.schema import RowBatch
from packer.shards import Corpus
from tests.fixtures.weighted_examples import weighted_examples
from tests.support import SAMPLE, TINY

CAPACITY = 4096


@pytest.fixture(scope="module", params=[(1, False), (64, False), (1, True)], ids=["plain", "aligned", "weighted"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    out = tmp_path_factory.mktemp("readers") / "packed"
    align, weighted = request.param
    with weighted_examples() if weighted else nullcontext():
        packer.build(
            BuildConfig(
                datasets=(str(SAMPLE),),
                tokenizer=str(TINY),
                capacity=CAPACITY,
                align=align,
                out=out,
                shard_rows=16,
                workers=1,
            )
        )
    return out


def shards(corpus: Corpus) -> list[str]:
    paths = [str(corpus.folder / shard.file) for shard in corpus.info.shards]
    assert len(paths) > 1
    return paths


def columns(corpus: Corpus) -> list[str]:
    """A shard's columns: example_lens only where examples are aligned, loss_weights only where targets have any."""
    optional = {"example_lens": corpus.manifest.align > 1, "loss_weights": corpus.manifest.format_version == 2}
    return [field.name for field in fields(RowBatch) if optional.get(field.name, True)]


def equal_to_ours(corpus: Corpus, rows: Iterable[dict[str, object]]) -> None:
    """Every column of every row, by value and in order."""
    count, names = 0, columns(corpus)
    for ours, theirs in zip(corpus, rows, strict=True):
        assert sorted(theirs) == sorted(names)
        for name in names:
            assert np.array_equal(np.asarray(theirs[name]), np.asarray(getattr(ours, name))), (count, name)
        count += 1
    assert count == len(corpus)


def test_polars_reads_the_rows(folder: Path) -> None:
    polars = pytest.importorskip("polars")
    corpus = packer.open(folder)
    frame = polars.concat([polars.read_ipc(path) for path in shards(corpus)])
    assert frame.schema["input_ids"] == polars.Array(polars.Int32, CAPACITY)
    assert frame.schema["loss_mask"] == polars.Array(polars.Boolean, CAPACITY)
    equal_to_ours(corpus, frame.iter_rows(named=True))


def test_duckdb_queries_the_rows(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    import pyarrow.dataset

    corpus = packer.open(folder)
    rows = pyarrow.dataset.dataset(shards(corpus), format="ipc")
    connection = duckdb.connect()
    connection.register("packed", rows)
    connection.execute("SET threads = 1")  # rows then come in the order of the files
    names = columns(corpus)
    found = connection.execute(f"SELECT {', '.join(names)} FROM packed").fetchall()
    equal_to_ours(corpus, (dict(zip(names, row, strict=True)) for row in found))
    targets = connection.execute("SELECT sum(num_supervised) FROM packed WHERE num_examples > 0").fetchone()
    assert targets == (corpus.info.supervised_tokens,)


def test_datasets_loads_the_rows(folder: Path, tmp_path: Path) -> None:
    import datasets

    corpus = packer.open(folder)
    loaded = datasets.load_dataset("arrow", data_files=shards(corpus), split="train", cache_dir=str(tmp_path / "cache"))
    equal_to_ours(corpus, loaded)
