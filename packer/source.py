"""Where conversations come from: files (here, or at an address such as s3://), or a data set on the hub (by `datasets`, and only here).

opened = open_sources([("chats.jsonl", Fraction(1)), ("s3://bucket/more/*.parquet", Fraction(1, 2))], split=None, eval_split=None, revision=None)
for row in read(opened.sources[0], columns={"messages"}): ...
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from packer.errors import UserError
from packer.hub import look_for, silence
from packer.network import first_line, unreachable
from packer.readers import ROWS_AT_ONCE, base_name, read_file, size_of
from packer.sources.arrow_rows import batch_rows
from packer.sources.chosen_splits import LeftOut, choose, only_split
from packer.sources.file_sets import LOCAL_HINT, FileSet, find_files
from packer.sources.folder_splits import no_configuration
from packer.sources.raw_row import RawRow

DEFAULT_DATASET = "HuggingFaceH4/ultrachat_200k"
_DEFAULT_SPLITS = {DEFAULT_DATASET: "train_sft"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpec:
    """One source: a file (a path or an address; split: of several that it holds, or what it was taken for), or a hub name (then revision, config and
    split say which rows).

    weight: copies of each conversation. is_eval: all of it goes to the eval split.
    """

    name: str
    file: str | None = None
    weight: Fraction = Fraction(1)
    revision: str | None = None
    config: str = ""
    split: str = ""
    is_eval: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What the names on the command line stand for, in the order given. not_read: a line for each folder that also has files which are no data.
    left_out: data that is not read, by split."""

    sources: tuple[SourceSpec, ...]
    not_read: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


def open_sources(
    names: Sequence[tuple[str, Fraction]],
    *,
    split: str | None,
    eval_split: str | None,
    revision: str | None,
    eval_files: Sequence[str] = (),
    config_name: str | None = None,
    with_text: bool = False,
) -> Opened:
    """Raises UserError for a name that is neither a file nor a hub name, and for a split or configuration that is not there.

    eval_files: files that are evaluated on, whatever they are called. with_text: whether plain text is read.
    """
    sources: list[SourceSpec] = []
    no_data: list[str] = []
    left_out: list[LeftOut] = []
    without_eval: list[FileSet] = []
    several: set[str] = set()
    for name, weight in names or [(DEFAULT_DATASET, Fraction(1))]:
        if (files := find_files(name, with_text=with_text, configuration=config_name)) is not None:
            if revision:
                raise UserError(f"--revision is for data sets on the hub, but {name} is not one", "leave it out")
            several |= files.with_several
            chosen = choose(files, split=split, eval_split=eval_split)
            sources += _specs(chosen.train, weight=weight)
            sources += _specs(chosen.eval, is_eval=True)
            left_out += chosen.left_out
            no_data += [files.no_data] if files.no_data else []
            without_eval += [] if chosen.eval else [files]
            continue
        train = split or _DEFAULT_SPLITS.get(name, "train")
        resolved = _commit(name, revision)
        spec = SourceSpec(name=name, revision=resolved, config=config_name or "", split=train, weight=weight)
        sources.append(spec)
        if eval_split:
            sources.append(replace(spec, split=eval_split, weight=Fraction(1), is_eval=True))
    if eval_split and without_eval and not any(spec.is_eval for spec in sources):
        raise UserError(
            f"--eval-split {eval_split}: {without_eval[0].name} has no such split, only {', '.join(without_eval[0].splits)}",
            "name its files with --eval-file, or set some aside with --eval-fraction 0.01",
        )
    for name in eval_files:
        if (named := find_files(name, with_text=with_text, configuration=None)) is None:
            raise UserError(f"--eval-file {name}: no such file or folder", "a split of the hub is --eval-split")
        several |= named.with_several
        sources += _specs(only_split(named, "--eval-file"), is_eval=True)
    _refuse_twice(sources, several)
    # What one name leaves out another may read.
    read_too = {_rows_of(spec, several) for spec in sources}
    left = [
        replace(one, files=rest)
        for one in left_out
        if (
            rest := tuple(
                file for file in one.files if (_whole_path(file), one.split if file in several else "") not in read_too
            )
        )
    ]
    return Opened(sources=tuple(sources), not_read=tuple(no_data), left_out=tuple(left))


def _specs(
    files: Iterable[tuple[str, str]], *, weight: Fraction = Fraction(1), is_eval: bool = False
) -> list[SourceSpec]:
    return [
        SourceSpec(name=base_name(file), file=file, split=split, weight=weight, is_eval=is_eval)
        for split, file in files
    ]


def _refuse_twice(sources: Sequence[SourceSpec], several: Collection[str]) -> None:
    seen: dict[object, SourceSpec] = {}
    for spec in sources:
        if (other := seen.setdefault(_rows_of(spec, several), spec)) is spec:
            continue
        what = spec.file or spec.name
        if other.is_eval != spec.is_eval:
            raise UserError(f"{what}: named both to train on and to evaluate on", "leave it out of one of them")
        raise UserError(f"{what}: named twice", "give it once; --mix NAME=2 takes two copies of each conversation")


def _rows_of(spec: SourceSpec, several: Collection[str]) -> tuple[str, ...]:
    """What decides the rows of a source. several: files that hold more than one split."""
    if spec.file:
        return (_whole_path(spec.file), spec.split if spec.file in several else "")
    return (spec.name, spec.config, spec.split)


def _whole_path(file: str) -> str:
    """The same for every way to write the path of a file, but for links."""
    return file if "://" in file else os.path.abspath(file)


def _commit(name: str, revision: str | None) -> str | None:
    """The commit that a hub revision stands for today, so that the same name tomorrow is known to be other data; the revision where nobody answers."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        look_for(f"the data set {name}")
        return HfApi().dataset_info(name, revision=revision, timeout=10).sha or revision
    except HFValidationError:
        raise UserError(f"{name}: neither a file nor a hub name", LOCAL_HINT) from None
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
        info = datasets.load_dataset_builder(source.name, source.config or None, revision=source.revision).info
    except unreachable(ValueError, RuntimeError, datasets.exceptions.DatasetsError):
        return None  # the build meets the same, and says it
    split = (info.splits or {}).get(source.split)
    return None if split is None else int(split.num_examples)


def read(source: SourceSpec, columns: Collection[str], *, limit: int | None = None) -> Iterator[RawRow]:
    """The rows of a source in order, at most `limit`, with (at least) these columns; raises UserError where the source cannot be opened."""
    rows = read_file(source.file, columns, source.split) if source.file else _read_hub(source, columns)
    return itertools.islice(rows, limit)


def _read_hub(source: SourceSpec, columns: Collection[str]) -> Iterator[RawRow]:
    where = f"{source.name} (split {source.split})"
    local_hint = "without a network, download it elsewhere and name its files: packer build chats.jsonl -o data/packed"
    import datasets
    import huggingface_hub

    datasets.disable_progress_bars()
    huggingface_hub.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # untyped there
    try:
        rows = datasets.load_dataset(source.name, source.config or None, split=source.split, revision=source.revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise UserError(
            f"{where}: not on the hub, or not open to you ({first_line(error)})",
            f"check the name, or `hf auth login`; {local_hint}",
        ) from None
    except unreachable() as error:
        why = silence() or f"the hub cannot be reached ({first_line(error)})"
        raise UserError(f"{where}: {why}", local_hint) from None
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, ValueError) and _is_about_configuration(error):
            names = datasets.get_dataset_config_names(source.name, revision=source.revision)
            raise no_configuration(source.name, names, source.config or None) from None
        raise UserError(
            f"{where}: {first_line(error)}", "check --split and --revision against the data set's page"
        ) from None
    columns_there = rows.column_names
    wanted = [name for name in columns_there if name in columns]
    rows = (rows.select_columns(wanted) if wanted else rows).with_format("arrow")
    batches = (batch for table in rows.iter(batch_size=ROWS_AT_ONCE) for batch in table.to_batches())
    yield from batch_rows(source.split, batches, columns_there)


def _is_about_configuration(error: ValueError) -> bool:
    """Whether `datasets` says that a configuration is missing, or is not one of the data set's."""
    return re.match(r"Config name is missing|BuilderConfig .* not found", str(error)) is not None
