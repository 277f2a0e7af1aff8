"""A folder that was damaged or edited after it was written: told in two lines, never a traceback, never other data in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packer.digest import digest_files
from packer.errors import UserError
from packer.shards import check_row, open_corpus
from packer.tokenizer import load_tokenizer, tokenizer_files
from tests.support import TINY
from tests.trainer.shards_fixture import random_rows, write_corpus


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "packed"
    write_corpus(folder, rows=random_rows(40, seed=3))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "packed"))


def read_all(folder: Path) -> None:
    corpus = open_corpus(folder)
    for name in ("num_supervised", "sum_sq_len", "num_segments"):
        corpus.column(name)
    for index in range(len(corpus)):
        check_row(corpus, index, corpus[index])
    for _ in corpus.batches():
        pass


def test_five_hundred_flipped_bits_are_each_told_or_seen_by_the_digest(folder: Path) -> None:
    path = folder / "train" / "shard-00000.arrow"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    told: list[UserError] = []
    for number in range(500):
        # A third anywhere, a third in the schema and the first batch's header, a third in the footer: there are the offsets and lengths.
        place = (rng.integers(len(whole)), rng.integers(3000), len(whole) - 1 - rng.integers(3000))[number % 3]
        damaged = bytearray(whole)
        damaged[int(place)] ^= 1 << int(rng.integers(8))
        path.unlink()  # a new file: earlier maps keep theirs
        path.write_bytes(damaged)
        try:
            read_all(folder)
        except UserError as error:
            told.append(error)
        with pytest.raises(UserError, match=r"shard-00000\.arrow.*digest"):
            _verify(folder)
    assert len(told) > 200
    assert all(error.hint and "\n" not in error.message for error in told)


def _verify(folder: Path) -> None:
    corpus = open_corpus(folder)
    for shard in range(len(corpus.info.shards)):
        corpus.verify_shard(shard)


def _rows_moved(manifest: dict) -> None:  # type: ignore[type-arg]
    shards = manifest["splits"]["train"]["shards"]
    shards[0]["rows"], shards[1]["rows"] = 15, 17


def _one_row_less(manifest: dict) -> None:  # type: ignore[type-arg]
    manifest["splits"]["train"]["shards"][2]["rows"] = 7
    manifest["splits"]["train"]["rows"] = 39


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda manifest: manifest.update(max_segment_len=20),
            r"a segment of \d+ tokens is longer than the manifest's max_segment_len 20",
        ),
        (
            lambda manifest: manifest.update(max_example_len=20),
            r"an example of \d+ tokens is longer than the manifest's max_example_len 20",
        ),
        (lambda manifest: manifest.update(max_token_id=50), "past the manifest's max_token_id 50"),
        (lambda manifest: manifest.update(corpus_digest="0" * 32), "corpus_digest is 0000"),
        (lambda manifest: manifest.update(max_segments=16), "corpus_digest is"),
        (lambda manifest: manifest["splits"]["train"]["shards"].reverse(), "corpus_digest is"),
        (_rows_moved, "rows"),
        (_one_row_less, "8 rows where the manifest has 7"),
    ],
)
def test_an_edited_manifest_is_refused(folder: Path, edit: Callable[[dict], None], words: str) -> None:  # type: ignore[type-arg]
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=words):
        read_all(folder)


def test_a_tokenizer_s_digest_is_of_its_files_but_for_the_template(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "tokenizer"))
    files = [file for file in tokenizer_files(folder) if file.name != "chat_template.jinja"]
    written = load_tokenizer(str(folder)).digest
    assert written == digest_files(files) == load_tokenizer(str(TINY)).digest
    (folder / "chat_template.jinja").write_text("another")
    assert load_tokenizer(str(folder)).digest == written
    (folder / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text() + " ")
    assert load_tokenizer(str(folder)).digest != written
