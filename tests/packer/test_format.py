"""Every rule of packer/FORMAT.md, held against a real build by pyarrow and numpy alone: nothing of ours reads the folder here."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
import xxhash

import packer
from packer.config import BuildConfig
from tests.support import SAMPLE, TINY

CAPACITY = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("format") / "packed"
    packer.build(
        BuildConfig(
            datasets=(str(SAMPLE),),
            tokenizer=str(TINY),
            capacity=CAPACITY,
            out=out,
            shard_rows=16,
            eval_fraction=0.1,
            workers=1,
        )
    )
    return out


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def table(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def column(rows: pa.Table, name: str) -> np.ndarray:
    values = rows[name].combine_chunks()
    if pa.types.is_fixed_size_list(values.type):
        return values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), -1)
    return values.to_numpy(zero_copy_only=False)


def shards(folder: Path, manifest: dict, split: str) -> list[Path]:
    return [folder / shard["file"] for shard in manifest["splits"][split]["shards"]]


def test_the_folder_holds_what_the_format_says(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "manifest.json",
        "train",
        "eval",
        "examples",
        "tokens",
        "tokenizer",
        "rejects.jsonl",
        "build-log.json",
    }
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_shards_have_the_columns_batches_and_bytes_of_the_format(folder: Path, manifest: dict, split: str) -> None:
    c, s = manifest["capacity"], manifest["splits"][split]["max_segments"]

    def fixed(kind: pa.DataType, size: int) -> pa.DataType:
        return pa.list_(pa.field("item", kind, nullable=False), size)

    expected = [
        ("input_ids", fixed(pa.int32(), c)),
        ("loss_mask", fixed(pa.bool_(), c)),
        ("position_ids", fixed(pa.uint16(), c)),
        ("cu_seqlens", fixed(pa.int32(), s + 1)),
        ("num_segments", pa.int32()),
        ("num_examples", pa.int32()),
        ("example_ids", fixed(pa.int64(), s)),
        ("num_supervised", pa.int32()),
        ("sum_sq_len", pa.int64()),
    ]
    for path, entry in zip(shards(folder, manifest, split), manifest["splits"][split]["shards"], strict=True):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        assert [(field.name, field.type) for field in reader.schema] == expected
        assert reader.schema.metadata[b"capacity"] == str(c).encode()
        sizes = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        assert set(sizes[:-1]) <= {16}
        assert 1 <= sizes[-1] <= 16
        assert sum(sizes) == entry["rows"]
        assert path.stat().st_size == entry["bytes"]
        assert xxhash.xxh3_128_hexdigest(path.read_bytes()) == entry["xxh3_128"]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_every_row_keeps_every_rule(folder: Path, manifest: dict, split: str) -> None:
    counts = dict.fromkeys(("rows", "examples", "tokens", "supervised_tokens", "pad_tokens"), 0)
    seen: list[int] = []
    for path in shards(folder, manifest, split):
        rows = table(path)
        columns = {name: column(rows, name) for name in rows.column_names}
        for row in range(len(rows)):
            cu, used = columns["cu_seqlens"][row].tolist(), int(columns["num_segments"][row])
            ids, mask, positions = (columns[name][row] for name in ("input_ids", "loss_mask", "position_ids"))
            examples = columns["example_ids"][row].tolist()
            assert cu[0] == 0
            assert cu[used:] == [CAPACITY] * (len(cu) - used)
            lengths = [end - start for start, end in itertools.pairwise(cu[: used + 1])]
            assert min(lengths) >= 1
            assert positions.tolist() == [place for length in lengths for place in range(length)]
            assert not any(mask[start] for start in cu[:used])
            tail = examples[used - 1] == -1
            assert examples[used - tail :] == [-1] * (len(examples) - used + tail)
            assert min(examples[: used - tail]) >= 0
            assert columns["num_examples"][row] == used - tail
            if tail:
                assert set(ids[cu[used - 1] :].tolist()) == {manifest["pad_id"]}
                assert not mask[cu[used - 1] :].any()
            assert columns["num_supervised"][row] == mask.sum() > 0
            assert columns["sum_sq_len"][row] == sum(length**2 for length in lengths[: used - tail])
            assert max(lengths) <= manifest["max_segment_len"]
            assert 0 <= ids.min() <= ids.max() <= manifest["max_token_id"] < manifest["vocab_size"]
            seen += examples[: used - tail]
            counts["rows"] += 1
            counts["examples"] += used - tail
            counts["tokens"] += sum(lengths[: used - tail])
            counts["pad_tokens"] += lengths[-1] if tail else 0
            counts["supervised_tokens"] += int(mask.sum())
    assert counts == {name: manifest["splits"][split][name] for name in counts}
    listed = pa.concat_tables(table(path) for path in sorted((folder / "examples").iterdir()))
    mine = listed.filter(pa.compute.equal(listed["split"], split))
    assert sorted(seen) == mine["example_id"].to_pylist()
    assert sum(mine["tokens"].to_pylist()) == counts["tokens"]
    assert sum(mine["supervised"].to_pylist()) == counts["supervised_tokens"]


def test_each_row_of_an_example_leads_back_to_its_conversation(folder: Path, manifest: dict) -> None:
    """examples/ says which line of the source an example is; the text it decodes to must be that line's."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    listed = table(folder / "examples" / "part-00000.arrow").to_pylist()
    rows = table(shards(folder, manifest, "train")[0]).slice(0, 4).to_pylist()
    for row in rows:
        for place in range(row["num_examples"]):
            start, end = row["cu_seqlens"][place : place + 2]
            text = tokenizer.decode(row["input_ids"][start:end], skip_special_tokens=False)
            entry = listed[row["example_ids"][place]]
            assert (entry["example_id"], entry["tokens"]) == (row["example_ids"][place], end - start)
            for message in json.loads(lines[entry["row"]])["messages"]:
                assert message["content"] in text


def test_the_manifest_has_only_integers_and_strings_and_no_places_or_times(folder: Path, manifest: dict) -> None:
    def walk(value: object) -> None:
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        else:
            assert isinstance(value, int | str)
            assert not isinstance(value, bool)
            assert not str(value).startswith("/")

    walk(manifest)
    text = (folder / "manifest.json").read_text(encoding="utf-8")
    assert json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n" == text
    assert str(folder) not in text


def test_the_ledger_adds_up(manifest: dict) -> None:
    for whole, counts in (("read", manifest["ledger"]["conversations"]), ("encoded", manifest["ledger"]["tokens"])):
        assert counts[whole] == sum(count for name, count in counts.items() if name != whole)
    assert manifest["ledger"]["conversations"]["read"] == len(SAMPLE.read_text(encoding="utf-8").splitlines())
    assert manifest["ledger"]["tokens"]["in_rows"] == sum(split["tokens"] for split in manifest["splits"].values())


def test_shards_open_elsewhere(folder: Path, manifest: dict) -> None:
    paths = shards(folder, manifest, "train")
    dataset = pyarrow.dataset.dataset([str(path) for path in paths], format="ipc")
    assert dataset.count_rows() == manifest["splits"]["train"]["rows"]
    import datasets

    loaded = datasets.load_dataset(
        "arrow", data_files=[str(path) for path in paths], split="train", cache_dir=str(folder.parent / "cache")
    )
    assert len(loaded) == manifest["splits"]["train"]["rows"]
    assert loaded[0]["input_ids"] == table(paths[0])["input_ids"][0].as_py()


def test_bytes_a_token_are_as_few_as_the_columns_need(folder: Path, manifest: dict) -> None:
    size = sum(path.stat().st_size for path in shards(folder, manifest, "train"))
    slots = manifest["splits"]["train"]["rows"] * CAPACITY
    # ids 4, positions 2, mask 1/8; the rest is boundaries, counts and Arrow's own framing.
    assert 6.125 < size / slots < 6.5
