"""`packer verify`: a folder held against every rule of packer/FORMAT.md, and every broken one named with shard and row.

    report = verify(Path("data/packed"))
    report.broken, report.findings

Without `deep` nothing but the folder is read: digests, every row by every rule, the token store by its own digests, what comes of it, and all sums between
rows, tables and manifest. `deep` compares every token of the rows with the token store as well, and tokenizes a sample of the conversations again from
their source.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from packer.examples import ExampleTable
from packer.manifest import Manifest
from packer.progress import Progress
from packer.verify.findings import Finding, Findings
from packer.verify.listing import Stored
from packer.verify.manifest import BuiltWith, check_manifest, read_options
from packer.verify.rows import Rows
from packer.verify.shards import Tally, check_shards
from packer.verify.source import SourceCheck, check_source
from packer.verify.store import check_rows_against_store, check_store
from packer.verify.sums import check_sums
from packer.verify.tables import check_examples, check_rejects, check_strays, check_tokenizer

SAMPLE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Deep:
    """What --deep did. stored: examples compared with the token store (None: there is none). source: None where the rest was too broken to go on."""

    stored: int | None
    source: SourceCheck | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was checked and what was found. rules: each broken rule and how often; findings: the first few places of each. seconds: it took, without what `deep` adds."""

    shards: int
    bytes: int
    rows: int
    examples: int
    token_store: bool
    seconds: float
    rules: Mapping[str, int]
    findings: tuple[Finding, ...]
    deep: Deep | None

    @property
    def broken(self) -> int:
        """How often a rule was broken, over all rules."""
        return sum(self.rules.values())

    def to_json(self) -> dict[str, object]:
        return {"ok": not self.broken, "broken": self.broken, **asdict(self)}


def verify(folder: Path, *, deep: bool = False, sample: int = SAMPLE, progress: Progress | None = None) -> Report:
    """Checks a folder; raises UserError where it is no packed folder, or of a newer format."""
    progress = progress or Progress()
    started = time.monotonic()
    findings = Findings()
    manifest = check_manifest(folder, findings)
    tallies: dict[str, Tally] = {}
    table: ExampleTable | None = None
    stored: Stored | None = None
    done, seconds = None, 0.0
    if manifest is not None:
        tallies = _check_folder(folder, manifest, findings, progress)
        table = check_examples(folder, manifest, findings)
        check_sums(manifest, tallies, table, findings)
        check_rejects(folder, manifest, table, findings)
        check_tokenizer(folder, manifest, findings)
        check_strays(folder, manifest, findings)
        built = read_options(folder, manifest, findings)
        stored = check_store(folder, manifest, built, table, findings)
        seconds = time.monotonic() - started
        if deep:
            done = _deep(folder, manifest, table, tallies, built, stored, findings, progress, sample=sample)
    shards = [shard for split in manifest.splits.values() for shard in split.shards] if manifest else []
    return Report(
        shards=len(shards),
        bytes=sum(shard.bytes for shard in shards),
        rows=sum(tally.rows for tally in tallies.values()),
        examples=sum(len(tally.example) for tally in tallies.values()),
        token_store=stored is not None,
        seconds=round(seconds, 3),
        rules=dict(findings.counts),
        findings=tuple(findings.kept),
        deep=done,
    )


def _check_folder(folder: Path, manifest: Manifest, findings: Findings, progress: Progress) -> dict[str, Tally]:
    size = sum(shard.bytes for split in manifest.splits.values() for shard in split.shards)
    with progress.stage("verify", unit="MB", total=size / 1e6) as advance:
        return {
            name: check_shards(folder, manifest, name, findings, advance)
            for name in sorted(manifest.splits, reverse=True)
        }


def _deep(
    folder: Path,
    manifest: Manifest,
    table: ExampleTable | None,
    tallies: Mapping[str, Tally],
    built: BuiltWith | None,
    stored: Stored | None,
    findings: Findings,
    progress: Progress,
    *,
    sample: int,
) -> Deep:
    """The token store and the source, where what they are compared with can be relied on."""
    # An example that is in no row, or in two, has nothing it could be compared with.
    if findings or table is None or built is None:
        return Deep(stored=None, source=None)
    rows = Rows(folder, manifest, table, tallies)
    compared = None
    if stored is not None:
        with progress.stage("compare with the token store", unit="conversations") as advance:
            compared = check_rows_against_store(folder, rows, findings, advance)
    source = check_source(folder, manifest, built.config, table, rows, stored, findings, progress, sample=sample)
    return Deep(stored=compared, source=source)
