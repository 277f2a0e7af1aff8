"""Rows of Arrow record batches as Python values, equal to those that `datasets` gives, less the null keys that Arrow adds.

for row in batch_rows("chats.parquet", batches, names): ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from packer.network import first_line
from packer.sources.raw_row import NotJsonError, RawRow

_Convert = Callable[[object], object]
_JSON = "arrow.json"


def batch_rows(
    where: str, batches: Iterable[pa.RecordBatch], names: Sequence[str], share: float = 0
) -> Iterator[RawRow]:
    """Row by row, each with the names of all columns that the file has, so that people see them where none of those is the one.

    where: of the place. share: bytes of the file a row.
    """
    number = 0
    for batch in batches:
        for value in _python(batch):
            row = with_names(value, names) if isinstance(value, dict) else value
            yield RawRow(number=number, place=f"{where} row {number}", value=row, size=share)
            number += 1


def with_names(row: dict[str, object], names: Sequence[str]) -> dict[str, object]:
    """A row with every column of its table; null where it was null, or was not read."""
    return {**dict.fromkeys(names), **row}


def _python(batch: pa.RecordBatch) -> list[object]:
    """The rows of a batch as Python values; one that Python cannot hold (text that is not UTF-8, say) is a NotJsonError of its own."""
    converters = {field.name: _converter(field) or without_nulls for field in batch.schema}
    try:
        return [
            {name: converters[name](value) for name, value in row.items() if value is not None}
            for row in batch.to_pylist()
        ]
    except (ValueError, OverflowError, RecursionError, pa.ArrowException) as error:
        if len(batch) == 1:
            return [NotJsonError(f"cannot be read ({first_line(error)})")]
        return [value for start in range(len(batch)) for value in _python(batch.slice(start, 1))]


def without_nulls(value: object) -> object:
    """A value from a columnar file without its null keys: Arrow gives every struct every key that any of them has.

    (In JSON a null was written by somebody, and stays where it is: in the arguments of a tool call it means something.)
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _converter(field: pa.Field) -> _Convert | None:
    """What makes of a value of this type what was stored: JSON decoded (the column type of `datasets.Json()`), maps as objects. None where `without_nulls` does."""
    kind = field.type
    if (field.metadata or {}).get(b"ARROW:extension:name", b"").decode() == _JSON:
        return _loads
    if isinstance(kind, pa.BaseExtensionType):
        return _loads if kind.extension_name == _JSON else _converter(pa.field(field.name, kind.storage_type))
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _converter(pa.field(field.name, kind.value_type))
    if pa.types.is_map(kind):
        convert = _converter(kind.item_field) or without_nulls
        return lambda pairs: None if pairs is None else {key: convert(value) for key, value in pairs}  # type: ignore[attr-defined]
    if pa.types.is_struct(kind):
        inner = {one.name: _converter(one) for one in (kind.field(place) for place in range(kind.num_fields))}
        return _struct_converter(inner) if any(inner.values()) else None
    if hasattr(kind, "value_field"):
        convert_item = _converter(kind.value_field)
        return _list_converter(convert_item) if convert_item else None
    return None


def _loads(text: object) -> object:
    return None if text is None else json.loads(text)  # type: ignore[arg-type]  # the type's values are text


def _struct_converter(inner: dict[str, _Convert | None]) -> _Convert:
    def convert(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {key: (inner[key] or without_nulls)(item) for key, item in value.items() if item is not None}

    return convert


def _list_converter(convert_item: _Convert) -> _Convert:
    def convert(value: object) -> object:
        return [convert_item(item) for item in value] if isinstance(value, list) else value

    return convert
