"""Which files of a set are trained on, which are evaluated on, and which are left out by their split.

chosen = choose(find_files("data", with_text=False, configuration=None), split=None, eval_split="test")
chosen.train, chosen.eval, chosen.left_out
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packer.errors import UserError
from packer.readers import count_rows, rows_of, utf8
from packer.sources.file_sets import FileSet
from packer.sources.split_names import by_default, is_held_out, matching

_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Files of data that are not read, of one split; split: empty where they belong to none."""

    source: str
    root: str
    split: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """train, eval: (split, file) in order."""

    train: tuple[tuple[str, str], ...]
    eval: tuple[tuple[str, str], ...]
    left_out: tuple[LeftOut, ...]


def choose(files: FileSet, *, split: str | None, eval_split: str | None) -> Chosen:
    """Raises UserError where the set has no split of that name, or where nothing says which split to train on.

    A name may be several joined by "+". A set without the eval split gives nothing to evaluate on.
    """
    train = _asked(files, split) if split else by_default(files.splits)
    if len(train) != 1 and not (split and train):
        raise _not_said(files, split)
    evaluated = _asked(files, eval_split) if eval_split else ()
    left_out = [
        LeftOut(source=files.name, root=files.root, split=name, files=some)
        for name, some in files.splits.items()
        if name not in (*train, *evaluated)
    ]
    if files.in_no_split:
        left_out.append(LeftOut(source=files.name, root=files.root, split="", files=files.in_no_split))
    return Chosen(train=_pairs(files, train), eval=_pairs(files, evaluated), left_out=tuple(left_out))


def only_split(files: FileSet, option: str) -> tuple[tuple[str, str], ...]:
    """All files of a set with one split; raises UserError where it has several."""
    if len(files.splits) > 1:
        raise UserError(
            f"{option} {files.name}: has the splits {', '.join(files.splits)}", f"name the files: {option} test.jsonl"
        )
    return _pairs(files, files.splits)


def _asked(files: FileSet, wanted: str) -> tuple[str, ...]:
    if wanted in files.splits:
        return (wanted,)
    found = [matching(files.splits, one) for one in wanted.split("+")]
    return (
        tuple(dict.fromkeys(split for some in found for split in some)) if all(len(some) == 1 for some in found) else ()
    )


def _pairs(files: FileSet, splits: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((split, file) for split in splits for file in files.splits[split])


def _not_said(files: FileSet, split: str | None) -> UserError:
    names = ", ".join(files.splits)
    several = "splits" if len(files.splits) > 1 else "split"
    if split:
        return UserError(
            f"--split {split}: {files.name} has the {several} {names}", f"try --split {next(iter(files.splits))}"
        )
    if files.in_no_split and not by_default(files.splits):
        return UserError(
            f"{files.name}: has the {several} {names}, by the names of its folders, and nothing else in a split",
            f"name the files to train on, such as {files.in_no_split[0]}",
        )
    if len(files.splits) == 1 and is_held_out(names):
        return UserError(
            f"{files.name}: called {names}, which is not trained on unless that is asked for",
            f"--split {names} trains on it, --eval-file {files.name} evaluates on it",
        )
    best = next(iter(by_default(files.splits)), next(iter(files.splits)))
    return UserError(
        f"{files.name}: has the {several} {names}, and nothing says which to train on", f"choose: --split {best}"
    )


def line_about(left_out: LeftOut, *, count: bool) -> str:
    """What is left out, for a person: split, files, rows. count: whether files are read for the number of their rows where they do not say it."""
    rows = [count_rows(file, left_out.split) if count else rows_of(file) for file in left_out.files]
    known = [number for number in rows if number is not None]
    counted = f"{sum(known):,} row{'' if sum(known) == 1 else 's'}" if len(known) == len(rows) else "rows not counted"
    more = f", … {len(left_out.files):,} files in all" if len(left_out.files) > _SHOWN else ""
    names = ", ".join(utf8(file.removeprefix(f"{left_out.root}/")) for file in left_out.files[:_SHOWN])
    what = f"split {left_out.split}" if left_out.split else "in no split"
    return f"not read in {left_out.source}: {what} ({counted}): {names}{more}"
