"""The command that goes on with a run without some of its rows: a pure function of where the run stands.

>>> from trainer.config import RunConfig
>>> command(Path("runs/a"), RunConfig(shards="data/packed"), without=[17], step=12, saved=[10], shards=None)
'trainer run --config runs/a/config.toml --skip-rows 17'
>>> command(Path("runs/a"), RunConfig(shards="data/packed", skip_rows=(3,)), without=[17], step=12, saved=[10, 20], shards=None)
'trainer run --config runs/a/config.toml --skip-rows 3,17 --resume runs/a/checkpoints/step-000010 --out runs/a-without-17'
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from trainer.config import RunConfig
from trainer.run_folder import OPTIONS


def command(
    run: Path, options: RunConfig, *, without: Sequence[int], step: int, saved: Sequence[int], shards: str | None
) -> str:
    """saved: the steps of its complete checkpoints, in order. Where the newest is past `step`, the command starts from one before it, in a folder of its own.

    shards: where they lie now, if not where the run's options say.
    """
    words = ["trainer", "run", "--config", str(run / OPTIONS)]
    words += ["--skip-rows", ",".join(map(str, sorted({*options.skip_rows, *without})))]
    if shards is not None:
        words += ["--shards", shards]
    if saved and saved[-1] >= step:
        before = [each for each in saved if each < step]
        if before:
            words += ["--resume", str(run / "checkpoints" / f"step-{before[-1]:06d}")]
        words += ["--out", f"{run}-without-{'-'.join(map(str, sorted(without)[:3]))}"]
    return shlex.join(words)
