"""The splits of a folder of data: as its own description has them, or else by the names of its files.

    splits = folder_splits(["train/data-00000-of-00001.arrow", …], Description(all_names, read_text), where="data", configuration=None)
    splits["train"]

A folder may describe itself in three ways, and each counts before the names: `dataset_dict.json` and `state.json` (`save_to_disk`), and the
`configs` at the head of a README.md (data sets of the hub).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic

from fsspec.utils import glob_translate

from packer.errors import UserError
from packer.sources.split_names import TRAIN, splits_by_name

_STATE, _DICT, _CARDS = "state.json", "dataset_dict.json", ("README.md", ".huggingface.yaml")
# What a configuration may say without changing how a file is read.
_KNOWN_KEYS = frozenset(
    {"config_name", "data_files", "data_dir", "default", "description", "version", "features"}
    | {"drop_labels", "drop_metadata"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What a folder holds beside its data. names: of all its files; read_text: the text of one."""

    names: Collection[str]
    read_text: Callable[[str], str]

    def document(self, name: str) -> Mapping[str, object]:
        """A JSON object of the folder; empty where the file is not there, or is none."""
        if name not in self.names:
            return {}
        try:
            found = json.loads(self.read_text(name))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def folder_splits(
    files: Sequence[str], described: Description, *, where: str, configuration: str | None
) -> dict[str, tuple[str, ...]]:
    """Files of data by split; raises UserError where the folder's description cannot be followed.

    files: names of data in the folder, sorted. where: the folder for people. configuration: `--config-name`.
    """
    files = _saved(files, described, where)
    configurations = _configurations(described, where)
    if configurations or configuration:
        return _configured(files, configurations, where, configuration)
    saved = described.document(_DICT).get("splits")
    if isinstance(saved, list) and saved:
        return {str(split): tuple(file for file in files if file.startswith(f"{split}/")) for split in saved}
    if split := described.document(_STATE).get("_split"):
        # "train[:10%]" is of train; "train+test" is what it says.
        name = re.fullmatch(r"(\w+)\[.*\]", str(split))
        return {name[1] if name else str(split): tuple(files)}
    if _STATE in described.names:
        return {TRAIN: tuple(files)}
    return splits_by_name(files)


def _saved(files: Sequence[str], described: Description, where: str) -> list[str]:
    """Without the Arrow files beside a saved data set that are no part of it: `map` and `filter` leave a cache there."""
    parts: dict[str, set[str]] = {}
    for name in described.names:
        folder, _, base = name.rpartition("/")
        state = described.document(name) if base == _STATE else {}
        listed = state.get("_data_files")
        if not isinstance(listed, list):
            continue
        if state.get("_indices_data_files"):
            raise UserError(
                f"{where}/{name}: a data set saved with a table of indices, by an old version of datasets",
                "load it and save it again: datasets.load_from_disk(FOLDER).flatten_indices().save_to_disk(OTHER)",
            )
        parts[folder] = {str(one.get("filename")) for one in listed if isinstance(one, dict)}
        within = f"{folder}/" if folder else ""
        if missing := sorted(part for part in parts[folder] if f"{within}{part}" not in described.names):
            raise UserError(
                f"{where}/{within}{missing[0]}: missing, but {name} lists it", "copy the whole folder again"
            )
    kept = []
    for file in files:
        folder, _, base = file.rpartition("/")
        if not base.endswith(".arrow") or base in parts.get(folder, {base}):
            kept.append(file)
    return kept


def _configurations(described: Description, where: str) -> dict[str, dict[str, object]]:
    """The `configs` at the head of the folder's README.md by name, in order."""
    card: dict[str, object] = {}
    for name in _CARDS:
        text = described.read_text(name) if name in described.names else ""
        if name == _CARDS[0]:
            head = re.match(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", text, re.DOTALL)
            text = head[1] if head else ""
        # Only a card with configurations is worth an import.
        if "configs" in text:
            import yaml

            try:
                found = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise _bad_card(where, name, " ".join(str(error).split())) from None
            card.update(found if isinstance(found, dict) else {})
    listed = card.get("configs") or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "config_name" in one for one in listed):
        raise _bad_card(where, _CARDS[0], "`configs` is not a list of objects with a config_name")
    return {str(one["config_name"]): one for one in listed}


def _configured(
    files: Sequence[str], configurations: Mapping[str, dict[str, object]], where: str, wanted: str | None
) -> dict[str, tuple[str, ...]]:
    if not configurations:
        raise UserError(
            f"--config-name {wanted}: {where} has no configurations", "leave it out: the folder is one data set"
        )
    default = [
        name
        for name, one in configurations.items()
        if len(configurations) == 1 or name == "default" or one.get("default")
    ]
    name = wanted or (default[0] if len(default) == 1 else None)
    if name is None or name not in configurations:
        raise no_configuration(where, list(configurations), wanted)
    configuration = configurations[name]
    if unknown := sorted(set(configuration) - _KNOWN_KEYS):
        raise UserError(
            f"{where}/{_CARDS[0]}: the configuration {name} sets {', '.join(unknown)}, which is not known here",
            "name its files instead, or save what datasets.load_dataset gives with save_to_disk",
        )
    root = str(configuration.get("data_dir") or "").removeprefix("./").strip("/")
    inside = {
        file.removeprefix(f"{root}/") if root else file: file
        for file in files
        if not root or file.startswith(f"{root}/")
    }
    patterns = configuration.get("data_files")
    if patterns is None:
        return {split: tuple(inside[file] for file in found) for split, found in splits_by_name(list(inside)).items()}
    found: dict[str, tuple[str, ...]] = {}
    for split, some in _patterns(patterns, where).items():
        # As `datasets` does: a pattern may match nothing, a name may not.
        if lacking := [one for one in some if not has_magic(one) and one.removeprefix("./") not in inside]:
            raise UserError(
                f"{where}/{_CARDS[0]}: the configuration {name} lists {', '.join(lacking)}, no data file there",
                "fetch the whole data set, or choose another with --config-name",
            )
        matchers = [re.compile(glob_translate(one.removeprefix("./"))) for one in some]
        found[split] = tuple(file for name, file in inside.items() if any(one.match(name) for one in matchers))
        if not found[split]:
            raise UserError(
                f"{where}/{_CARDS[0]}: no data file there for {', '.join(some)} of the configuration {name}",
                "fetch the whole data set, or choose another with --config-name",
            )
    return found


def _patterns(data_files: object, where: str) -> dict[str, list[str]]:
    """Patterns by split: one pattern, a list of them, or a list of objects with split and path."""
    listed = data_files if isinstance(data_files, list) else [data_files]
    found: dict[str, list[str]] = {}
    for one in listed:
        split, path = (one.get("split"), one.get("path")) if isinstance(one, dict) else (TRAIN, one)
        paths = path if isinstance(path, list) else [path]
        if not isinstance(split, str) or not all(isinstance(each, str) for each in paths):
            raise _bad_card(where, _CARDS[0], f"`data_files` cannot be {one!r}")
        found.setdefault(split, []).extend(map(str, paths))
    return found


def no_configuration(where: str, names: Sequence[str], wanted: str | None) -> UserError:
    """What is told where a data set has several configurations and none, or another, was asked for."""
    what = f"--config-name {wanted}: {where} has" if wanted else f"{where}: has several configurations:"
    return UserError(f"{what} {', '.join(names)}", f"choose one: --config-name {names[0]}")


def _bad_card(where: str, name: str, why: str) -> UserError:
    return UserError(
        f"{where}/{name}: its configurations cannot be read ({why})", "correct it, or name the files of data themselves"
    )
