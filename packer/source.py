"""Where conversations come from: files (here, or at an address such as s3://), or a data set on the hub (by `datasets`, and only here).

opened = open_sources([("chats.jsonl", Fraction(1)), ("s3://bucket/more/*.parquet", Fraction(1, 2))], split=None, eval_split=None, revision=None)
for row in read(opened.sources[0], columns={"messages"}): ...
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import fsspec

from packer.data_files import are_packed, data_files
from packer.errors import UserError
from packer.hub import look_for, silence
from packer.network import first_line, unreachable
from packer.readers import (
    COMPRESSED,
    ROWS_AT_ONCE,
    SUFFIXES,
    RawRow,
    base_name,
    kind_of,
    read_file,
    size_of,
    with_names,
    without_nulls,
)

DEFAULT_DATASET = "HuggingFaceH4/ultrachat_200k"
_DEFAULT_SPLITS = {DEFAULT_DATASET: "train_sft"}
_LOCAL_HINT = (
    "give a .jsonl, .json, .parquet or .arrow file, or a folder of them: packer build chats.jsonl -o data/packed"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpec:
    """One source: a file (a path or an address), or a hub name (then revision and split say which rows).

    weight: copies of each conversation. is_eval: all of it goes to the eval split.
    """

    name: str
    file: str | None = None
    weight: Fraction = Fraction(1)
    revision: str | None = None
    split: str = ""
    is_eval: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What the names on the command line stand for, in the order given. not_read: a line for each folder that also has files which are no data."""

    sources: tuple[SourceSpec, ...]
    not_read: tuple[str, ...]


def open_sources(
    names: Sequence[tuple[str, Fraction]], *, split: str | None, eval_split: str | None, revision: str | None
) -> Opened:
    """Raises UserError for a name that is neither a file nor a hub name."""
    sources: list[SourceSpec] = []
    not_read: list[str] = []
    for name, weight in names or [(DEFAULT_DATASET, Fraction(1))]:
        if (files := _files(name, not_read)) is not None:
            if eval_split or revision or split:
                option = "--eval-split" if eval_split else "--revision" if revision else "--split"
                raise UserError(
                    f"{option} is for data sets on the hub, but {name} is not one",
                    "leave it out; --eval-fraction 0.01 sets an eval split aside",
                )
            sources += [SourceSpec(name=base_name(file), file=file, weight=weight) for file in files]
            continue
        train = split or _DEFAULT_SPLITS.get(name, "train")
        resolved = _commit(name, revision)
        sources.append(SourceSpec(name=name, revision=resolved, split=train, weight=weight))
        if eval_split:
            sources.append(SourceSpec(name=name, revision=resolved, split=eval_split, is_eval=True))
    twice = [spec for place, spec in enumerate(sources) if any(_same(spec, other) for other in sources[:place])]
    if twice:
        raise UserError(
            f"{twice[0].file or twice[0].name}: named twice",
            "give it once; --mix NAME=2 takes two copies of each conversation",
        )
    return Opened(sources=tuple(sources), not_read=tuple(not_read))


def _same(a: SourceSpec, b: SourceSpec) -> bool:
    return replace(a, weight=b.weight) == b


def _files(name: str, not_read: list[str]) -> list[str] | None:
    """The files that a name stands for; None where it can only be a hub name. Adds a line to `not_read` for what is left out of a folder."""
    if "://" in name:
        return _remote_files(name, not_read)
    if not name:
        raise UserError("a data set has no name: '' was given", _LOCAL_HINT)
    path = Path(name).expanduser()
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{name[:80]}: {error.strerror}", _LOCAL_HINT) from None
    if path.is_file():
        return [_readable(str(path))]
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        return [str(path / file) for file in _of_folder(name, names, not_read)]
    if any(character in name for character in "*?["):
        found = sorted(
            str(file)
            for file in Path(path.anchor or ".").glob(str(path.relative_to(path.anchor or "")))
            if file.is_file()
        )
        return _of_kind(name, found)
    is_path = (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or "\\" in name
        or path.suffix in (*SUFFIXES, *COMPRESSED)
    )
    if is_path:
        raise UserError(f"{name}: no such file or folder", _LOCAL_HINT)
    return None


def _of_folder(name: str, files: Sequence[str], not_read: list[str]) -> list[str]:
    """Those of a folder's files that are data."""
    if are_packed(files):
        raise UserError(
            f"{name}: rows that are packed already, not chats",
            "name the chats that they were built from; `packer repack` makes other rows of them",
        )
    found = data_files(files, kind_of)
    if not found.read:
        also = f" but {found.named}" if found.left_out else ""
        raise UserError(f"{name}: no {', '.join(SUFFIXES)} file there{also}", _LOCAL_HINT)
    if found.left_out:
        not_read.append(f"not read in {name}: {found.named}")
    return list(found.read)


def _remote_files(name: str, not_read: list[str]) -> list[str]:
    protocol = name.split("://", 1)[0]
    try:
        system, path = fsspec.url_to_fs(name)
        if any(character in path for character in "*?["):
            found = system.glob(path)
        elif system.isdir(path):
            root = f"{path.rstrip('/')}/"
            below = {file.removeprefix(root): file for file in system.find(path)}
            found = [below[file] for file in _of_folder(name, list(below), not_read)]
        else:
            found = [path]
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{name}: {first_line(error)}", f"install the package that reads {protocol}:// addresses"
        ) from None
    except unreachable() as error:
        raise UserError(
            f"{name}: cannot be reached ({first_line(error)})", "check the address, the network and your credentials"
        ) from None
    return _of_kind(name, [f"{protocol}://{file.removeprefix(f'{protocol}://')}" for file in found])


def _of_kind(name: str, files: Sequence[str]) -> list[str]:
    readable = sorted(file for file in files if kind_of(file))
    if not readable:
        raise UserError(f"{name}: no {', '.join(SUFFIXES)} file there", _LOCAL_HINT)
    return readable


def _readable(path: str) -> str:
    if kind_of(path) is None:
        raise UserError(f"{path}: a {Path(path).suffix or 'file without suffix'}, which is not read", _LOCAL_HINT)
    return path


def _commit(name: str, revision: str | None) -> str | None:
    """The commit that a hub revision stands for today, so that the same name tomorrow is known to be other data; the revision where nobody answers."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        look_for(f"the data set {name}")
        return HfApi().dataset_info(name, revision=revision, timeout=10).sha or revision
    except HFValidationError:
        raise UserError(f"{name}: neither a file nor a hub name", _LOCAL_HINT) from None
    except unreachable():
        # `datasets` may have it in its cache, and otherwise says best what is wrong.
        return revision


def size(sources: Sequence[SourceSpec]) -> int | None:
    """Bytes to be read of all sources together; None where one does not say."""
    sizes = [size_of(spec.file) if spec.file else None for spec in sources]
    return None if None in sizes else sum(found for found in sizes if found is not None)


def hub_rows(source: SourceSpec) -> int | None:
    """Rows of a split as the data set's page has them, which is fetched and nothing else; None where it does not say, or cannot be reached."""
    import datasets

    try:
        info = datasets.load_dataset_builder(source.name, revision=source.revision).info
    except unreachable(ValueError, RuntimeError, datasets.exceptions.DatasetsError):
        return None  # the build meets the same, and says it
    split = (info.splits or {}).get(source.split)
    return None if split is None else int(split.num_examples)


def read(source: SourceSpec, columns: Collection[str], *, limit: int | None = None) -> Iterator[RawRow]:
    """The rows of a source in order, at most `limit`, with (at least) these columns; raises UserError where the source cannot be opened."""
    return itertools.islice(read_file(source.file, columns) if source.file else _read_hub(source, columns), limit)


def _read_hub(source: SourceSpec, columns: Collection[str]) -> Iterator[RawRow]:
    where = f"{source.name} (split {source.split})"
    local_hint = "without a network, download it elsewhere and name its files: packer build chats.jsonl -o data/packed"
    import datasets
    import huggingface_hub

    datasets.disable_progress_bars()
    huggingface_hub.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # untyped there
    try:
        rows = datasets.load_dataset(source.name, split=source.split, revision=source.revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise UserError(
            f"{where}: not on the hub, or not open to you ({first_line(error)})",
            f"check the name, or `hf auth login`; {local_hint}",
        ) from None
    except unreachable() as error:
        why = silence() or f"the hub cannot be reached ({first_line(error)})"
        raise UserError(f"{where}: {why}", local_hint) from None
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{where}: {first_line(error)}", "check --split and --revision against the data set's page"
        ) from None
    columns_there = rows.column_names
    wanted = [name for name in columns_there if name in columns]
    rows = rows.select_columns(wanted) if wanted else rows
    number = 0
    for batch in rows.iter(batch_size=ROWS_AT_ONCE):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            value = without_nulls(dict(zip(names, values, strict=True)))
            row = with_names(value, columns_there) if isinstance(value, dict) else value
            yield RawRow(number=number, place=f"{source.split} row {number}", value=row)
            number += 1
