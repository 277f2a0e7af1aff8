"""Files that are not whole, or not what their name says: two lines that name the file, never fewer rows."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packer.errors import UserError
from packer.readers import read_file

ROWS = [{"text": f"{place} {place * 7919 % 10007}"} for place in range(3000)]
TEXT = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
HINT = "check that the file is there, whole, and may be read"


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        list(read_file(str(path), {"text"}))
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def flushed_blocks(*lines: bytes) -> list[bytes]:
    """One frame of zstandard in pieces that can each be decompressed as they come."""
    frame = zstandard.ZstdCompressor().compressobj()
    blocks = [frame.compress(line) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in lines]
    return [*blocks, frame.flush()]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    whole = COMPRESS[suffix](TEXT)
    path = tmp_path / f"{name}{suffix}"
    for size in (len(whole) // 2, len(whole) - 1, 6):
        path.write_bytes(whole[:size])
        caught = refused(path)
        assert (caught.message, caught.hint) == (
            f"{path}: Compressed file ended before the end-of-stream marker was reached",
            HINT,
        )


def test_a_file_cut_between_two_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(flushed_blocks(b'{"text": "a"}\n', b'{"text": "b"}\n', b'{"text": "c"}\n')[:2]))
    assert refused(path).message.endswith("before the end-of-stream marker was reached")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_corrupt_file_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESS[suffix](TEXT)
    path = tmp_path / f"a.jsonl{suffix}"
    middle = len(whole) // 2
    for damaged in (b"xx", b"no archive at all", whole[:10] + b"\xff" * 40, whole[:middle] + b"\xff" * 40 + whole[middle + 40 :]):  # fmt: skip
        path.write_bytes(damaged)
        assert refused(path).hint == HINT


def test_garbage_behind_the_magic_and_behind_a_frame_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    for damaged in (b"(\xb5/\xfdxx", zstandard.compress(TEXT) + b"garbage"):
        path.write_bytes(damaged)
        refused(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_streams_behind_each_other_are_one_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    half = len(TEXT) // 2  # within a line
    path.write_bytes(COMPRESS[suffix](TEXT[:half]) + COMPRESS[suffix](b"") + COMPRESS[suffix](TEXT[half:]))
    found = [json.loads(row.value) for row in read_file(str(path), {"text"})]  # type: ignore[arg-type]
    assert found == ROWS


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damage_in_a_later_stream_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    stream = COMPRESS[suffix](TEXT)
    for damaged in (b"\xff" * 200, stream[:40] + b"\xff" * 40 + stream[80:], stream[:-3]):
        path.write_bytes(stream + damaged + stream)
        assert refused(path).hint == HINT


@pytest.mark.parametrize("suffix", [".bz2", ".xz", ".gz"])
def test_zeros_behind_a_stream_are_padding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    stream = COMPRESS[suffix](TEXT)
    path.write_bytes(stream + b"\0" * 70000 + stream + b"\0" * 8)
    assert len(list(read_file(str(path), {"text"}))) == 2 * len(ROWS)


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_much_text_of_few_bytes_is_read_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    lines = 600_001
    path.write_bytes(COMPRESS[suffix](b"a\n" * lines))
    assert sum(1 for _ in read_file(str(path), {"text"})) == lines


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt", "a.jsonl.gz"])
def test_text_in_another_encoding_is_refused_by_name(tmp_path: Path, name: str, encoding: str) -> None:
    text = "text\na\nb\n" if ".json" not in name else '{"text": "a"}\n{"text": "b"}\n'
    for whole in (text, text.split("\n")[0], text.replace("\n", "\r\n")):
        encoded = whole.encode(encoding)
        (tmp_path / name).write_bytes(gzip.compress(encoded) if name.endswith(".gz") else encoded)
        caught = refused(tmp_path / name)
        assert caught.message == f"{tmp_path / name}: the text is {encoding[:6].upper()}"
        assert caught.hint == "write it as UTF-8"


def test_zeros_in_place_of_the_first_line_cost_that_row_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\0\0\0\0\0\n{"text": "a"}\n')
    assert [row.value for row in read_file(str(tmp_path / "a.jsonl"), {"text"})][1:] == [b'{"text": "a"}']


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["A"]), pa.array(["B"]), pa.array(["c"])], ["prompt", "prompt", "completion"]
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        caught = refused(tmp_path / name)
        assert caught.message == f"{tmp_path / name}: two columns are called 'prompt'"
        assert caught.hint == "give every column a name of its own"
