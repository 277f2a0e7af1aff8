"""manifest.json by itself: its form, its types, and the sums that need no other file.

manifest = check_manifest(Path("data/packed"), findings)     # None where it cannot be read
built = read_options(Path("data/packed"), manifest, findings)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from packer.build_options import options_of, weights_of
from packer.config import BuildConfig
from packer.errors import UserError
from packer.intake import Weighted
from packer.manifest import MANIFEST_NAME, Manifest, corpus_digest, load_manifest
from packer.schema import CAPACITY_MULTIPLE, FORMAT_VERSION, ROWS_PER_BATCH, SEGMENTS_MULTIPLE
from packer.verify.findings import Findings


def check_manifest(folder: Path, findings: Findings) -> Manifest | None:
    """Reads the manifest and checks what it says by itself; None where it cannot be read.

    Raises UserError where the folder is no packed folder, or of a newer format.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        load_manifest(folder)  # says what is missing
    try:
        manifest = load_manifest(folder)
    except UserError as error:
        if _is_newer(path):
            raise
        findings.add("the manifest must be readable", MANIFEST_NAME, detail=error.message.removeprefix(f"{path}: "))
        return None
    _form(path, findings)
    _numbers(manifest, findings)
    _ledger(manifest, findings)
    for name in manifest.splits:
        _split(manifest, name, findings)
    named = corpus_digest(
        manifest.splits, capacity=manifest.capacity, max_segments=manifest.max_segments, pad_id=manifest.pad_id
    )
    findings.hold(
        named == manifest.corpus_digest,
        "corpus_digest must be that of the shards' digests, C, S and the pad id",
        MANIFEST_NAME,
        f"it is {manifest.corpus_digest}, they make {named}",
    )
    return manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWith:
    """What the rows were made of the tokens with: the options, and the sources with their weights."""

    config: BuildConfig
    sources: list[Weighted]


def read_options(folder: Path, manifest: Manifest, findings: Findings) -> BuiltWith | None:
    """What the manifest says that the folder was built with; None where it does not say what this version can build."""
    try:
        return BuiltWith(config=options_of(manifest, folder), sources=weights_of(manifest, folder))
    except UserError as error:
        why = error.message.removeprefix(f"{folder / MANIFEST_NAME}: ")
        findings.add("options and weights must be those of a build of this version", MANIFEST_NAME, detail=why)
        return None


def _is_newer(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    version = document.get("format_version") if isinstance(document, dict) else None
    return isinstance(version, int) and version > FORMAT_VERSION


def _form(path: Path, findings: Findings) -> None:
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    written = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    findings.hold(written == text, "the manifest must be written with sorted keys, one key a line", MANIFEST_NAME)
    for place, value in _values(document, ""):
        if type(value) not in (int, str):
            findings.add(
                "the manifest must hold integers and strings only", MANIFEST_NAME, detail=f"{place} is {value!r}"
            )
        elif isinstance(value, str) and (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
            findings.add("the manifest must hold no absolute path", MANIFEST_NAME, detail=f"{place} is {value}")


def _values(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _values(item, f"{place}[{number}]")
    else:
        yield place, value


def _numbers(manifest: Manifest, findings: Findings) -> None:
    def hold(holds: bool, rule: str, detail: str) -> None:
        findings.hold(holds, rule, MANIFEST_NAME, detail)

    capacity, segments, rows = manifest.capacity, manifest.max_segments, manifest.shard_rows
    hold(
        capacity > 0 and capacity % CAPACITY_MULTIPLE == 0,
        f"capacity must be a positive multiple of {CAPACITY_MULTIPLE}",
        f"it is {capacity}",
    )
    hold(
        rows > 0 and rows % ROWS_PER_BATCH == 0,
        f"shard_rows must be a positive multiple of {ROWS_PER_BATCH}",
        f"it is {rows}",
    )
    hold(
        "train" in manifest.splits and set(manifest.splits) <= {"train", "eval"},
        "splits must be train, and eval where there is one",
        f"they are {', '.join(sorted(manifest.splits))}",
    )
    train = manifest.splits.get("train")
    hold(
        train is None or train.max_segments == segments,
        "max_segments must be the train split's",
        f"it is {segments}, the split's {train.max_segments if train else 0}",
    )
    hold(0 <= manifest.pad_id < manifest.vocab_size, "pad_id must lie in the vocabulary", f"it is {manifest.pad_id}")
    hold(
        manifest.max_token_id < manifest.vocab_size,
        "max_token_id must lie in the vocabulary",
        f"it is {manifest.max_token_id}, the vocabulary has {manifest.vocab_size}",
    )
    hold(
        all(0 <= stop < manifest.vocab_size for stop in manifest.stop_ids),
        "stop_ids must lie in the vocabulary",
        f"they are {', '.join(map(str, manifest.stop_ids))}",
    )


def _ledger(manifest: Manifest, findings: Findings) -> None:
    conversations, tokens = manifest.ledger.conversations, manifest.ledger.tokens
    for whole, part, counts in (("read", "in", conversations), ("encoded", "in_rows", tokens)):
        parts = sum(count for name, count in counts.items() if name != whole)
        findings.hold(
            whole in counts and part in counts and counts[whole] == parts and min(counts.values()) >= 0,
            f"the ledger must add up: {whole} = {part} and each {'reason' if whole == 'read' else 'loss'}",
            MANIFEST_NAME,
            f"{whole} is {counts.get(whole)}, the rest makes {parts}",
        )
    read = sum(source.conversations for source in manifest.sources)
    findings.hold(
        read == conversations.get("read"),
        "the ledger's conversations read must be those of the sources",
        MANIFEST_NAME,
        f"it has {conversations.get('read')}, the sources {read}",
    )
    in_rows = sum(split.tokens for split in manifest.splits.values())
    findings.hold(
        in_rows == tokens.get("in_rows"),
        "the ledger's tokens in rows must be those of the splits",
        MANIFEST_NAME,
        f"it has {tokens.get('in_rows')}, the splits {in_rows}",
    )


def _split(manifest: Manifest, name: str, findings: Findings) -> None:
    split = manifest.splits[name]

    def hold(holds: bool, rule: str, detail: str) -> None:
        findings.hold(holds, rule, MANIFEST_NAME, f"splits.{name}: {detail}")

    hold(
        split.max_segments > 0 and split.max_segments % SEGMENTS_MULTIPLE == 0,
        f"max_segments must be a positive multiple of {SEGMENTS_MULTIPLE}",
        f"it is {split.max_segments}",
    )
    hold(
        split.tokens + split.pad_tokens == split.rows * manifest.capacity,
        "tokens and pad tokens must fill the split's rows",
        f"{split.tokens} and {split.pad_tokens} in {split.rows} rows of {manifest.capacity}",
    )
    rows = [shard.rows for shard in split.shards]
    hold(sum(rows) == split.rows, "a split's rows must be those of its shards", f"{split.rows} and {sum(rows)}")
    uneven = [
        f"{shard.file} has {shard.rows} rows"
        for number, shard in enumerate(split.shards)
        if not (shard.rows == manifest.shard_rows or (number == len(rows) - 1 and 0 < shard.rows < manifest.shard_rows))
    ]
    hold(not uneven, "every shard but the last must hold shard_rows rows", "; ".join(uneven[:3]))
    misnamed = [
        shard.file for number, shard in enumerate(split.shards) if shard.file != f"{name}/shard-{number:05d}.arrow"
    ]
    hold(not misnamed, "shards must be named by their split and number, in order", ", ".join(misnamed[:3]))
