"""What must agree between the rows, the table of examples and the manifest, once every shard has been read.

check_sums(manifest, {"train": tally}, table, findings)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from packer.examples import ExampleTable
from packer.manifest import MANIFEST_NAME, Manifest
from packer.plan import lower_bound
from packer.schema import format_version
from packer.types import Int64Array
from packer.verify.findings import MOST_KEPT_OF_A_RULE, Findings
from packer.verify.shards import Tally

EXAMPLES = "examples"


def check_sums(
    manifest: Manifest, tallies: Mapping[str, Tally], table: ExampleTable | None, findings: Findings
) -> None:
    """The manifest's counts and maxima, and each example's one place in the rows. A split that could not be read whole is not summed up."""
    for name, tally in tallies.items():
        if tally.complete:
            _counts(manifest, name, tally, findings)
        if table is not None:
            _against_table(manifest, name, tally, table, findings)
    if all(tally.complete for tally in tallies.values()):
        findings.hold(
            manifest.format_version == format_version(weighted=any(tally.weighted for tally in tallies.values())),
            "format_version must be 2 where a target has a weight other than 1, else 1",
            MANIFEST_NAME,
            f"it is {manifest.format_version}",
        )
        _maxima(manifest, tallies, findings)
        if table is not None:
            _each_once(tallies, table, findings)


def _counts(manifest: Manifest, name: str, tally: Tally, findings: Findings) -> None:
    split, tokens = manifest.splits[name], int(tally.tokens.sum())
    for key, said, counted in (
        ("rows", split.rows, tally.rows),
        ("examples", split.examples, len(tally.example)),
        ("tokens", split.tokens, tokens),
        ("supervised_tokens", split.supervised_tokens, int(tally.supervised.sum())),
        ("pad_tokens", split.pad_tokens, tally.slots - tokens),
        (
            "lower_bound_rows",
            split.lower_bound_rows,
            lower_bound(tally.tokens, manifest.capacity, align=manifest.align),
        ),
    ):
        findings.hold(
            said == counted,
            f"a split's {key} must be what its shards make",
            MANIFEST_NAME,
            f"splits.{name}.{key} is {said}, the shards make {counted}",
        )


def _maxima(manifest: Manifest, tallies: Mapping[str, Tally], findings: Findings) -> None:
    parts = tallies.values()
    for key, said, counted in (
        ("max_segment_len", manifest.max_segment_len, max((part.longest_segment for part in parts), default=0)),
        (
            "max_example_len",
            manifest.max_example_len,
            max((-(-int(part.tokens.max(initial=0)) // manifest.align) * manifest.align for part in parts), default=0),
        ),
        # The pad id is counted whether or not a row needed it: a reader fills rows of its own with it.
        ("max_token_id", manifest.max_token_id, max([manifest.pad_id, *(part.highest_token for part in parts)])),
    ):
        findings.hold(
            said == counted,
            f"{key} must be the largest there is",
            MANIFEST_NAME,
            f"it is {said}, the shards make {counted}",
        )


def _against_table(manifest: Manifest, name: str, tally: Tally, table: ExampleTable, findings: Findings) -> None:
    """Each segment that holds an example against that example's line."""
    listed = tally.example < len(table)

    def each(rule: str, broken: Int64Array, detail: tuple[str, Int64Array, Int64Array] | None = None) -> None:
        for number in broken.tolist():
            words = f"{detail[1][number]} in the row, {detail[2][number]} {detail[0]}" if detail else ""
            _add(manifest, name, tally, number, rule, findings, detail=words, table=table)

    each("every example in a row must be listed in examples/", np.flatnonzero(~listed))
    example = np.where(listed, tally.example, 0)
    if not len(table):
        return
    for word, mine, theirs in (
        ("tokens", tally.tokens, table.tokens[example]),
        ("supervised", tally.supervised, table.supervised[example]),
    ):
        broken = np.flatnonzero(listed & (mine != theirs))
        each(f"an example's {word} in examples/ must be those of its row", broken, ("in examples/", mine, theirs))
    each(
        "an example's split in examples/ must be its row's",
        np.flatnonzero(listed & (table.is_eval[example] != (name == "eval"))),
    )
    order = np.argsort(tally.example, kind="stable")
    again = order[1:][np.diff(tally.example[order]) == 0]
    each("an example must lie in the rows of a split once", np.sort(again))


def _each_once(tallies: Mapping[str, Tally], table: ExampleTable, findings: Findings) -> None:
    inside = np.concatenate([np.zeros(0, dtype=np.int64), *(tally.example for tally in tallies.values())])
    seen = np.bincount(inside[inside < len(table)], minlength=len(table))
    for example in np.flatnonzero(seen == 0).tolist():
        findings.add("every example in examples/ must lie in a row", EXAMPLES, example=example)


def _add(
    manifest: Manifest,
    name: str,
    tally: Tally,
    number: int,
    rule: str,
    findings: Findings,
    *,
    table: ExampleTable,
    detail: str = "",
) -> None:
    example = int(tally.example[number])
    few = findings.counts[rule] < MOST_KEPT_OF_A_RULE
    findings.add(
        rule,
        manifest.splits[name].shards[int(tally.shard[number])].file,
        row=int(tally.row[number]),
        example=example,
        source=table.origin(example, manifest) if few and example < len(table) else "",
        detail=detail,
    )
