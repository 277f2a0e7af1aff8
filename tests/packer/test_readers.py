"""Rows out of files of every kind: equal to those that `datasets` or the csv module gives, each at an address that people find it by."""

from __future__ import annotations

import bz2
import csv
import datetime
import decimal
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packer.errors import UserError
from packer.readers import kind_of, read_file
from packer.sources.raw_row import NotJsonError, parsed

TEXTS = ["plain", 'with "quotes", commas', "two\nlines", "  blanks ", "ümlaut 😀 日本", "", "NA", "007", "1e5", "null"]


def rows(path: Path) -> list[tuple[str, object]]:
    return [(row.place, _value(row.value)) for row in read_file(str(path), {"text", "messages", "tools"})]


def _value(value: object) -> object:
    try:
        return parsed(value)
    except NotJsonError as error:
        return f"{error.reason}: {error}"


def by_datasets(kind: str, path: Path, **options: object) -> list[object]:
    import datasets

    found = datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache"), **options
    )
    return list(found)


def written_csv(path: Path, delimiter: str, encoding: str = "utf-8") -> list[dict[str, str]]:
    table = [{"prompt": text, "completion": f"answer {text}", "n": str(number)} for number, text in enumerate(TEXTS)]
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "completion", "n"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(table)
    return table


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("A.CSV", ","), ("a.tsv", "\t")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_every_cell_of_a_table_is_its_text(tmp_path: Path, name: str, delimiter: str, encoding: str) -> None:
    table = written_csv(tmp_path / name, delimiter, encoding)
    found = rows(tmp_path / name)
    assert [value for _, value in found] == table
    # The third row has a line feed in its cells, so the fourth begins a line later for each.
    assert [place for place, _ in found[:4]] == [f"{name}:2", f"{name}:3", f"{name}:4", f"{name}:7"]
    # pandas guesses types unless it is told not to.
    theirs = by_datasets("csv", tmp_path / name, sep=delimiter, encoding=encoding, keep_default_na=False)
    assert [value["prompt"] for _, value in found] == [row["prompt"] for row in theirs]  # type: ignore[index]
    sizes = sum(row.size for row in read_file(str(tmp_path / name), ()))
    header = (tmp_path / name).read_bytes().index(b"\n") + 1
    assert sizes == (tmp_path / name).stat().st_size - header


def test_a_row_that_is_no_row_of_the_table_is_counted_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.csv"
    path.write_bytes(b'prompt,completion\n\na,b\nonly one\n1,2,3\n"x"y,z\n"two\nlines"y,z\n\xff,b\nc,d\n')
    assert rows(path) == [
        ("chats.csv:3", {"prompt": "a", "completion": "b"}),
        ("chats.csv:4", "bad_line: 1 cells, but the header has 2"),
        ("chats.csv:5", "bad_line: 3 cells, but the header has 2"),
        ("chats.csv:6", "bad_line: ',' expected after '\"'"),
        ("chats.csv:7", "bad_line: ',' expected after '\"'; lines 7 to 8"),
        ("chats.csv:9", "bad_line: not UTF-8"),
        ("chats.csv:10", {"prompt": "c", "completion": "d"}),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'prompt,completion\na,b\n"open,c\nd,e\n', ":3: a quote that opens in this row is never closed"),
        (b"text,text\na,b\n", ": its first line is no header (two columns are called 'text')"),
        ("text\na\n".encode("utf-16"), ": the text is UTF-16"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: bytes, error: str) -> None:
    path = tmp_path / "chats.csv"
    path.write_bytes(text)
    with pytest.raises(UserError) as told:
        rows(path)
    assert told.value.message == f"{path}{error}"


def test_a_cell_may_hold_a_long_conversation(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text\n{'x' * 300_000}\n")
    assert rows(tmp_path / "a.csv") == [("a.csv:2", {"text": "x" * 300_000})]


def test_a_line_of_text_is_a_row_and_blank_ones_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  \ntwo \u2028still two\rthree\nfour".encode())
    assert rows(path) == [
        ("a.txt:1", {"text": "one"}),
        ("a.txt:2", "blank_line: a blank line"),
        ("a.txt:3", "blank_line: a blank line"),
        ("a.txt:4", {"text": "two \u2028still two"}),
        ("a.txt:5", {"text": "three"}),
        ("a.txt:6", {"text": "four"}),
    ]
    path.write_bytes(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    theirs = [row for row in by_datasets("text", path) if row["text"].strip()]  # type: ignore[index]
    assert [value for _, value in rows(path) if isinstance(value, dict)] == theirs
    path.write_bytes(b"a\n\xff\n")
    assert rows(path)[1] == ("a.txt:2", "bad_line: not UTF-8 at byte 0")


OBJECTS = [{"text": "a", "more": {"x": [1, None]}}, {"text": "b\nc"}, {"text": "ü"}]
LINES = "\n".join(map(json.dumps, OBJECTS)) + "\n"
PRETTY = "\n".join(json.dumps(one, indent=2, ensure_ascii=False) for one in OBJECTS)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson", "A.JSONL", "A.JSON"])
@pytest.mark.parametrize(
    ("text", "places"),
    [
        (LINES, [":1", ":2", ":3"]),
        ("\ufeff\n" + LINES, [":2", ":3", ":4"]),
        (PRETTY, [":1", ":10", ":13"]),
        (f"\n{PRETTY}\n\n", [":2", ":11", ":14"]),
        (json.dumps(OBJECTS), [" row 0", " row 1", " row 2"]),
        (json.dumps(OBJECTS, indent=1), [" row 0", " row 1", " row 2"]),
        (json.dumps({"data": OBJECTS}, indent=1), [" row 0", " row 1", " row 2"]),
        (json.dumps({"version": "1", "rows": OBJECTS}, indent=1), [" row 0", " row 1", " row 2"]),
    ],
    ids=["lines", "mark", "pretty", "blank", "list", "pretty-list", "data", "rows"],
)
def test_json_is_read_however_its_objects_lie(tmp_path: Path, name: str, text: str, places: list[str]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert rows(tmp_path / name) == [(f"{name}{place}", one) for place, one in zip(places, OBJECTS, strict=True)]


def test_one_object_is_one_row_whatever_it_holds(tmp_path: Path) -> None:
    for row in ({"messages": [{"role": "user"}], "tools": []}, {"data": 5}, {"train": [{}], "prompt": "x"}):
        for text in (json.dumps(row), json.dumps(row, indent=1)):
            (tmp_path / "a.json").write_text(text)
            assert [value for _, value in rows(tmp_path / "a.json")] == [row]
    # A line that is an object is a row in a file of lines, and a wrapper in a document.
    wrapped = json.dumps({"data": [{"text": "a"}]})
    for name, count in (("a.json", [{"text": "a"}]), ("a.jsonl", [json.loads(wrapped)])):
        (tmp_path / name).write_text(wrapped)
        assert [value for _, value in rows(tmp_path / name)] == count


def test_broken_json_is_counted_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "cut\n{"text": "a"}\nnull\n')
    assert rows(path) == [
        ("a.jsonl:1", "not_json: Unterminated string starting at at column 10"),
        ("a.jsonl:2", {"text": "a"}),
        ("a.jsonl:3", None),
    ]
    path.write_text('{\n "text": "a"\n}\n{\n "text": \n}\n{\n "text": "b"\n}\n{')
    assert rows(path) == [
        ("a.jsonl:1", {"text": "a"}),
        ("a.jsonl:4", "not_json: Expecting value at line 6"),
        ("a.jsonl:7", {"text": "b"}),
        ("a.jsonl:10", "not_json: Expecting property name enclosed in double quotes at line 10"),
    ]
    (tmp_path / "a.json").write_text('{"text": "cut\n')
    with pytest.raises(UserError, match=r"a\.json: not JSON \(Invalid control character"):
        rows(tmp_path / "a.json")


def test_numbers_keep_their_digits_and_the_last_of_two_equal_keys_counts(tmp_path: Path) -> None:
    text = '{"text": 123456789012345678901234567890, "a": NaN, "a": 2}'
    for path, whole in (
        (tmp_path / "a.jsonl", text),
        (tmp_path / "b.jsonl", f"{text}\n{{\n{text[1:]}"),
        (tmp_path / "c.json", f"[{text}]"),
    ):
        path.write_text(whole)
        assert rows(path)[0][1] == {"text": 123456789012345678901234567890, "a": 2}


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.compress),
        (".GZ", gzip.compress),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl", "a.txt"])
def test_every_kind_is_read_compressed(tmp_path: Path, name: str, suffix: str, compress) -> None:
    text = {"a.csv": "text\na\n", "a.json": PRETTY, "a.jsonl": PRETTY, "a.txt": "a\n"}[name]
    (tmp_path / name).write_text(text)
    (tmp_path / f"{name}{suffix}").write_bytes(compress(text.encode()))
    plain = [value for _, value in rows(tmp_path / name)]
    assert [value for _, value in rows(tmp_path / f"{name}{suffix}")] == plain
    assert kind_of(f"{name}{suffix}", text=True) == Path(name).suffix


MESSAGES = [{"role": "user", "content": None, "call": {"b": [1, None], "c": {}}}, {"role": "assistant", "n": 1.5}]


def without_nulls(value: object) -> object:
    """By hand: what a struct of Arrow has too much."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_columns_of_json_are_objects_with_every_null_that_somebody_wrote(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"messages": datasets.List(datasets.Json()), "tools": datasets.Json(), "text": {"a": datasets.Json(), "b": datasets.Value("string")}})  # fmt: skip
    table = [
        {"messages": MESSAGES, "tools": {"x": None, "y": "1"}, "text": {"a": [None], "b": None}},
        {"messages": [], "tools": None, "text": {"a": None, "b": "t"}},
    ]
    saved = datasets.Dataset.from_list(table, features=features)
    saved.to_parquet(str(tmp_path / "a.parquet"))
    saved.save_to_disk(str(tmp_path / "saved"))
    expected = [
        {"messages": MESSAGES, "tools": {"x": None, "y": "1"}, "text": {"a": [None]}},
        {"messages": [], "tools": None, "text": {"b": "t"}},
    ]
    assert saved[0]["messages"] == MESSAGES
    for path in (tmp_path / "a.parquet", tmp_path / "saved" / "data-00000-of-00001.arrow"):
        assert [value for _, value in rows(path)] == expected


def test_rows_of_the_hub_keep_the_nulls_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    from packer.source import SourceSpec, read

    table = datasets.Dataset.from_list([{"tools": {"x": None}, "id": 1}], features=datasets.Features({"tools": datasets.Json(), "id": datasets.Value("int64")}))  # fmt: skip
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    found = [(row.place, row.value) for row in read(SourceSpec(name="a/b", split="train"), {"tools"})]
    assert found == [("train row 0", {"tools": {"x": None}, "id": None})]


def test_text_that_is_no_json_in_a_column_of_json_is_a_row_of_its_own(tmp_path: Path) -> None:
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "{", "[2]"]))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    found = [value for _, value in rows(tmp_path / "a.parquet")]
    assert (found[0], found[2]) == ({"text": {"a": 1}}, {"text": [2]})
    assert str(found[1]).startswith("not_json: cannot be read (Expecting property name")


WHEN = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
COLUMNS = {
    "map": (pa.array([[("k", "v"), ("n", None)], None], pa.map_(pa.string(), pa.string())), {"k": "v", "n": None}),
    "maps": (pa.array([[{"role": [("k", "v")], "x": None}], None], pa.list_(pa.struct([("role", pa.map_(pa.string(), pa.string())), ("x", pa.string())]))), [{"role": {"k": "v"}}]),
    "large_list": (pa.array([["a"], None], pa.large_list(pa.large_string())), ["a"]),
    "list_view": (pa.array([["a"], None], pa.list_view(pa.string())), ["a"]),
    "large_list_view": (pa.array([["a"], None], pa.large_list_view(pa.string())), ["a"]),
    "fixed": (pa.array([["a", "b"], None], pa.list_(pa.string(), 2)), ["a", "b"]),
    "view": (pa.array(["a", None], pa.string_view()), "a"),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), "a"),
    "run_end": (pa.RunEndEncodedArray.from_arrays([1, 2], ["a", None]), "a"),
    "timestamp": (pa.array([WHEN, None], pa.timestamp("us", "UTC")), WHEN),
    "decimal": (pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2)), decimal.Decimal("1.50")),
    "binary": (pa.array([b"a", None]), b"a"),
    "struct": (pa.array([{"a": 1, "b": None}, None]), {"a": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_every_type_are_what_they_say(tmp_path: Path, name: str) -> None:
    column, expected = COLUMNS[name]
    table = pa.table({"text": column, "other": pa.array([1, 2])})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    files = ["a.arrow", "b.arrow"]
    if name != "run_end":  # Parquet has none
        pq.write_table(table, tmp_path / "a.parquet")
        files.append("a.parquet")
    for file in files:
        # A column that is not asked for is there by its name.
        assert rows(tmp_path / file) == [
            (f"{file} row 0", {"text": expected, "other": None}),
            (f"{file} row 1", {"text": None, "other": None}),
        ]
    if name not in ("map", "maps", "list_view", "large_list_view", "run_end"):  # which `datasets` does not take
        assert [without_nulls(row["text"]) for row in by_datasets("arrow", tmp_path / "a.arrow")] == [expected, None]  # type: ignore[index]
