"""manifest.json: what a folder of packed shards holds, written last, so that a folder without it is an unfinished build.

Integers and strings only, sorted keys, no times and no absolute paths: equal inputs and options give equal bytes.

    manifest = load_manifest(Path("data/packed"))
    manifest.splits["train"].rows
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import TypeVar

from packer.digest import digest_words
from packer.errors import UserError
from packer.schema import FORMAT_VERSION, format_version

MANIFEST_NAME = "manifest.json"
# What a build makes in its folder (and may leave there when it stops), and what conversations come in.
_PARTS, _LEFT = ("train", "eval", "examples", "tokens", "plan"), ("rejects.jsonl", "build-log.json")
_RAW = frozenset({".jsonl", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".gz", ".zst"})
_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """One shard: file relative to the folder, its rows, its bytes and their digest."""

    file: str
    rows: int
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The counts of one split and its shards in order. max_segments is the split's own S (never above the build's)."""

    rows: int
    examples: int
    tokens: int
    supervised_tokens: int
    pad_tokens: int
    lower_bound_rows: int
    max_segments: int
    shards: tuple[ShardFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A local file by its base name, and the digest of its bytes."""

    file: str
    xxh3_128: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where conversations came from: a hub name with revision, configuration and split, or a file and the split that it was taken for. used_for: "train"
    (of which an eval fraction may be set aside) or "eval"; empty in older folders. conversations: how many were read.
    """

    name: str
    revision: str
    split: str
    files: tuple[SourceFile, ...]
    weight: str
    conversations: int
    config: str = ""
    used_for: str = ""

    @property
    def title(self) -> str:
        """For people: the name, with configuration and split where a file's own name does not say them."""
        return (
            self.name
            if self.files and self.split in ("", "train")
            else " ".join(word for word in (self.name, self.config, self.split) if word)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """name: hub name, or the folder's base name; digest: of the tokenizer's files, and of nothing else."""

    name: str
    revision: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Masking:
    """policy: what is trained on (`--train-on`). method: how the targets were found ("generation tags" or "marks")."""

    policy: str
    method: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """conversations: "read", "in" and each reason. tokens: "encoded", "in_rows" and each loss. Both add up, always. in_part: of the conversations "in",
    how many lost tokens, by that loss. control_tokens: by role, how often each was spelled by a text that went in (and, unless they were kept, was
    encoded as text). notes: counts of what else happened to data that went in, by kind and detail; absent from the file where there are none.
    """

    conversations: Mapping[str, int]
    tokens: Mapping[str, int]
    control_tokens: Mapping[str, Mapping[str, int]]
    in_part: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The document as packer/FORMAT.md has it, key by key."""

    format_version: int
    packer_version: str
    capacity: int
    max_segments: int
    shard_rows: int
    max_segment_len: int
    max_example_len: int
    pad_id: int
    vocab_size: int
    max_token_id: int
    stop_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    tokenizer: Tokenizer
    chat_template: str
    masking: Masking
    options: Mapping[str, str | int]
    seed: int
    strategy: str
    splits: Mapping[str, Split]
    ledger: Ledger
    corpus_digest: str

    @property
    def align(self) -> int:
        """Every example begins at a multiple of so many slots. Only a build with an alignment above 1 names it."""
        align = self.options.get("align", 1)
        return align if isinstance(align, int) and align > 1 else 1

    @property
    def weighted(self) -> bool:
        """Whether the shards have the column `loss_weights`."""
        return self.format_version == format_version(weighted=True)

    def to_json(self) -> str:
        document = asdict(self)
        if not self.ledger.notes:
            del document["ledger"]["notes"]
        return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def corpus_digest(splits: Mapping[str, Split], *, capacity: int, max_segments: int, pad_id: int) -> str:
    """The digest that names a corpus: of the ordered digests of its shards, C, S and the pad id."""
    words: list[str | int] = [capacity, max_segments, pad_id]
    for name in sorted(splits):
        words += [name, *(shard.xxh3_128 for shard in splits[name].shards)]
    return digest_words(words)


def load_manifest(folder: Path, *, name: str | None = None) -> Manifest:
    """Reads and checks a folder's manifest; raises UserError where it is missing, unreadable, newer or points outside the folder.

    name: what the folder is called in messages, where that is not its path.
    """
    path = folder / MANIFEST_NAME
    where = f"{name or folder}/{MANIFEST_NAME}"
    if folder.is_file() or _is_raw(folder):
        raise UserError(
            f"{folder}: data that is not tokenized and packed yet{'' if folder.is_file() else f' (no {MANIFEST_NAME})'}",
            f"`packer build {folder} -o data/packed` does that, once; then give data/packed",
        )
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", "give the folder that `packer build -o` wrote")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {MANIFEST_NAME}: not a packed folder, or a build that did not finish",
            "run `packer build` again with the same -o: it writes the manifest last",
        ) from None
    except UnicodeDecodeError as error:
        raise _unreadable(where, str(error)) from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _unreadable(where, f"line {error.lineno}: {error.msg}") from None
    if not isinstance(document, dict):
        raise _unreadable(where, "not a JSON object")
    version = document.get("format_version")
    if not isinstance(version, int):
        raise _unreadable(where, "no format_version")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{where}: format version {version}, but this reader knows versions up to {FORMAT_VERSION}",
            "upgrade this package, or build the shards again with it",
        )
    try:
        manifest = _manifest(document)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _unreadable(where, str(error)) from None
    for split in manifest.splits.values():
        for shard in split.shards:
            if leaves_folder(shard.file):
                raise UserError(
                    f"{where}: shard file {shard.file!r} does not lie in the folder",
                    "do not use this folder: its manifest was not written by packer",
                )
    return manifest


def _is_raw(folder: Path) -> bool:
    """Whether a folder holds files of rows and nothing of a build."""
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists() or any((folder / name).exists() for name in _PARTS):
        return False
    return any(path.suffix in _RAW and path.name not in _LEFT for path in folder.iterdir())


def _unreadable(where: str, why: str) -> UserError:
    return UserError(
        f"{where}: not a readable manifest ({why})", "build the folder again, or restore the file from a copy"
    )


def leaves_folder(name: str) -> bool:
    """Whether a file's name, as a manifest has it, names something outside the folder."""
    relative = PurePosixPath(name)
    return not name or relative.is_absolute() or ".." in relative.parts or "\\" in name or ":" in name


def _record(cls: type[_Record], document: Mapping[str, object], **parsed: object) -> _Record:
    """A flat record from its JSON object; `parsed` holds the fields that are not plain values. Types are checked, unknown keys are not errors."""
    values: dict[str, object] = dict(parsed)
    for one in fields(cls):  # type: ignore[arg-type]  # every _Record is a dataclass
        if one.name in values:
            continue
        value = document[one.name] if one.default is MISSING else document.get(one.name, one.default)
        wanted = int if one.type == "int" else str
        if type(value) is not wanted:
            raise TypeError(f"{one.name} is {value!r}, expected {wanted.__name__}")
        values[one.name] = value
    return cls(**values)


def _manifest(document: dict[str, object]) -> Manifest:
    def objects(value: object) -> list[dict[str, object]]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise TypeError(f"expected a list of objects, got {type(value).__name__}")
        return value

    def mapping(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, got {type(value).__name__}")
        return value

    def counts(value: object) -> dict[str, int]:
        return {key: int(str(count)) for key, count in mapping(value).items()}

    splits = {
        name: _record(
            Split,
            mapping(split),
            shards=tuple(_record(ShardFile, shard) for shard in objects(mapping(split)["shards"])),
        )
        for name, split in mapping(document["splits"]).items()
    }
    ledger = mapping(document["ledger"])
    stop_ids = document["stop_ids"]
    if not isinstance(stop_ids, list):
        raise TypeError("stop_ids must be a list")
    return _record(
        Manifest,
        document,
        stop_ids=tuple(int(stop_id) for stop_id in stop_ids),
        sources=tuple(
            _record(Source, source, files=tuple(_record(SourceFile, file) for file in objects(source["files"])))
            for source in objects(document["sources"])
        ),
        tokenizer=_record(Tokenizer, mapping(document["tokenizer"])),
        masking=_record(Masking, mapping(document["masking"])),
        options={
            key: value if isinstance(value, int) else str(value) for key, value in mapping(document["options"]).items()
        },
        splits=splits,
        ledger=Ledger(
            conversations=counts(ledger["conversations"]),
            tokens=counts(ledger["tokens"]),
            in_part=counts(ledger.get("in_part", {})),
            control_tokens={role: counts(tokens) for role, tokens in mapping(ledger["control_tokens"]).items()},
            notes={kind: counts(details) for kind, details in mapping(ledger.get("notes", {})).items()},
        ),
    )
