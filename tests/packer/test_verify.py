"""`packer verify`: a sound folder is fine, and every single thing that can be wrong with one is named with shard, row and rule.

Each plant breaks one thing and mends whatever else would give it away (sizes, digests), so that the rule itself has to notice.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from packer.layout import Placed, lay_out
from packer.schema import broken_rule, shard_schema
from packer.verify import Report, verify
from packer.verify.findings import MOST_KEPT_OF_A_RULE, Findings
from tests.fixtures.weighted_examples import weighted_examples
from tests.packer.broken_folder import (
    Columns,
    Document,
    edit_head,
    edit_manifest,
    mend_shard,
    rewrite_rows,
    rewrite_table,
    set_cell,
    set_stored,
)
from tests.support import SAMPLE, TINY, write_jsonl

CAPACITY = 1024
SHARD = "train/shard-00001.arrow"
TABLE = "examples/part-00000.arrow"
STORE = "tokens/part-00000.arrow"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 conversations and one that is rejected: shards of train rows, one of eval, pad tails among them."""
    folder = tmp_path_factory.mktemp("verify")
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()[:150]
    source = write_jsonl(folder / "chats.jsonl", [*rows, {"messages": []}])
    packer.build(
        BuildConfig(
            datasets=(str(source),),
            tokenizer=str(TINY),
            capacity=CAPACITY,
            out=folder / "packed",
            shard_rows=16,
            eval_fraction=0.1,
            max_loss=1,
            workers=1,
        )
    )
    return folder / "packed"


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "packed"))


def found(report: Report) -> list[tuple[str, str, int | None]]:
    return [(finding.file, finding.rule, finding.row) for finding in report.findings]


def test_a_build_is_fine(built: Path) -> None:
    report = verify(built)
    assert found(report) == []
    manifest = json.loads((built / "manifest.json").read_text())
    assert len(manifest["splits"]["train"]["shards"]) >= 2
    assert report.shards == sum(len(split["shards"]) for split in manifest["splits"].values())
    assert report.rows == sum(split["rows"] for split in manifest["splits"].values())
    assert report.examples == sum(split["examples"] for split in manifest["splits"].values())
    assert report.token_store


@pytest.mark.parametrize("overlong", ["drop", "truncate", "split"])
def test_a_build_of_pieces_and_copies_without_a_store_is_fine(tmp_path: Path, overlong: str) -> None:
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()
    one, two = write_jsonl(tmp_path / "a.jsonl", rows[:30]), write_jsonl(tmp_path / "b.jsonl", rows[30:60])
    for store in (True, False):
        packer.build(
            BuildConfig(
                mix=((str(one), 2.5), (str(two), 0.5)),  # type: ignore[arg-type]
                tokenizer=str(TINY),
                capacity=512,
                out=tmp_path / f"packed{store}",
                overlong=overlong,  # type: ignore[arg-type]
                max_loss=1,
                token_store=store,
                workers=1,
            )
        )
        report = verify(tmp_path / f"packed{store}", deep=True)
        assert found(report) == []
        assert report.token_store == store
        assert report.deep is not None
        assert report.deep.source is not None
        assert report.deep.source.examples == report.examples > 30
        assert report.deep.stored == (report.examples if store else None)


def put(name: str, place: object, value: object) -> Callable[[Columns], object]:
    def change(columns: Columns) -> None:
        columns[name][place] = value  # type: ignore[index]

    return change


def tail(columns: Columns, row: int) -> int:
    """The slot where a row's pad tail begins."""
    return int(columns["cu_seqlens"][row, columns["num_examples"][row]])


def in_tail(name: str, value: object) -> Callable[[Columns], object]:
    def change(columns: Columns) -> None:
        row = padded(columns)
        columns[name][row, tail(columns, row)] = value
        if name == "loss_mask":
            columns["num_supervised"][row] += 1

    return change


def padded(columns: Columns) -> int:
    return int(np.flatnonzero(columns["num_segments"] > columns["num_examples"])[0])


def first_target(columns: Columns) -> None:
    columns["loss_mask"][4, 0] = True
    columns["num_supervised"][4] += 1


def negative_example(columns: Columns) -> None:
    row = padded(columns)
    columns["example_ids"][row, columns["num_examples"][row]] = -2


def no_tail_where_one_is(columns: Columns) -> None:
    columns["example_ids"][4, 0] = -1
    columns["num_examples"][4] -= 1


# The file that is rewritten, how, the row that must be named (None: the one with a pad tail), and the rule.
ROW_PLANTS = {
    "num_segments 0": (put("num_segments", 4, 0), 4, "num_segments must be between 1 and max_segments"),
    "num_segments past S": (put("num_segments", 4, 1000), 4, "num_segments must be between 1 and max_segments"),
    "first offset": (put("cu_seqlens", (4, 0), 1), 4, "cu_seqlens must start at 0"),
    "offset repeated": (put("cu_seqlens", (4, 1), 0), 4, "cu_seqlens must increase strictly over the segments in use"),
    "last offset": (
        lambda c: put("cu_seqlens", (4, c["num_segments"][4]), CAPACITY - 1)(c),
        4,
        "cu_seqlens must reach the capacity at the last segment in use",
    ),
    "offset behind the last": (
        put("cu_seqlens", (4, -1), 7),
        4,
        "cu_seqlens must repeat the capacity past the segments in use",
    ),
    "tail in the middle": (no_tail_where_one_is, 4, "only the last segment may be a pad tail"),
    "example -2": (negative_example, None, "example_ids must be -1 for the pad tail"),
    "position": (put("position_ids", (4, 7), 9), 4, "position_ids must restart at 0 in each segment"),
    "position at a start": (put("position_ids", (4, 0), 1), 4, "position_ids must restart at 0 in each segment"),
    "position at the end": (put("position_ids", (4, -1), 0), 4, "position_ids must restart at 0 in each segment"),
    "first token a target": (first_target, 4, "loss_mask must be false on every segment's first token"),
    "target in the tail": (in_tail("loss_mask", True), None, "loss_mask must be false on the pad tail"),
    "token in the tail": (in_tail("input_ids", 5), None, "the pad tail must hold the pad id"),
    "example past the last": (put("example_ids", (4, -1), 3), 4, "example_ids must be -1 past the segments in use"),
    "num_examples": (put("num_examples", 4, 0), 4, "num_examples must be the segments less the pad tail"),
    "num_supervised": (put("num_supervised", 4, 0), 4, "num_supervised must count the loss mask"),
    "mask": (put("loss_mask", (4, slice(None)), False), 4, "num_supervised must count the loss mask"),
    "sum_sq_len": (put("sum_sq_len", 4, 1), 4, "sum_sq_len must be the sum of squared example lengths"),
    "token past the vocabulary": (put("input_ids", (4, 3), 4096), 4, "token ids must lie in the vocabulary"),
    "negative token": (put("input_ids", (4, 3), -1), 4, "token ids must lie in the vocabulary"),
    "example not listed": (put("example_ids", (4, 0), 10**9), 4, "every example in a row must be listed in examples/"),
}


def with_tail(folder: Path) -> tuple[str, int]:
    """A shard and a row of it that has a pad tail."""
    for split in ("train", "eval"):
        for path in sorted((folder / split).iterdir()):
            rows = pa.ipc.open_file(path.read_bytes()).read_all()
            tails = np.array(rows["num_segments"]) - np.array(rows["num_examples"])
            if tails.any():
                return f"{split}/{path.name}", int(tails.argmax())
    raise AssertionError("the build has no pad tail to break")


@pytest.mark.parametrize("plant", ROW_PLANTS)
def test_a_row_that_breaks_a_rule_is_named_with_shard_and_row(folder: Path, plant: str) -> None:
    change, row, rule = ROW_PLANTS[plant]
    file, row = (SHARD, row) if row is not None else with_tail(folder)
    rewrite_rows(folder, file, change)
    assert (file, rule, row) in found(verify(folder))


@pytest.fixture(scope="module")
def built_weighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weighted")
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()[:150]
    source = write_jsonl(folder / "chats.jsonl", rows)
    with weighted_examples():
        packer.build(
            BuildConfig(
                datasets=(str(source),),
                tokenizer=str(TINY),
                capacity=CAPACITY,
                out=folder / "packed",
                shard_rows=16,
                max_loss=1,  # type: ignore[arg-type]
                workers=1,
            )
        )
    return folder / "packed"


def weigh(weight: float, *, target: bool) -> Callable[[Columns], object]:
    """Another weight for the first slot of row 4 that is a target, or none."""

    def change(columns: Columns) -> None:
        columns["loss_weights"][4, int((columns["loss_mask"][4] == target).argmax())] = weight

    return change


def in_a_tail(columns: Columns) -> None:
    row = padded(columns)
    columns["loss_weights"][row, tail(columns, row)] = 1


_BOUNDS, _ZEROS = (
    "loss_weights must be from 0.000001 to 1000 on targets",
    "loss_weights must be 0 where the loss mask is false",
)
_STORED = "a conversation's loss_weights must be from 0.000001 to 1000 on its targets, and 0 elsewhere"
WEIGHT_PLANTS = {
    "a target of weight 0": (weigh(0, target=True), 4, _BOUNDS),
    "negative": (weigh(-1, target=True), 4, _BOUNDS),
    "not a number": (weigh(np.nan, target=True), 4, _BOUNDS),
    "infinite": (weigh(np.inf, target=True), 4, _BOUNDS),
    "too large": (weigh(1001, target=True), 4, _BOUNDS),
    "too small": (weigh(9e-7, target=True), 4, _BOUNDS),
    "on a first token": (weigh(1, target=False), 4, _ZEROS),
    "not a number on a first token": (weigh(np.nan, target=False), 4, _ZEROS),
    "on the pad tail": (in_a_tail, None, _ZEROS),
}


@pytest.mark.parametrize("plant", WEIGHT_PLANTS)
def test_a_row_with_a_weight_that_cannot_be_is_named_with_shard_and_row(
    built_weighted: Path, tmp_path: Path, plant: str
) -> None:
    folder = Path(shutil.copytree(built_weighted, tmp_path / "packed"))
    change, row, rule = WEIGHT_PLANTS[plant]
    file, row = (SHARD, row) if row is not None else with_tail(folder)
    rewrite_rows(folder, file, change)
    assert (file, rule, row) in found(verify(folder))


def all_one(folder: Path) -> None:
    for path in sorted((folder / "train").iterdir()):
        rewrite_rows(folder, f"train/{path.name}", lambda c: c["loss_weights"].__setitem__(c["loss_weights"] != 0, 1))


def stored_weight(change: Callable[[np.ndarray], object]) -> Callable[[Path], object]:
    """Other weights for the first conversation of the store."""

    def plant(folder: Path) -> None:
        table = pa.ipc.open_file((folder / STORE).read_bytes()).read_all()
        weights = np.array(table["loss_weights"][0].as_py())
        change(weights)
        set_stored(folder / STORE, "loss_weights", 0, weights.tolist())

    return plant


def stored_ones(folder: Path) -> None:
    masks = pa.ipc.open_file((folder / STORE).read_bytes()).read_all()["loss_mask"].to_pylist()
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False))
    ones = pa.array([[float(target) for target in mask] for mask in masks], kind)
    rewrite_table(
        folder / STORE,
        lambda table: table.set_column(
            table.schema.get_field_index("loss_weights"), table.schema.field("loss_weights"), ones
        ),
    )
    edit_head(folder / STORE, lambda head: head)


STORED_WEIGHT_PLANTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "weights that are all 1": (
        all_one,
        "manifest.json",
        "format_version must be 2 where a target has a weight other than 1, else 1",
    ),
    "a weight on no target": (stored_weight(lambda w: w.__setitem__(0, 1)), STORE, _STORED),
    "a target of weight 0 in the store": (stored_weight(lambda w: w.__setitem__(w != 0, 0)), STORE, _STORED),
    "not a number in the store": (stored_weight(lambda w: w.__setitem__(w != 0, np.nan)), STORE, _STORED),
    "a store of weights that are all 1": (
        stored_ones,
        STORE,
        "a part must have loss_weights only where one of them is neither 0 nor 1",
    ),
}


@pytest.mark.parametrize("plant", STORED_WEIGHT_PLANTS)
def test_weights_that_cannot_be_are_named_in_the_store_and_the_manifest(
    built_weighted: Path, tmp_path: Path, plant: str
) -> None:
    assert found(verify(built_weighted)) == []
    folder = Path(shutil.copytree(built_weighted, tmp_path / "packed"))
    act, file, rule = STORED_WEIGHT_PLANTS[plant]
    act(folder)
    assert (file, rule, None) in found(verify(folder))


def test_a_weight_in_a_row_that_is_not_the_stores_is_found_with_deep(built_weighted: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built_weighted, tmp_path / "packed"))
    rewrite_rows(folder, SHARD, weigh(0.125, target=True))
    assert verify(folder).broken == 0
    with weighted_examples():
        report = verify(folder, deep=True)
    named = [one for one in report.findings if one.file == SHARD]
    assert {(one.rule, one.row) for one in named} == {(rule, 4) for rule in DEEP_RULES[:2]}
    assert all("counts 0.125 in the row" in one.detail for one in named)


def test_the_row_plants_cover_every_rule_of_the_schema() -> None:
    source = (Path(packer.__file__).parent / "schema.py").read_text(encoding="utf-8")
    rules = {line.split('"')[1] for line in source.splitlines() if line.strip().startswith('("') and "must" in line}
    rules |= {line.split('"')[1] for line in source.splitlines() if line.strip().startswith('("only')}
    assert rules
    assert rules <= {rule for _, _, rule in (ROW_PLANTS | WEIGHT_PLANTS).values()}


def test_rows_beside_one_with_broken_boundaries_are_still_checked(folder: Path) -> None:
    def change(columns: Columns) -> None:
        columns["cu_seqlens"][2, 0] = 1
        columns["position_ids"][7, 5] = 0
        columns["sum_sq_len"][9] += 1

    rewrite_rows(folder, SHARD, change)
    assert found(verify(folder)) == [
        (SHARD, "cu_seqlens must start at 0", 2),
        (SHARD, "position_ids must restart at 0 in each segment", 7),
        (SHARD, "sum_sq_len must be the sum of squared example lengths", 9),
    ]


def flip(file: str) -> Callable[[Path], object]:
    def plant(folder: Path) -> None:
        path = folder / file
        data = bytearray(path.read_bytes())
        # In the last quarter of a shard's body lie ids and positions of its last rows; a bit of a token changes nothing else.
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return plant


def cut(file: str, by: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / file, (folder / file).stat().st_size - by)


def cut_and_mended(folder: Path) -> None:
    cut(SHARD, 1000)(folder)
    mend_shard(folder, SHARD)


def other_schema(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    def plant(folder: Path) -> None:
        rewrite_table(folder / SHARD, change)
        mend_shard(folder, SHARD)

    return plant


def other_metadata(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({**(table.schema.metadata or {}), b"capacity": b"64"})


def other_batches(folder: Path) -> None:
    rewrite_table(folder / SHARD, lambda table: table, batch_rows=8)
    mend_shard(folder, SHARD)


def compressed(folder: Path) -> None:
    rewrite_table(folder / SHARD, lambda table: table, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    mend_shard(folder, SHARD)


def one_row_less(folder: Path) -> None:
    rewrite_table(folder / SHARD, lambda table: table.slice(0, len(table) - 1))
    mend_shard(folder, SHARD)


def an_example_twice(columns: Columns) -> None:
    """Example ids of two examples of one length and as many targets in two rows, where there are two: else any two."""
    columns["example_ids"][5, 0] = columns["example_ids"][4, 0]


def supervised_moved(columns: Columns) -> None:
    """One target from an example to its neighbour: the row's count stays."""
    cu, mask = columns["cu_seqlens"][4], columns["loss_mask"][4]
    mine, other = slice(cu[0] + 1, cu[1]), slice(cu[1] + 1, cu[2])
    mask[cu[0] + 1 + int(mask[mine].argmax())] = False
    mask[cu[1] + 1 + int((~mask[other]).argmax())] = True


def to_manifest(change: Callable[[Document], object], *, mend: bool = True) -> Callable[[Path], object]:
    return lambda folder: edit_manifest(folder, change, mend=mend)


def in_train(**values: object) -> Callable[[Path], object]:
    return to_manifest(lambda document: document["splits"]["train"].update(values))


def text_of_manifest(change: Callable[[str], str]) -> Callable[[Path], object]:
    def plant(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    return plant


def counted(name: str, by: int) -> Callable[[Path], object]:
    def change(document: Document) -> None:
        document["splits"]["train"][name] += by

    return to_manifest(change)


def tokens_and_pads(folder: Path) -> None:
    """Two counts moved against each other, the ledger with them: only the rows can tell."""

    def change(document: Document) -> None:
        document["splits"]["train"]["tokens"] += 1
        document["splits"]["train"]["pad_tokens"] -= 1
        document["ledger"]["tokens"]["in_rows"] += 1
        document["ledger"]["tokens"]["encoded"] += 1

    edit_manifest(folder, change)


def swap_shards(document: Document) -> None:
    document["splits"]["train"]["shards"][:2] = reversed(document["splits"]["train"]["shards"][:2])


def cell(column: str, value: object, row: int = 3) -> Callable[[Path], object]:
    return lambda folder: set_cell(folder / TABLE, column, row, value)


def table_moved(folder: Path) -> None:
    """Two lines of the table change places but for their numbers: each conversation is called by the other's name."""
    path = folder / TABLE
    rows = pa.ipc.open_file(path.read_bytes()).read_all()["row"].to_pylist()
    set_cell(path, "row", 3, rows[3])
    set_cell(path, "row", 4, rows[3])


def stored(folder: Path, column: str) -> list[Any]:
    return pa.ipc.open_file((folder / STORE).read_bytes()).read_all()[column].to_pylist()  # type: ignore[no-any-return]


def store_ids(folder: Path) -> None:
    set_stored(folder / STORE, "input_ids", 2, [*stored(folder, "input_ids")[2], 5])


def store_shorter(folder: Path) -> None:
    for name in ("input_ids", "loss_mask"):
        set_stored(folder / STORE, name, 2, stored(folder, name)[2][:-1])


def store_mask(folder: Path, *, counted: bool = True) -> None:
    mask = [not target for target in stored(folder, "loss_mask")[2]]
    set_stored(folder / STORE, "loss_mask", 2, mask)
    if counted:
        set_stored(folder / STORE, "supervised", 2, sum(mask))


def store_id_unmended(folder: Path) -> None:
    ids = stored(folder, "input_ids")[2]
    set_cell(folder / STORE, "input_ids", 2, [*ids[:-1], ids[-1] ^ 1])


def store_mask_unmended(folder: Path) -> None:
    """A target moved within a conversation: no count changes."""
    mask = stored(folder, "loss_mask")[2]
    on, off = mask.index(True), mask.index(False, 1)
    mask[on], mask[off] = False, True
    set_cell(folder / STORE, "loss_mask", 2, mask)


def store_past_the_vocabulary(folder: Path) -> None:
    set_stored(folder / STORE, "input_ids", 2, [*stored(folder, "input_ids")[2][:-1], 4096])


def store_split(folder: Path) -> None:
    """The hash of what was said decides the split; 0 is below every share, the largest above."""
    split = pa.ipc.open_file((folder / TABLE).read_bytes()).read_all()["split"].to_pylist()[2]
    set_stored(folder / STORE, "content_hash", 2, 2**64 - 1 if split == "eval" else 0)


def in_store(column: str, value: object) -> Callable[[Path], object]:
    return lambda folder: set_stored(folder / STORE, column, 2, value)


def in_head(change: Callable[[Document], object]) -> Callable[[Path], object]:
    return lambda folder: edit_head(folder / STORE, change)


def all_of_source_7(table: pa.Table) -> pa.Table:
    return table.set_column(0, table.schema.field(0), pa.array([7] * len(table), pa.int16()))


def one_line_less(folder: Path) -> None:
    """The last line of examples/ is gone."""
    rewrite_table(folder / TABLE, lambda table: table.slice(0, len(table) - 1))


def lines_swapped(folder: Path) -> None:
    """Two lines of examples/ change places, but for their numbers."""

    def change(table: pa.Table) -> pa.Table:
        order = np.arange(len(table))
        order[3:5] = [4, 3]
        return table.take(order).set_column(0, table.schema.field(0), table["example_id"])

    rewrite_table(folder / TABLE, change)


def write(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(text, encoding="utf-8")


def append(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text((folder / file).read_text() + text)


def reject_of_one_that_is_in(folder: Path) -> None:
    """The last line names a conversation that went in."""
    path = folder / "rejects.jsonl"
    lines = path.read_text().splitlines()
    inside = pa.ipc.open_file((folder / TABLE).read_bytes()).read_all()["row"].to_pylist()[0]
    lines[-1] = json.dumps({**json.loads(lines[-1]), "row": inside})
    path.write_text("".join(line + "\n" for line in lines))


def remove(file: str) -> Callable[[Path], object]:
    def plant(folder: Path) -> None:
        path = folder / file
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return plant


def copy(file: str, to: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(folder / file, folder / to)


MANIFEST = "manifest.json"
# What is done to the folder, the file that must be named, and the rule.
PLANTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    # files of shards
    "a flipped bit": (flip(SHARD), SHARD, "a shard's digest must be the manifest's"),
    "a truncated shard": (cut(SHARD, 1), SHARD, "a shard's size must be the manifest's"),
    "a truncated shard, mended": (cut_and_mended, SHARD, "a shard must be a readable Arrow file"),
    "a missing shard": (remove(SHARD), SHARD, "every shard that the manifest names must be there"),
    "a stray shard": (copy(SHARD, "train/shard-00099.arrow"), "train/shard-00099.arrow", "every shard in the folder must be named by the manifest"),
    "another column": (other_schema(lambda table: table.drop_columns("sum_sq_len")), SHARD, "a shard's columns and metadata must be those of the format"),
    "another type": (other_schema(lambda table: table.set_column(8, pa.field("sum_sq_len", pa.int32(), nullable=False), table["sum_sq_len"].cast(pa.int32()))), SHARD, "a shard's columns and metadata must be those of the format"),
    "a nullable column": (other_schema(lambda table: table.cast(pa.schema([table.schema.field(n).with_nullable(True) for n in table.schema.names], metadata=table.schema.metadata))), SHARD, "a shard's columns and metadata must be those of the format"),
    "other metadata": (other_schema(other_metadata), SHARD, "a shard's columns and metadata must be those of the format"),
    "batches of 8": (other_batches, SHARD, "record batches must hold exactly 16 rows, the last one at most as many"),
    "compressed": (compressed, SHARD, "a shard must not be compressed"),
    "one row less": (one_row_less, SHARD, "a shard's rows must be as many as the manifest says"),
    # the manifest by itself
    "no JSON": (text_of_manifest(lambda text: text[:-9]), MANIFEST, "the manifest must be readable"),
    "a key missing": (to_manifest(lambda d: d.pop("stop_ids")), MANIFEST, "the manifest must be readable"),
    "a wrong type": (to_manifest(lambda d: d.update(seed="0")), MANIFEST, "the manifest must be readable"),
    "keys not sorted": (text_of_manifest(lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=1) + "\n"), MANIFEST, "the manifest must be written with sorted keys, one key a line"),
    "a float": (to_manifest(lambda d: d["options"].update(more=0.5)), MANIFEST, "the manifest must hold integers and strings only"),
    "a null": (to_manifest(lambda d: d.update(more=None)), MANIFEST, "the manifest must hold integers and strings only"),
    "an absolute path": (to_manifest(lambda d: d["tokenizer"].update(name="/home/me/tokenizer")), MANIFEST, "the manifest must hold no absolute path"),
    "a drive": (to_manifest(lambda d: d["tokenizer"].update(name="C:\\tokenizer")), MANIFEST, "the manifest must hold no absolute path"),
    "capacity": (to_manifest(lambda d: d.update(capacity=100)), MANIFEST, "capacity must be a positive multiple of 64"),
    "shard_rows": (to_manifest(lambda d: d.update(shard_rows=20)), MANIFEST, "shard_rows must be a positive multiple of 16"),
    "another split": (to_manifest(lambda d: d["splits"].update(test=d["splits"].pop("eval"))), MANIFEST, "splits must be train, and eval where there is one"),
    "max_segments": (to_manifest(lambda d: d.update(max_segments=8 + d["max_segments"])), MANIFEST, "max_segments must be the train split's"),
    "a split's max_segments": (in_train(max_segments=12), MANIFEST, "max_segments must be a positive multiple of 8"),
    "pad_id": (to_manifest(lambda d: d.update(pad_id=4096)), MANIFEST, "pad_id must lie in the vocabulary"),
    "max_token_id past": (to_manifest(lambda d: d.update(max_token_id=4096)), MANIFEST, "max_token_id must lie in the vocabulary"),
    "stop_ids": (to_manifest(lambda d: d.update(stop_ids=[4096])), MANIFEST, "stop_ids must lie in the vocabulary"),
    "conversations read": (to_manifest(lambda d: d["ledger"]["conversations"].update(read=7)), MANIFEST, "the ledger must add up: read = in and each reason"),
    "tokens encoded": (to_manifest(lambda d: d["ledger"]["tokens"].update(encoded=7)), MANIFEST, "the ledger must add up: encoded = in_rows and each loss"),
    "no tokens in rows": (to_manifest(lambda d: d["ledger"]["tokens"].pop("in_rows")), MANIFEST, "the ledger must add up: encoded = in_rows and each loss"),
    "a source's conversations": (to_manifest(lambda d: d["sources"][0].update(conversations=500)), MANIFEST, "the ledger's conversations read must be those of the sources"),
    "tokens in rows": (to_manifest(lambda d: d["ledger"]["tokens"].update(in_rows=7)), MANIFEST, "the ledger's tokens in rows must be those of the splits"),
    "tokens and pads": (counted("pad_tokens", 1), MANIFEST, "tokens and pad tokens must fill the split's rows"),
    "rows": (counted("rows", 1), MANIFEST, "a split's rows must be those of its shards"),
    "uneven shards": (to_manifest(lambda d: d.update(shard_rows=32)), MANIFEST, "every shard but the last must hold shard_rows rows"),
    "shards changed places": (to_manifest(swap_shards), MANIFEST, "shards must be named by their split and number, in order"),
    "corpus_digest": (to_manifest(lambda d: d.update(corpus_digest="0" * 32), mend=False), MANIFEST, "corpus_digest must be that of the shards' digests, C, S and the pad id"),
    # the manifest against the rows
    "rows, shards and all": (to_manifest(lambda d: (d["splits"]["train"]["shards"][1].update(rows=15), d["splits"]["train"].update(rows=d["splits"]["train"]["rows"] - 1))), MANIFEST, "a split's rows must be what its shards make"),
    "examples": (counted("examples", 1), MANIFEST, "a split's examples must be what its shards make"),
    "tokens against pads": (tokens_and_pads, MANIFEST, "a split's tokens must be what its shards make"),
    "pads against tokens": (tokens_and_pads, MANIFEST, "a split's pad_tokens must be what its shards make"),
    "supervised_tokens": (counted("supervised_tokens", -1), MANIFEST, "a split's supervised_tokens must be what its shards make"),
    "lower_bound_rows": (counted("lower_bound_rows", -1), MANIFEST, "a split's lower_bound_rows must be what its shards make"),
    "max_segment_len": (to_manifest(lambda d: d.update(max_segment_len=d["max_segment_len"] + 1)), MANIFEST, "max_segment_len must be the largest there is"),
    "max_example_len": (to_manifest(lambda d: d.update(max_example_len=d["max_example_len"] - 1)), MANIFEST, "max_example_len must be the largest there is"),
    "max_token_id": (to_manifest(lambda d: d.update(max_token_id=4095)), MANIFEST, "max_token_id must be the largest there is"),
    # the table of examples
    "no table": (remove("examples"), "examples", "the table of examples must be readable"),
    "a cut table": (cut(TABLE, 30), "examples", "the table of examples must be readable"),
    "a third split": (cell("split", "test"), "examples", "the table of examples must be readable"),
    "a table of other columns": (lambda folder: rewrite_table(folder / TABLE, lambda table: table.drop_columns("copy")), "examples", "the table of examples must be readable"),
    "example_id": (cell("example_id", 4), "examples", "example_id must count from 0"),
    "source": (cell("source", 1), "examples", "an example's source must be one of the manifest's"),
    "row past the source": (cell("row", 151), "examples", "an example's row must be one that was read of its source"),
    "piece": (cell("piece", -1), "examples", "piece and copy must be 0 or more"),
    "an example of no tokens": (cell("tokens", 0), "examples", "an example must have from 1 to capacity tokens, and fewer targets than tokens"),
    "an example past the capacity": (cell("tokens", CAPACITY + 1), "examples", "an example must have from 1 to capacity tokens, and fewer targets than tokens"),
    "all of it targets": (cell("supervised", CAPACITY), "examples", "an example must have from 1 to capacity tokens, and fewer targets than tokens"),
    "one name twice": (table_moved, "examples", "source, row, piece and copy must name one example"),
    "a piece left out": (cell("piece", 1), "examples", "pieces and copies of a conversation must count from 0, each piece in every copy"),
    "a copy left out": (cell("copy", 1), "examples", "pieces and copies of a conversation must count from 0, each piece in every copy"),
    "a count of the table": (counted("examples", 1), MANIFEST, "a split's examples must be as many as examples/ lists"),
    "conversations in": (to_manifest(lambda d: d["ledger"]["conversations"].update({"in": 149})), MANIFEST, "the ledger's conversations in must be those in examples/"),
    # the rows against the table
    "tokens in the table": (cell("tokens", 9), "", "an example's tokens in examples/ must be those of its row"),
    "supervised in the table": (cell("supervised", 1), "", "an example's supervised in examples/ must be those of its row"),
    "a target moved": (lambda folder: rewrite_rows(folder, SHARD, supervised_moved), SHARD, "an example's supervised in examples/ must be those of its row"),
    "an example twice": (lambda folder: rewrite_rows(folder, SHARD, an_example_twice), SHARD, "an example must lie in the rows of a split once"),
    "an example nowhere": (lambda folder: rewrite_rows(folder, SHARD, an_example_twice), "examples", "every example in examples/ must lie in a row"),
    # the token store
    "a cut store": (cut(STORE, 30), STORE, "the token store must be readable"),
    "a store of other columns": (lambda folder: rewrite_table(folder / STORE, lambda table: table.drop_columns("supervised")), STORE, "the token store must be readable"),
    "an id more in the store": (store_ids, STORE, "the token store must be readable"),
    "an id less in the store": (store_shorter, "tokens", "an example's tokens must be as many as in the token store"),
    "another mask in the store": (store_mask, "tokens", "an example's targets must be as many as in the token store"),
    "a target more than is counted": (lambda folder: store_mask(folder, counted=False), STORE, "a conversation's supervised must count its mask"),
    "an id past the vocabulary": (store_past_the_vocabulary, STORE, "the token store's ids must lie in the vocabulary"),
    "another id in the store": (store_id_unmended, STORE, "a part's digest must be its head's"),
    "a target moved in the store": (store_mask_unmended, STORE, "a part's digest must be its head's"),
    "another hash in the store": (lambda folder: set_cell(folder / STORE, "content_hash", 2, 2**64 - 1), STORE, "a part's digest must be its head's"),
    "another place in the store": (lambda folder: set_cell(folder / STORE, "place", 2, "chats.jsonl:1"), STORE, "a part's digest must be its head's"),
    "a head of other kinds": (in_head(lambda head: head.update(rows="151")), STORE, "the token store must be readable"),
    "a head without a stretch": (in_head(lambda head: head.pop("first_row")), STORE, "the token store must be readable"),
    "a row of another source than its head": (in_store("source", 1), STORE, "the token store must be readable"),
    "a source that is none": (lambda folder: (rewrite_table(folder / STORE, all_of_source_7), edit_head(folder / STORE, lambda head: head.update(source=7))), STORE, "a part's source must be one of the manifest's"),
    "rows more than the head has": (in_head(lambda head: head.update(rows=150)), STORE, "a part's conversations and rejects must be the rows of its stretch, each once and in order"),
    "a reject less in the head": (in_head(lambda head: head.update(rejects=[])), STORE, "a part's conversations and rejects must be the rows of its stretch, each once and in order"),
    "fewer rows than were read": (in_head(lambda head: head.update(rows=150, rejects=[])), "tokens", "the parts of a source must hold as many rows as were read of it"),
    "a stretch that begins later": (in_head(lambda head: head.update(first_row=1)), STORE, "a part must begin where the one before it ended"),
    "a part that comes second": (lambda folder: (folder / STORE).rename(folder / "tokens" / "part-00001.arrow"), "tokens/part-00001.arrow", "the token store's parts must be numbered from 0, none left out"),
    "another reason in the head": (in_head(lambda head: head["rejects"][0].update(detail="it was a Tuesday")), "rejects.jsonl", "rejects.jsonl must list what the parts of the token store and the capacity leave out"),
    "a reject without its detail": (lambda folder: (folder / "rejects.jsonl").write_text((folder / "rejects.jsonl").read_text().replace('"detail": "', '"detail": "no ')), "rejects.jsonl", "rejects.jsonl must list what the parts of the token store and the capacity leave out"),
    "control tokens of another count": (in_head(lambda head: head.update(control_tokens=[["user", "<|x|>", 3]])), MANIFEST, "the ledger's control_tokens must be those that the token store makes"),
    "copies that are not listed": (to_manifest(lambda d: d["sources"][0].update(weight="2")), "examples", "every piece and copy that the token store makes must be in examples/"),
    "an example that is not listed": (one_line_less, "examples", "every piece and copy that the token store makes must be in examples/"),
    "a copy that was not asked for": (cell("copy", 1), "tokens", "an example must be a piece and a copy that the token store makes"),
    "examples in another order": (lines_swapped, "examples", "examples/ must stand in the order of the token store"),
    "an option that there is not": (to_manifest(lambda d: d["options"].update(overlong="shrink")), MANIFEST, "options and weights must be those of a build of this version"),
    "an option missing": (to_manifest(lambda d: d["options"].pop("eval_fraction")), MANIFEST, "options and weights must be those of a build of this version"),
    "a weight of nothing": (to_manifest(lambda d: d["sources"][0].update(weight="0")), MANIFEST, "options and weights must be those of a build of this version"),
    "turns that end past the conversation": (in_store("turn_ends", [10**6]), STORE, "turn_ends must rise and lie in their conversation"),
    "turns that end together": (in_store("turn_ends", [5, 5]), STORE, "turn_ends must rise and lie in their conversation"),
    "another split in the store": (store_split, "tokens", "an example's split must be the token store's"),
    "an empty store": (lambda folder: (folder / STORE).unlink(), "tokens", "the token store must have a part"),
    "a conversation gone from the store": (in_store("row", 151), "tokens", "every example's conversation must be in the token store"),
    "copies in the store": (to_manifest(lambda d: d["sources"][0].update(weight="2")), MANIFEST, "the ledger's tokens must be those that the token store makes"),
    "a reject read": (in_head(lambda head: head["rejects"][0].update(reason="not_json")), MANIFEST, "the ledger's conversations must be those that the token store makes"),
    # the rest
    "no rejects": (remove("rejects.jsonl"), "rejects.jsonl", "rejects.jsonl must be readable"),
    "rejects emptied": (write("rejects.jsonl", ""), "rejects.jsonl", "rejects.jsonl must list as many of each reason as the ledger counts"),
    "a reject more": (append("rejects.jsonl", '{"place": "x", "source": 0, "row": 151, "reason": "new", "detail": ""}\n'), "rejects.jsonl", "rejects.jsonl must list as many of each reason as the ledger counts"),
    "a reject of no form": (append("rejects.jsonl", "[]\n"), "rejects.jsonl", "each line of rejects.jsonl must be an object with place, source, row, reason and detail"),
    "a reject that is in": (reject_of_one_that_is_in, "rejects.jsonl", "a conversation that did not go in must not be in examples/"),
    "no tokenizer": (remove("tokenizer"), "tokenizer", "the tokenizer and its template must be readable"),
    "another tokenizer": (append("tokenizer/tokenizer_config.json", " "), "tokenizer", "the tokenizer's digest must be the manifest's"),
    "a tokenizer file gone": (remove("tokenizer/tokenizer.json"), "tokenizer", "the tokenizer's digest must be the manifest's"),
    "another template": (append("tokenizer/chat_template.jinja", " "), "tokenizer/chat_template.jinja", "the chat template's digest must be the manifest's"),
    "no log": (remove("build-log.json"), "build-log.json", "build-log.json must be there"),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_named_with_its_file_and_rule(folder: Path, plant: str) -> None:
    act, file, rule = PLANTS[plant]
    act(folder)
    named = found(verify(folder))
    assert (file, rule) in {(where, broken) for where, broken, _ in named} or (
        not file and rule in {broken for _, broken, _ in named}
    ), named


def part(number: int) -> str:
    return f"tokens/part-{number:05d}.arrow"


def parts_swapped(folder: Path) -> None:
    for old, new in ((part(1), "x"), (part(2), part(1)), ("x", part(2))):
        (folder / old).rename(folder / new)


def of_part(number: int, change: Callable[[Document], object]) -> Callable[[Path], object]:
    return lambda folder: edit_head(folder / part(number), change)


_NUMBERED = "the token store's parts must be numbered from 0, none left out"
_ENDED = "a part must begin where the one before it ended"
_DECIDED = "the parts of one source must have been decided by the same"
_READ = "the parts of a source must hold as many rows as were read of it"
# What is done to a store of several parts (0 to 2 of one source, 3 and 4 of another).
PART_PLANTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a part gone": (remove(part(1)), part(2), _NUMBERED),
    "a part gone, seen by rows": (remove(part(1)), part(2), _ENDED),
    "the last part gone": (remove(part(4)), "tokens", _READ),
    "the last part of a source gone": (remove(part(2)), "tokens", _READ),
    "a part twice": (copy(part(4), part(5)), part(5), _ENDED),
    "parts in another order": (parts_swapped, part(1), _ENDED),
    "parts of a source behind another": (lambda folder: (folder / part(2)).rename(folder / part(5)), part(5), _ENDED),
    "another key": (of_part(1, lambda head: head.update(key="0" * 32)), part(1), _DECIDED),
    "half a source for evaluation": (of_part(1, lambda head: head.update(is_eval=True)), part(1), _DECIDED),
    "a damaged part among others": (cut(part(3), 30), part(3), "the token store must be readable"),
}


@pytest.fixture(scope="module")
def built_of_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.parts._PART_ROWS", 10)
        packer.build(
            BuildConfig(
                datasets=tuple(
                    str(write_jsonl(folder / f"{name}.jsonl", rows[a:b]))
                    for name, a, b in (("a", 0, 25), ("b", 25, 45))
                ),
                tokenizer=str(TINY),
                out=folder / "packed",
                max_loss=Fraction(1),
                workers=1,
            )
        )
    return folder / "packed"


@pytest.mark.parametrize("plant", PART_PLANTS)
def test_what_is_planted_among_parts_is_named_with_its_part(built_of_parts: Path, tmp_path: Path, plant: str) -> None:
    assert found(verify(built_of_parts)) == []
    folder = Path(shutil.copytree(built_of_parts, tmp_path / "packed"))
    act, file, rule = PART_PLANTS[plant]
    act(folder)
    named = found(verify(folder))
    assert (file, rule, None) in named, named


def test_an_example_in_the_other_split_is_named_with_its_row(folder: Path) -> None:
    table = pa.ipc.open_file((folder / TABLE).read_bytes()).read_all()
    example = table["split"].to_pylist().index("train")
    set_cell(folder / TABLE, "split", example, "eval")
    named = [finding for finding in verify(folder).findings if "split in examples/" in finding.rule]
    assert [finding.example for finding in named] == [example]
    assert named[0].file.startswith("train/shard-")
    assert named[0].source == f"chats.jsonl row {example}"
    row = packer_row(folder, named[0].file, named[0].row or 0)
    assert example in row["example_ids"]


def packer_row(folder: Path, file: str, row: int) -> dict[str, object]:
    return dict(pa.ipc.open_file((folder / file).read_bytes()).read_all().slice(row, 1).to_pylist()[0])


def test_every_rule_that_verify_knows_has_a_plant() -> None:
    """The rules stand as text where they are checked; one that no plant names could be dropped without notice."""
    texts = [path.read_text(encoding="utf-8") for path in (Path(packer.__file__).parent / "verify").glob("*.py")]
    planted = {rule for _, _, rule in (PLANTS | STORED_WEIGHT_PLANTS).values()}
    planted |= {rule for _, _, rule in (ROW_PLANTS | WEIGHT_PLANTS).values()}
    planted |= {
        "an example's split in examples/ must be its row's",
        *DEEP_RULES,
        *(rule for _, _, rule in PART_PLANTS.values()),
    }
    stated = {
        text
        for source in texts
        for text in _strings(source)
        if " must " in text and not text.startswith(("The ", "What ", "`"))
    }
    assert len(stated) > 40
    assert {text for text in stated if not any(_fits(text, rule) for rule in planted)} == set()


DEEP_RULES = (
    "an example's tokens and targets must be the token store's",
    "an example must be what its source gives",
    "a conversation's content_hash in the token store must be what its source gives",
    "a conversation's group_hash in the token store must be what its source gives",
)


def _strings(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            found.append(node.value)
    return found


def _fits(text: str, rule: str) -> bool:
    """Whether a text, whose {} stand for anything, is the rule or (a part of a formatted one) lies in it."""
    return bool(re.search(".*".join(map(re.escape, text.split("{}"))), rule))


def test_a_thousand_broken_rows_are_counted_and_a_few_are_kept() -> None:
    findings = Findings()
    for row in range(1000):
        findings.add("rows must be right", "train/shard-00000.arrow", row=row)
    findings.add("the rest must be right", "manifest.json")
    assert len(findings) == 1001
    assert findings.counts["rows must be right"] == 1000
    assert len(findings.kept) == MOST_KEPT_OF_A_RULE + 1
    other = Findings()
    other.merge(findings)
    other.merge(findings)
    assert len(other) == 2002
    assert len(other.kept) == MOST_KEPT_OF_A_RULE + 2


def test_what_is_no_packed_folder_is_an_error(folder: Path, tmp_path: Path) -> None:
    for place, words in ((tmp_path / "nowhere", "no such folder"), (tmp_path, r"no manifest\.json")):
        with pytest.raises(UserError, match=words):
            verify(place)
    edit_manifest(folder, lambda document: document.update(format_version=3))
    with pytest.raises(UserError, match="format version 3"):
        verify(folder)


def test_rows_of_more_than_65536_slots_are_checked_as_well() -> None:
    """Positions are int32 there; the check goes by differences and must not care."""
    capacity = 65536 * 2
    ids = np.ones(capacity - 10, dtype=np.int32)
    placed = Placed(
        counts=np.array([1]),
        example_ids=np.array([0]),
        lengths=np.array([len(ids)]),
        ids=ids,
        loss_mask=np.zeros(len(ids), dtype=bool),
    )
    rows = lay_out(placed, capacity=capacity, max_segments=8, pad_id=0)
    assert shard_schema(capacity=capacity, max_segments=8).field("position_ids").type.value_type == pa.int32()
    assert broken_rule(rows, pad_id=0, vocab_size=2) is None
    positions = rows.position_ids.copy()
    positions[0, 70000] = 70000 - 65536
    found = broken_rule(replace(rows, position_ids=positions), pad_id=0, vocab_size=2)
    assert found == (0, "position_ids must restart at 0 in each segment")


@pytest.mark.parametrize("file", [SHARD, TABLE, STORE, "manifest.json", "rejects.jsonl", "build-log.json"])
def test_random_damage_is_found_or_harmless_and_never_a_crash(folder: Path, file: str) -> None:
    """Digests of shards mended: what is read is what lies there. A shard or a part of the token store whose columns changed must not be called fine."""
    path = folder / file
    whole = path.read_bytes()
    manifest = (folder / "manifest.json").read_bytes()
    before = pa.ipc.open_file(whole).read_all() if file in (SHARD, STORE) else None
    rng = np.random.default_rng(7)
    for number in range(40):
        damaged = bytearray(whole)
        # Anywhere, near the beginning (schema, first batch) and near the end (footer).
        places = (rng.integers(len(whole)), rng.integers(3000), len(whole) - 1 - rng.integers(3000))
        damaged[int(np.clip(places[number % 3], 0, len(whole) - 1))] ^= 1 << int(rng.integers(8))
        path.unlink()  # a new file: maps of the old one stay whole
        path.write_bytes(damaged if number % 8 else damaged[: int(rng.integers(len(whole)))])
        if file == SHARD:
            mend_shard(folder, file)
        try:
            report = verify(folder)
        except UserError:
            assert file == "manifest.json"
        else:
            if before is not None and not report.broken:
                after = pa.ipc.open_file(path.read_bytes()).read_all()
                same = [name for name in before.column_names if before[name].equals(after[name])]
                # Another token of the vocabulary in a row whose digest was mended: only --deep can tell.
                assert set(before.column_names) - set(same) <= ({"input_ids"} if file == SHARD else set())
        (folder / "manifest.json").unlink()
        (folder / "manifest.json").write_bytes(manifest)
