"""Helpers that are not fixtures: places, rows, and commands run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample" / "chats.jsonl"
TINY = ROOT / "data" / "sample" / "tiny-hybrid"
MODELLED = ROOT.parent / "shared" / "data" / "lengths.py"
REAL_ROWS = ROOT.parent / "shared" / "data" / "ultrachat_200k_1000.jsonl"


def run_module(
    module: str, arguments: Sequence[str | Path], *, cwd: Path, timeout: float = 900, **env: str
) -> subprocess.CompletedProcess[str]:
    """`python -m module …` as a user runs it, output captured."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def told(run: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of standard error, without those that a slow machine adds: how far a stage is, which is told where it takes seconds."""
    return [line for line in run.stderr.splitlines() if not re.search(r": [\d,]+ .*\([\d,.]+/s", line)]


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    """Rows as JSON lines; a string stands for itself, so that a broken line can be written."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def chat(*texts: str) -> dict[str, object]:
    """A row with user and assistant taking turns."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]}
