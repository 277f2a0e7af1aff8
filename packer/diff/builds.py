"""What two manifests, templates, tokenizers and logs say differently: why two builds are not the same.

changes = build_changes(a_folder, a_manifest, b_folder, b_manifest)
changes[0].what, changes[0].a, changes[0].b      # "options.overlong", "drop", "split"
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packer.diff.contents import source_label, source_names
from packer.digest import digest_file
from packer.manifest import Manifest, Source
from packer.tokenizer import TEMPLATE_NAME, tokenizer_files

_MOST_TEMPLATE_LINES = 12
_LONGEST_LINE = 160
_LOGGED = ("encoder", "engine", "python")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that differs. subject: options, template, tokenizer, sources, versions, ledger or counts. a, b: as they are in each; "" where absent."""

    subject: str
    what: str
    a: str
    b: str


def build_changes(a_folder: Path, a: Manifest, b_folder: Path, b: Manifest) -> list[Change]:
    """Everything that differs beside the rows themselves, causes first."""
    return [
        *_flat("options", _options(a), _options(b)),
        *_sources(a, b),
        *_flat("tokenizer", _tokenizer(a_folder, a), _tokenizer(b_folder, b)),
        *_flat("template", {"digest": a.chat_template}, {"digest": b.chat_template}),
        *_flat("versions", _versions(a_folder, a), _versions(b_folder, b)),
        *_flat("ledger", _ledger(a), _ledger(b)),
        *_flat("counts", _counts(a), _counts(b)),
    ]


def template_lines(a_folder: Path, b_folder: Path) -> tuple[str, ...]:
    """The first lines of the chat templates that differ, "-" before a's and "+" before b's; long ones are cut."""
    a, b = (_text(folder / "tokenizer" / TEMPLATE_NAME).splitlines() for folder in (a_folder, b_folder))
    lines = [
        line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"
        for line in difflib.unified_diff(a, b, lineterm="", n=0)
        if not line.startswith(("---", "+++"))
    ]
    return tuple(lines[:_MOST_TEMPLATE_LINES]) + (
        (f"… and {len(lines) - _MOST_TEMPLATE_LINES} more lines",) if len(lines) > _MOST_TEMPLATE_LINES else ()
    )


def _flat(subject: str, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[Change]:
    for what in [*a, *(key for key in b if key not in a)]:
        if a.get(what) != b.get(what):
            yield Change(subject=subject, what=what, a=str(a.get(what, "")), b=str(b.get(what, "")))


def _options(manifest: Manifest) -> dict[str, object]:
    return {
        "capacity": manifest.capacity,
        "strategy": manifest.strategy,
        "seed": manifest.seed,
        "shard_rows": manifest.shard_rows,
        "masking.method": manifest.masking.method,
        **manifest.options,
    }


def _sources(a: Manifest, b: Manifest) -> Iterator[Change]:
    mine, theirs = (dict(zip(source_names(one.sources), one.sources, strict=True)) for one in (a, b))
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        label = source_label(name)
        if name in mine and name in theirs:
            yield from _flat("sources", _source(label, mine[name]), _source(label, theirs[name]))
        else:
            there = f"{(mine.get(name) or theirs[name]).conversations} conversations"
            yield Change(
                subject="sources", what=label, a=there if name in mine else "", b=there if name in theirs else ""
            )


def _source(label: str, source: Source) -> dict[str, object]:
    return {
        f"{label}: weight": source.weight,
        f"{label}: revision": source.revision,
        f"{label}: conversations": source.conversations,
        f"{label}: digest": " ".join(file.xxh3_128 for file in source.files),
    }


def _tokenizer(folder: Path, manifest: Manifest) -> dict[str, object]:
    """Name and revision, the digest of each file, and of tokenizer.json and tokenizer_config.json of each part."""
    flat: dict[str, object] = {"name": manifest.tokenizer.name, "revision": manifest.tokenizer.revision}
    for path in tokenizer_files(folder / "tokenizer"):
        if path.name == TEMPLATE_NAME:
            continue
        flat[path.name] = digest_file(path)
        if path.suffix == ".json":
            flat |= _parts(path)
    return flat


def _parts(path: Path) -> dict[str, object]:
    try:
        document = json.loads(_text(path))
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    flat: dict[str, object] = {}
    document.pop("chat_template", None)  # the template that was used is compared by itself
    for key, value in document.items():
        inside = value.items() if key == "model" and isinstance(value, dict) else [("", value)]
        for inner, item in inside:
            whole = json.dumps(item, ensure_ascii=False, sort_keys=True)
            words = f"{len(item):,} entries" if isinstance(item, dict | list) else whole
            flat[f"{path.name}: {key}{f'.{inner}' if inner else ''}"] = _Long(words, whole)
    return flat


@dataclass(frozen=True, slots=True)
class _Long:
    """A value too long to show: a few words stand for it, but it is the whole that is compared."""

    words: str = field(compare=False)
    whole: str

    def __str__(self) -> str:
        return self.words


def _versions(folder: Path, manifest: Manifest) -> dict[str, object]:
    flat: dict[str, object] = {"format": manifest.format_version, "packer": manifest.packer_version}
    try:
        log = json.loads(_text(folder / "build-log.json"))
        flat |= {name: str(version) for name, version in log["versions"].items()}
        flat |= {name: str(log[name]) for name in _LOGGED}
    except (ValueError, TypeError, KeyError, AttributeError):
        flat["build-log.json"] = "not readable"
    return flat


def _ledger(manifest: Manifest) -> dict[str, object]:
    ledger = manifest.ledger
    return {
        **{f"conversations: {name}": count for name, count in ledger.conversations.items()},
        **{f"tokens: {name}": count for name, count in ledger.tokens.items()},
        **{f"conversations in part: {name}": count for name, count in ledger.in_part.items()},
        **{
            f"control tokens: {token} by {role}": count
            for role, spelled in ledger.control_tokens.items()
            for token, count in spelled.items()
        },
    }


def _counts(manifest: Manifest) -> dict[str, object]:
    flat: dict[str, object] = {
        name: getattr(manifest, name)
        for name in ("max_segments", "max_segment_len", "max_example_len", "pad_id", "vocab_size", "max_token_id")
    }
    flat["stop_ids"] = " ".join(map(str, manifest.stop_ids))
    for name, split in sorted(manifest.splits.items(), reverse=True):
        counts = asdict(split)
        shards = counts.pop("shards")
        flat |= {f"{name}: {key}": value for key, value in counts.items()}
        flat[f"{name}: shards"] = len(shards)
    return flat


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
