"""Which split a file belongs to, by its name alone, as the `datasets` library infers it.

>>> splits_by_name(["train-00000-of-00001.parquet", "test.jsonl", "notes.jsonl"])
{'train': ('train-00000-of-00001.parquet',), 'test': ('test.jsonl',)}
>>> matching(["train_sft", "test_sft"], "train")
('train_sft',)

The rules are those of `datasets.data_files`, which takes more than a second to import. Differences, all of them on the side of not training on held-out
rows: letters of any case count, a file is never taken twice, and shards in one folder (`train_sft-00000-of-00003.parquet`) keep the names of their
splits wherever the folder lies; `datasets` keeps them in `data/` only, and elsewhere makes one split of `train_sft` and `train_gen`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

TRAIN = "train"
# Of `datasets.data_files`, in its order.
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_WORDS = frozenset(word for words in _KEYWORDS.values() for word in words)
_BREAK = "[-._ 0-9]"
# A keyword in the name of a folder or a split, and in that of a file, where something must follow.
_IN_WORDS, _IN_FILE = (
    {
        split: re.compile(f"(?:.*{_BREAK})?(?:{'|'.join(keywords)}){behind}", re.IGNORECASE | re.DOTALL)
        for split, keywords in _KEYWORDS.items()
    }
    for behind in (f"(?:{_BREAK}.*)?", f"{_BREAK}.*")
)
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}.*\.", re.DOTALL)
_SHARDS_FOLDER = "data"


def splits_by_name(files: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The files of a folder, named from it with "/" between, by split; those in none are not trained on. All are "train" where no name says anything."""
    shards = {file: match[1] for file in files if (match := _SHARD.match(_base(file)))}
    folders = {_parent(file) for file in shards}
    if _SHARDS_FOLDER in folders:
        return _grouped((split, file) for file, split in shards.items() if _parent(file) == _SHARDS_FOLDER)
    if in_folders := _grouped((split, file) for file in files for split in _splits_of_folders(file)):
        return in_folders
    names = set(shards.values())
    if len(folders) == 1 and len(shards) == len(files) and any(map(keywords_of, names)) and not names <= _WORDS:
        return _grouped((split, file) for file, split in shards.items())
    in_files = _grouped((split, file) for file in files for split in _matches(_IN_FILE, _base(file)))
    return in_files or {TRAIN: tuple(files)}


def split_of_file(name: str) -> str:
    """The split of a file that is named by itself: only its own name counts, not those of its folders."""
    return next(iter(splits_by_name([_base(name)])))


def keywords_of(split: str) -> tuple[str, ...]:
    """The splits of `train`, `validation`, `test` whose words are in a name: ("test",) for "test_sft"."""
    return _matches(_IN_WORDS, split)


def is_held_out(split: str) -> bool:
    """Whether rows of a split are not to be trained on unless somebody asks for them."""
    found = keywords_of(split)
    return bool(found) and TRAIN not in found


def matching(splits: Collection[str], wanted: str) -> tuple[str, ...]:
    """The splits that a name stands for: the one of that name, else those of its keyword ("train_sft" for "train")."""
    if wanted in splits:
        return (wanted,)
    meant = keywords_of(wanted)
    return tuple(split for split in splits if wanted.lower() in _WORDS and keywords_of(split)[:1] == meant)


def by_default(splits: Collection[str]) -> tuple[str, ...]:
    """The split that is trained on where none is asked for; none, or several, where nothing says which."""
    return matching(splits, TRAIN) or tuple(split for split in splits if len(splits) == 1 and not is_held_out(split))


def _splits_of_folders(file: str) -> tuple[str, ...]:
    folders = file.split("/")[:-1]
    return tuple(split for split in _KEYWORDS if any(split in keywords_of(folder) for folder in folders))


def _matches(patterns: dict[str, re.Pattern[str]], name: str) -> tuple[str, ...]:
    return tuple(split for split, pattern in patterns.items() if pattern.fullmatch(name))


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Splits in the order of `datasets`: train, validation, test, then others by name."""
    found: dict[str, list[str]] = {}
    for split, file in pairs:
        found.setdefault(split, []).append(file)
    order = [*(split for split in _KEYWORDS if split in found), *sorted(set(found) - set(_KEYWORDS))]
    return {split: tuple(found[split]) for split in order}


def _base(file: str) -> str:
    return file.rpartition("/")[2]


def _parent(file: str) -> str:
    return file.rpartition("/")[0]
