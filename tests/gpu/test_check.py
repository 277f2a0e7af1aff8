"""The script behind `make gpu-check`, tried on a CPU: it runs to its end, and says what is wrong where something is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.gpu import check, right
from tests.gpu.sizes import cpu
from tests.support import ROOT, run_module
from trainer.kernels import conv, scan
from trainer.segments import Segments


def test_every_section_runs_and_the_page_has_date_device_and_versions(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    done = run_module("tests.gpu.check", ["--cpu-smoke", "--out", page], cwd=ROOT, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    text = page.read_text()
    assert f"torch {torch.__version__}" in text
    for title in check.sections(cpu(), tmp_path):
        assert f"\n## {title}" in text
    assert "left out" not in text
    assert text.count("**FAILED**") == 0


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["check", "--out", str(tmp_path / "none.md")])
    assert check.main() == 2
    assert not (tmp_path / "none.md").exists()


def test_what_does_not_fit_the_budget_is_left_out_by_name(tmp_path: Path) -> None:
    found = check.run(cpu(), budget=-1.0, folder=tmp_path)
    assert [section.passed for section in found] == [None] * len(found)
    assert all("left out" in section.notes[0] for section in found)


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = conv.reference

    def loud(x: Tensor, *rest: object, segments: Segments) -> Tensor:
        out = exact(x, *rest, segments=segments)  # type: ignore[arg-type]
        return out * 1.02 if x.dtype == torch.bfloat16 else out

    def blind(x: Tensor, *rest: Tensor, segments: Segments) -> Tensor:
        whole = Segments.from_lengths([segments.num_tokens])
        return scanned(x, *rest, segments=whole if x.dtype == torch.bfloat16 else segments)

    scanned = scan.reference
    assert right.kernels(cpu()).passed
    monkeypatch.setattr(conv, "reference", loud)
    monkeypatch.setattr(scan, "reference", blind)
    section = right.kernels(cpu())
    assert section.passed is False
    assert {row[0] for row in section.rows if "NO" in row[-1]} == {"short convolution", "selective scan"}
