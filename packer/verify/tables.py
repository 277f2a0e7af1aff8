"""What lies beside the shards: the table of examples by itself, rejects.jsonl, the tokenizer's folder, and files that nothing names.

table = check_examples(folder, manifest, findings)
check_rejects(folder, manifest, table, findings)
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from packer.digest import digest_words
from packer.errors import UserError
from packer.examples import ExampleTable, read_examples
from packer.ledger import NOT_DRAWN
from packer.manifest import MANIFEST_NAME, Manifest
from packer.tokenizer import TEMPLATE_NAME, digest_tokenizer
from packer.types import BoolArray, Int64Array
from packer.verify.findings import Findings
from packer.verify.sums import EXAMPLES

REJECTS = "rejects.jsonl"


def check_examples(folder: Path, manifest: Manifest, findings: Findings) -> ExampleTable | None:
    """The table by itself and against the manifest; None where it cannot be read."""
    try:
        table = read_examples(folder)
    except UserError as error:
        findings.add(
            "the table of examples must be readable", EXAMPLES, detail=error.message.removeprefix(f"{folder}/")
        )
        return None

    def each(rule: str, broken: np.ndarray) -> None:
        for example in np.flatnonzero(broken).tolist():
            findings.add(rule, EXAMPLES, example=int(table.example_id[example]), source=table.origin(example, manifest))

    numbers = np.arange(len(table))
    each("example_id must count from 0", table.example_id != numbers)
    known = (table.source >= 0) & (table.source < len(manifest.sources))
    each("an example's source must be one of the manifest's", ~known)
    read = np.array([source.conversations for source in manifest.sources] or [0], dtype=np.int64)
    inside = (table.row >= 0) & (table.row < read[np.where(known, table.source, 0)])
    each("an example's row must be one that was read of its source", known & ~inside)
    each("piece and copy must be 0 or more", (table.piece < 0) | (table.copy < 0))
    each(
        "an example must have from 1 to capacity tokens, and fewer targets than tokens",
        (table.tokens < 1)
        | (table.tokens > manifest.capacity)
        | (table.supervised < 0)
        | (table.supervised >= np.maximum(table.tokens, 1)),
    )
    names = np.stack([table.source, table.row, table.piece, table.copy])
    order = np.lexsort(names[::-1])
    twice = np.zeros(len(table), dtype=bool)
    twice[order[1:]] = (np.diff(names[:, order]) == 0).all(axis=0)
    each("source, row, piece and copy must name one example", twice)
    each(
        "pieces and copies of a conversation must count from 0, each piece in every copy", _gaps(names[:, order], order)
    )
    for name, split in manifest.splits.items():
        count = int((table.is_eval == (name == "eval")).sum())
        findings.hold(
            count == split.examples,
            "a split's examples must be as many as examples/ lists",
            MANIFEST_NAME,
            f"splits.{name}.examples is {split.examples}, examples/ lists {count}",
        )
    conversations = np.unique(names[:2], axis=1).shape[1]
    went_in = manifest.ledger.conversations.get("in")
    findings.hold(
        conversations == went_in,
        "the ledger's conversations in must be those in examples/",
        MANIFEST_NAME,
        f"it has {went_in}, examples/ {conversations}",
    )
    return table


def _gaps(names: Int64Array, order: Int64Array) -> BoolArray:
    """bool [N], true on the first example of a conversation whose names leave something out; names int64 [4, N] sorted, order their places."""
    gaps = np.zeros(len(order), dtype=bool)
    if not len(order):
        return gaps
    first = np.flatnonzero(np.append(True, (np.diff(names[:2]) != 0).any(axis=0)))
    # Names that differ and are not negative leave nothing out exactly where there are (largest piece + 1) x (largest copy + 1) of them.
    pieces, copies = (np.maximum.reduceat(names[column], first) + 1 for column in (2, 3))
    gaps[order[first]] = pieces * copies != np.diff(np.append(first, len(order)))
    return gaps


def check_rejects(folder: Path, manifest: Manifest, table: ExampleTable | None, findings: Findings) -> None:
    """A line a conversation that did not go in, as many of each reason as the ledger has, and none of them in examples/."""
    try:
        # By newlines alone: a detail may quote other characters that end a line.
        lines = (folder / REJECTS).read_bytes().decode().split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        findings.add("rejects.jsonl must be readable", REJECTS, detail=str(error))
        return
    reasons: Counter[str] = Counter()
    places: dict[tuple[int, int], int] = {}
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            source, row, reason = entry["source"], entry["row"], entry["reason"]
            good = (
                type(source) is int
                and type(row) is int
                and all(isinstance(entry[key], str) for key in ("place", "reason", "detail"))
            )
        except (ValueError, TypeError, KeyError):
            good = False
        if not good:
            findings.add(
                "each line of rejects.jsonl must be an object with place, source, row, reason and detail",
                REJECTS,
                row=number,
            )
            continue
        reasons[reason] += 1
        places[source, row] = number
    for reason in sorted(set(reasons) | (set(manifest.ledger.conversations) - {"read", "in", NOT_DRAWN})):
        counted = manifest.ledger.conversations.get(reason, 0)
        findings.hold(
            reasons[reason] == counted,
            "rejects.jsonl must list as many of each reason as the ledger counts",
            REJECTS,
            f"{reason}: {reasons[reason]} lines, the ledger has {counted}",
        )
    if table is None:
        return
    for example in np.flatnonzero(np.isin(table.row, [row for _, row in places])).tolist():
        number = places.get((int(table.source[example]), int(table.row[example])), -1)
        if number >= 0:
            findings.add(
                "a conversation that did not go in must not be in examples/",
                REJECTS,
                row=number,
                example=example,
                source=table.origin(example, manifest),
            )


def check_tokenizer(folder: Path, manifest: Manifest, findings: Findings) -> None:
    """The tokenizer's files and the template against their digests."""
    place = folder / "tokenizer"
    try:
        digest = digest_tokenizer(place)
        template = (place / TEMPLATE_NAME).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        findings.add("the tokenizer and its template must be readable", "tokenizer", detail=str(error))
        return
    findings.hold(
        digest == manifest.tokenizer.digest,
        "the tokenizer's digest must be the manifest's",
        "tokenizer",
        f"its files make {digest}, the manifest says {manifest.tokenizer.digest}",
    )
    findings.hold(
        digest_words([template]) == manifest.chat_template,
        "the chat template's digest must be the manifest's",
        f"tokenizer/{TEMPLATE_NAME}",
    )


def check_strays(folder: Path, manifest: Manifest, findings: Findings) -> None:
    """No file that a reader of the folder could take for a shard or for a part of a table, and the log of this build."""
    named = {folder / shard.file for split in manifest.splits.values() for shard in split.shards}
    for path in sorted({*folder.rglob("*.arrow"), *folder.rglob("shard-*")} - named):
        parts = path.relative_to(folder).parts
        if not (len(parts) == 2 and parts[0] in (EXAMPLES, "tokens") and parts[1].startswith("part-")):
            findings.add("every shard in the folder must be named by the manifest", "/".join(parts))
    findings.hold((folder / "build-log.json").is_file(), "build-log.json must be there", "build-log.json")
