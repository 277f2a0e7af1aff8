"""The files that a name on the command line stands for, by split: a file, a folder, a glob, or an address of one of them.

found = find_files("data/chats", with_text=False, configuration=None)
found.splits["train"]        # paths or addresses; None instead of all this where the name can only be one of the hub
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fsspec

from packer.data_files import are_packed, data_files
from packer.errors import UserError
from packer.network import first_line, unreachable
from packer.readers import COMPRESSED, SUFFIXES, TEXT, base_name, kind_of, open_binary, splits_in_file
from packer.sources.folder_splits import Description, folder_splits
from packer.sources.split_names import split_of_file, splits_by_name

LOCAL_HINT = "give a .jsonl, .json, .parquet, .arrow, .csv or .tsv file, or a folder of them: packer build chats.jsonl -o data/packed"
_MAGIC = "*?["


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSet:
    """root: the folder that all of them lie in. splits: paths or addresses by split, each in order; with_several: those that hold more than one in their text. in_no_split: data that belongs to
    none of them. no_data: a line about files that are no data.
    """

    name: str
    root: str
    splits: Mapping[str, tuple[str, ...]]
    with_several: frozenset[str] = frozenset()
    in_no_split: tuple[str, ...] = ()
    no_data: str = ""


def find_files(name: str, *, with_text: bool, configuration: str | None) -> FileSet | None:
    """None for a name that can only be one of the hub. Raises UserError where there is nothing that can be read.

    with_text: whether plain text is read. configuration: `--config-name`, which only a folder can have.
    """
    if not name:
        raise UserError("a data set has no name: '' was given", LOCAL_HINT)
    find = partial(_find, name, with_text=with_text, configuration=configuration)
    if "://" in name:
        return _remote(name, find)
    path = Path(name).expanduser()
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{name[:80]}: {error.strerror}", LOCAL_HINT) from None
    if path.is_file():
        return find(str(path.parent), [path.name], is_file=True)
    if path.is_dir():
        return find(str(path), [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()])
    if any(character in name for character in _MAGIC):
        root = Path(_fixed(path.as_posix()) or ".")
        found = root.glob(path.as_posix().removeprefix(_fixed(path.as_posix())))
        return find(str(root), [file.relative_to(root).as_posix() for file in found if file.is_file()], is_glob=True)
    is_path = (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or "\\" in name
        or path.suffix.lower() in (*SUFFIXES, TEXT, *COMPRESSED)
    )
    if is_path:
        raise UserError(f"{name}: no such file or folder", LOCAL_HINT)
    return None


def _fixed(pattern: str) -> str:
    """What of a pattern comes before the first folder or file with a wildcard: "data/" of "data/*/chats.jsonl"."""
    return re.split(r"[*?\[]", pattern)[0].rpartition("/")[0] + "/" * ("/" in re.split(r"[*?\[]", pattern)[0])


def _remote(name: str, find: partial[FileSet]) -> FileSet:
    protocol = name.split("://", 1)[0]
    try:
        system, path = fsspec.url_to_fs(name)
        if is_glob := any(character in path for character in _MAGIC):
            root, found = _fixed(path).rstrip("/"), system.glob(path)
        elif is_file := not system.isdir(path):
            root, found = path.rpartition("/")[0], [path]
        else:
            root, found = path.rstrip("/"), system.find(path)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{name}: {first_line(error)}", f"install the package that reads {protocol}:// addresses"
        ) from None
    except unreachable() as error:
        raise UserError(
            f"{name}: cannot be reached ({first_line(error)})", "check the address, the network and your credentials"
        ) from None
    below = [file.removeprefix(f"{root}/") for file in found]
    return find(f"{protocol}://{root}", below, is_file=not is_glob and is_file, is_glob=is_glob)


def _find(
    name: str,
    root: str,
    files: Sequence[str],
    *,
    with_text: bool,
    configuration: str | None,
    is_file: bool = False,
    is_glob: bool = False,
) -> FileSet:
    """Of the files of a folder, named from it, those that are data, by split."""
    if configuration and (is_file or is_glob):
        raise UserError(f"--config-name {configuration}: {name} has no configurations", "leave it out")
    no_data = ""
    if is_file:
        read = [_readable(name, files[0], with_text=with_text)]
        splits = {split_of_file(base_name(files[0])): tuple(read)}
    elif is_glob:
        read = sorted(file for file in files if kind_of(file, text=with_text))
        splits = splits_by_name(read)
    else:
        if are_packed(files):
            raise UserError(
                f"{name}: rows that are packed already, not chats",
                "name the chats that they were built from; `packer repack` makes other rows of them",
            )
        data = data_files(files, partial(kind_of, text=with_text))
        read, no_data = list(data.read), data.named if data.left_out else ""
        described = Description(names=frozenset(files), read_text=lambda file: _text(f"{root}/{file}"))
        splits = folder_splits(read, described, where=name, configuration=configuration) if read else {}
    if not read:
        also = f" but {no_data}" if no_data else ""
        texts = any(kind_of(file, text=True) == TEXT for file in files)
        hint = (
            f"{TEXT} files are read with --format text, every line as a text" if texts and not with_text else LOCAL_HINT
        )
        raise UserError(f"{name}: no {', '.join(SUFFIXES)} file there{also}", hint)
    by_name = {split: _below(root, some) for split, some in splits.items()}
    inside = {file: found for some in by_name.values() for file in some if (found := splits_in_file(file))}
    by_text: dict[str, list[str]] = {}
    for split, some in by_name.items():
        for file in some:
            for one in inside.get(file, (split,)):
                by_text.setdefault(one, []).append(file)
    assigned = {file for some in splits.values() for file in some}
    return FileSet(
        name=name,
        root=root,
        splits={split: tuple(some) for split, some in by_text.items()},
        with_several=frozenset(inside),
        in_no_split=_below(root, (file for file in read if file not in assigned)),
        no_data=f"not read in {name}: {no_data}" if no_data else "",
    )


def _below(root: str, files: Iterable[str]) -> tuple[str, ...]:
    """Files named from a folder as paths or addresses."""
    if "://" in root:
        return tuple(f"{root}/{file}" for file in files)
    return tuple(str(Path(root, file)) for file in files)


def _readable(name: str, file: str, *, with_text: bool) -> str:
    kind = kind_of(file, text=True)
    if kind == TEXT and not with_text:
        raise UserError(
            f"{name}: lines of text, not conversations", "--format text takes every line as a text to learn"
        )
    if kind is None:
        raise UserError(f"{name}: a {Path(file).suffix or 'file without suffix'}, which is not read", LOCAL_HINT)
    return file


def _text(path: str) -> str:
    with open_binary(path) as file:
        return file.read().decode("utf-8", "replace")
