"""What a check found: each broken rule with the file, the row and the example it was seen in.

    findings = Findings()
    findings.hold(1 + 1 == 2, "numbers must add up", "manifest.json")
    findings.add("a shard must be there", "train/shard-00003.arrow")

All are counted; of each rule the first few are kept, so that one damaged column does not hide the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

MOST_KEPT_OF_A_RULE = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One broken rule. file: relative to the folder. row: its place in that file. example: its id. source: the place its conversation came from."""

    rule: str
    file: str
    row: int | None = None
    example: int | None = None
    source: str = ""
    detail: str = ""

    @property
    def where(self) -> str:
        """The place in words: "train/shard-00001.arrow, row 5, example 812 (chats.jsonl:813)"."""
        parts = [self.file]
        parts += [f"row {self.row}"] if self.row is not None else []
        parts += [f"example {self.example}"] if self.example is not None else []
        return ", ".join(parts) + (f" ({self.source})" if self.source else "")


class Findings:
    """A list that counts everything and keeps the first 20 of each rule, in the order they were added."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.counts.total()

    def add(
        self,
        rule: str,
        file: str,
        *,
        row: int | None = None,
        example: int | None = None,
        source: str = "",
        detail: str = "",
    ) -> None:
        if self.counts[rule] < MOST_KEPT_OF_A_RULE:
            self.kept.append(Finding(rule=rule, file=file, row=row, example=example, source=source, detail=detail))
        self.counts[rule] += 1

    def hold(self, holds: bool, rule: str, file: str, detail: str = "") -> bool:
        """Adds the rule where it does not hold; returns whether it does."""
        if not holds:
            self.add(rule, file, detail=detail)
        return holds

    def merge(self, other: Findings) -> None:
        """Takes over what another list found."""
        already = Counter(self.counts)
        for finding in other.kept:
            if already[finding.rule] < MOST_KEPT_OF_A_RULE:
                already[finding.rule] += 1
                self.kept.append(finding)
        self.counts.update(other.counts)
