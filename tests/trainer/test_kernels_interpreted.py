"""What we hand to flash-linear-attention's kernels is right: they are run by Triton's interpreter, where no GPU is, forward and backward.

Right in the interpreter says nothing of speed on a GPU; that is for `make gpu-check`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.support import ROOT, run_module

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or importlib.util.find_spec("fla") is None,
        reason="needs triton and flash-linear-attention (the cuda extra), which a CPU install does not bring",
    ),
]


def test_the_fused_calls_equal_the_references_and_plan_no_grid_of_their_own(tmp_path: Path) -> None:
    done = run_module("tests.trainer.interpreted_script", [tmp_path], cwd=ROOT, timeout=600, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("plans of delta and conv") == 0
    assert sorted(found) == ["conv", "conv, bare", "delta", "scan"]
    assert {name: count for name, errors in found.items() if (count := len(errors)) < 3} == {}
    worst = {name: max(errors.values()) for name, errors in found.items()}
    assert all(error < 2e-5 for error in worst.values()), worst
