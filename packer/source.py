"""Where conversations come from: files on this machine, or a data set on the hub (by `datasets`, and only here).

`open_sources` resolves what the user named; `read` yields one `RawRow` a row, in order, with its place for people. A row that cannot be parsed is
a `RawRow` too (with `error` set): nothing is lost on the way to the ledger.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packer.digest import digest_file
from packer.errors import UserError

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")
DEFAULT_DATASET = "HuggingFaceH4/ultrachat_200k"
_DEFAULT_SPLITS = {DEFAULT_DATASET: "train_sft"}
_ROWS_AT_ONCE = 512
_LOCAL_HINT = (
    "give a .jsonl, .json, .parquet or .arrow file, or a folder of them: packer build chats.jsonl -o data/packed"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpec:
    """One source: local files, or a hub name (then revision and split say which rows). is_eval: all of it goes to the eval split."""

    name: str
    files: tuple[Path, ...] = ()
    revision: str | None = None
    split: str = ""
    is_eval: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """One row as it was read. place: "chats.jsonl:1841" or "train_sft row 12". number: from 0 in its source. error: why it could not be parsed."""

    number: int
    place: str
    value: object = None
    error: str | None = None


def open_sources(
    names: Sequence[str], *, split: str | None, eval_split: str | None, revision: str | None
) -> list[SourceSpec]:
    """What the names on the command line stand for; raises UserError for one that is neither a file nor a hub name."""
    sources: list[SourceSpec] = []
    local: list[Path] = []
    for name in names or [DEFAULT_DATASET]:
        path = Path(name)
        if path.exists():
            local += _files(path)
        elif path.suffix in SUFFIXES or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
            raise UserError(f"{name}: no such file or folder", _LOCAL_HINT)
        else:
            train = split or _DEFAULT_SPLITS.get(name, "train")
            sources.append(SourceSpec(name=name, revision=revision, split=train))
            if eval_split:
                sources.append(SourceSpec(name=name, revision=revision, split=eval_split, is_eval=True))
    if local:
        if eval_split or revision or split:
            option = "--eval-split" if eval_split else "--revision" if revision else "--split"
            raise UserError(
                f"{option} is for data sets on the hub, but {local[0]} is a file",
                "leave it out; --eval-fraction 0.01 sets an eval split aside",
            )
        sources = [SourceSpec(name=path.name, files=(path,)) for path in local] + sources
    return sources


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path}: a {path.suffix or 'file without suffix'}, which is not read", _LOCAL_HINT)
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in SUFFIXES)
    if not files:
        raise UserError(f"{path}: no {', '.join(SUFFIXES)} file in this folder", _LOCAL_HINT)
    return files


def digests(source: SourceSpec) -> tuple[tuple[str, str], ...]:
    """(base name, digest) of each local file; empty for the hub, whose revision names the data."""
    return tuple((file.name, digest_file(file)) for file in source.files)


def read(source: SourceSpec, *, limit: int | None = None) -> Iterator[RawRow]:
    """The rows of a source in order, at most `limit`; raises UserError where the source cannot be opened."""
    if source.files:
        rows: Iterator[RawRow] = itertools.chain.from_iterable(_read_file(file) for file in source.files)
    else:
        rows = _read_hub(source)
    return itertools.islice(rows, limit)


def _read_file(path: Path) -> Iterator[RawRow]:
    readers = {".jsonl": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet, ".arrow": _read_arrow}
    try:
        yield from readers[path.suffix](path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "check that the file is there and may be read") from None


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    number = 0
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            yield _parse(line.strip(), number, f"{path.name}:{line_number}")
            number += 1


def _parse(text: bytes, number: int, place: str) -> RawRow:
    try:
        return RawRow(number=number, place=place, value=json.loads(text))
    except (ValueError, RecursionError) as error:
        # ValueError covers bad JSON and bad UTF-8; a line of ten thousand brackets ends in RecursionError.
        return RawRow(number=number, place=place, error=str(error) or type(error).__name__)


def _read_json(path: Path) -> Iterator[RawRow]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not JSON ({error})", "if the file holds one object a line, give it the suffix .jsonl"
        ) from None
    if not isinstance(document, list):
        raise UserError(
            f"{path}: holds one {type(document).__name__}, not a list of rows",
            "write a list of objects, or one object a line in a .jsonl file",
        )
    for number, value in enumerate(document):
        yield RawRow(number=number, place=f"{path.name} row {number}", value=value)


def _read_parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a Parquet file ({error})", "check that it was copied whole") from None
    yield from _rows_of_batches(path, file.iter_batches(batch_size=_ROWS_AT_ONCE))


def _read_arrow(path: Path) -> Iterator[RawRow]:
    import pyarrow as pa

    def batches() -> Iterator[pa.RecordBatch]:
        mapped = pa.memory_map(str(path))
        try:
            reader = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            try:
                yield from pa.ipc.open_stream(pa.memory_map(str(path)))
            except pa.ArrowInvalid as error:
                raise UserError(
                    f"{path}: neither an Arrow file nor an Arrow stream ({error})", "check that it was copied whole"
                ) from None
            return
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    yield from _rows_of_batches(path, batches())


def _rows_of_batches(path: Path, batches: Iterator[object]) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        for value in batch.to_pylist():  # type: ignore[attr-defined]  # a pyarrow.RecordBatch
            yield RawRow(number=number, place=f"{path.name} row {number}", value=without_nulls(value))
            number += 1


def _read_hub(source: SourceSpec) -> Iterator[RawRow]:
    where = f"{source.name} (split {source.split})"
    local_hint = "without a network, download it elsewhere and name its files: packer build chats.jsonl -o data/packed"
    import datasets
    import huggingface_hub.errors

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(source.name, split=source.split, revision=source.revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise UserError(
            f"{where}: not on the hub, or not open to you ({_first_line(error)})",
            f"check the name, or `hf auth login`; {local_hint}",
        ) from None
    except (ConnectionError, OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise UserError(f"{where}: the hub cannot be reached ({_first_line(error)})", local_hint) from None
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{where}: {_first_line(error)}", "check --split and --revision against the data set's page"
        ) from None
    number = 0
    for batch in rows.iter(batch_size=_ROWS_AT_ONCE):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield RawRow(
                number=number, place=f"{source.split} row {number}", value=dict(zip(names, values, strict=True))
            )
            number += 1


def without_nulls(value: object) -> object:
    """A value from a columnar file without its null keys: Arrow gives every struct every key that any of them has.

    (In JSON a null was written by somebody, and stays where it is: in the arguments of a tool call it means something.)
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
