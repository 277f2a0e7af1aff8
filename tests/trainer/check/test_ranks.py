"""Two ranks find in a sharded model what one finds in a whole one, and all of them the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.trainer.check.zoo import ALL, HYBRIDS, ZOO

_FEW = ["qwen3_5=convolution: no boundary", "qwen3=attention: backward only"]
_EVERY = [f"{family}={fault}" for fault, plant in ZOO.items() for family in plant.families]


@pytest.mark.parametrize("faults", [_FEW, pytest.param(_EVERY, marks=pytest.mark.full)], ids=["few", "every"])
def test_planted_faults_are_found_under_torchrun(faults: list[str], tmp_path: Path) -> None:
    sound = [HYBRIDS[0]] if faults is _FEW else list(ALL)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "tests.trainer.check.ranks_script", str(tmp_path), *sound, *faults],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for name in faults:
        plant = ZOO[name.partition("=")[2]]
        check, passed, where = found[name]
        assert (check, passed) == (plant.check, "False"), name
        for words in plant.says:
            assert words in where, name
    for name in sound:
        assert found[name][0] == "labels", found[name]  # all before it passed; the fixture's rows teach nothing
