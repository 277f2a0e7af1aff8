"""How loud a run is: every line, only what must be known, or what the libraries say too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig
from trainer.loop import run


def test_a_quiet_run_prints_nothing_but_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(5, seed=0))
    write_model(tmp_path / "tiny")
    config = RunConfig(
        shards=str(tmp_path / "packed"),
        model=str(tmp_path / "tiny"),
        init="random",
        steps=2,
        rows_per_step=3,
        micro_rows=2,  # 4 places for 3 rows: a note
        skip_rows=(1,),
        out=str(tmp_path / "run"),
    )
    assert run(config, quiet=True) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) >= 2
    assert all(line.startswith("note ") for line in said)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2


def test_libraries_speak_on_standard_error_when_asked() -> None:
    code = (
        "import logging\nfrom trainer.say import let_libraries_speak\nlet_libraries_speak()\n"
        "from transformers.utils import logging as theirs\n"
        "theirs.get_logger('transformers.x').info('from transformers')\nlogging.getLogger('fsspec.x').info('from another')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert "from transformers" in run.stderr
    assert "fsspec.x: from another" in run.stderr
