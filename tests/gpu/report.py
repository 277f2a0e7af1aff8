"""What `make gpu-check` found, as one page: sections of tables, each with a verdict where there is one to give."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from dataclasses import dataclass, field

import torch

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "flash-linear-attention",
    "fla-core",
    "causal-conv1d",
    "flash-attn",
    "liger-kernel",
)


@dataclass(kw_only=True, slots=True)
class Section:
    """One subject. passed: None where nothing can fail (a measurement). notes: what was left out, and why."""

    title: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    passed: bool | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, *cells: object) -> None:
        """A row of the table."""
        self.rows.append(tuple(str(cell) for cell in cells))

    def require(self, holds: bool) -> str:
        """Counts a verdict, and gives the word for the table."""
        self.passed = holds and self.passed is not False
        return "yes" if holds else "**NO**"

    def markdown(self) -> str:
        """The section as it stands in RESULTS.md."""
        verdict = {None: "", True: " — passed", False: " — **FAILED**"}[self.passed]
        lines = [f"## {self.title}{verdict}", ""]
        if self.rows:
            lines += [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
            lines += [f"| {' | '.join(row)} |" for row in self.rows]
            lines.append("")
        lines += [f"- {note}" for note in self.notes]
        return "\n".join([*lines, f"({self.seconds:.0f} s)", ""])


def environment(device: torch.device) -> str:
    """Date, device and versions, as the head of the page."""
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        what = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    else:
        what = f"CPU ({platform.machine()}): the script tried, nothing measured"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"# GPU check\n\n{day} · {what} · Python {platform.python_version()}\n\n{' · '.join(versions)}\n"
