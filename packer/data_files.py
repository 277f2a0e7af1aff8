"""Which files of a folder are data: those of a format that is read, in it or below it, but for what is known to be something else.

A folder of chats often holds its neighbours too: the tokenizer, a model, the rows that an earlier build packed, a run. What of these has a suffix that
is read is left out, and is to be named: a file that is asked for by itself is always read.

    found = data_files({"chats.jsonl", "base/config.json"}, kind_of)
    found.read, found.left_out        # ("chats.jsonl",), ("base/config.json",)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

# Beside a model's weights, and beside the rows of a data set: of transformers and datasets.
_BESIDE = frozenset(
    {"config.json", "generation_config.json", "adapter_config.json", "quantize_config.json"}
    | {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"}
    | {"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "chat_template.json"}
    | {"model.safetensors.index.json", "pytorch_model.bin.index.json", "trainer_state.json"}
    | {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
)
_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """Names below the folder, sorted. left_out: files that are known to be no data, and folders, with a "/", that are packed rows or a run."""

    read: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def named(self) -> str:
        """`left_out` for a person: the first names, how many there are, and why."""
        more = f", … {len(self.left_out)} in all" if len(self.left_out) > _SHOWN else ""
        named = ", ".join(self.left_out[:_SHOWN])
        return f"{named}{more} (of a model, a tokenizer, a data set's description, packed rows or a run)"


def data_files(names: Iterable[str], kind_of: Callable[[str], str | None]) -> DataFiles:
    """Sorts a folder's files, named from it with "/" between. kind_of: None for a file that is not read. Hidden ones are passed over."""
    files = sorted(name for name in names if not _is_hidden(PurePosixPath(name)))
    folders = [folder for folder in _of_another_kind(files) if folder]
    read, left_out = [], set()
    for name in files:
        within = next((folder for folder in folders if name.startswith(f"{folder}/")), None)
        if within is not None:
            left_out.add(f"{within}/")
        elif kind_of(name) is None:
            continue
        elif PurePosixPath(name).name in _BESIDE:
            left_out.add(name)
        else:
            read.append(name)
    return DataFiles(read=tuple(read), left_out=tuple(sorted(left_out)))


def _is_hidden(name: PurePosixPath) -> bool:
    """As `datasets` passes over them: dot files, and folders that begin with two underscores (`__pycache__`)."""
    return any(part.startswith(".") for part in name.parts) or any(part.startswith("__") for part in name.parts[:-1])


def are_packed(names: Iterable[str]) -> bool:
    """Whether the files of a folder, named from it, are those of packed rows."""
    return "" in _packed(set(names))


def _of_another_kind(files: list[str]) -> list[str]:
    """Folders that are packed rows or a run, outermost first; "" for the folder itself."""
    there = set(files)
    runs = {_parent(name) for name in files if name.endswith("metrics.jsonl") and _beside(name, "config.toml") in there}
    return sorted(_packed(there) | runs)


def _packed(there: set[str]) -> set[str]:
    """Finished builds have shards and a manifest, others parts of the token store and the tokenizer."""
    found = set()
    for pattern, also in (
        ("train/shard-*.arrow", "manifest.json"),
        ("tokens/part-*.arrow", "tokenizer/tokenizer.json"),
    ):
        folders = {_parent(_parent(name)) for name in there if PurePosixPath(name).match(pattern)}
        found |= {folder for folder in folders if (f"{folder}/{also}" if folder else also) in there}
    return found


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _beside(name: str, other: str) -> str:
    folder = _parent(name)
    return f"{folder}/{other}" if folder else other
