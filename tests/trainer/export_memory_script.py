"""Exports a run and says, in one line of JSON, by how much that raised the most that this process has ever held.

python -m tests.trainer.export_memory_script RUN OUT 0|1       1: like its base
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: F401  # imported before memory is counted

from tests.trainer.loading_script import memory
from trainer.export import export
from trainer.library import build_empty, read_config

if __name__ == "__main__":
    torch.set_num_threads(1)
    run, out, like_base = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "1"
    build_empty(
        read_config(str(run / "model")), torch.float32, "eager", "warm"
    )  # the library's modules, imported at first use
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    done = export(run, out, like_base=like_base)
    print(json.dumps({"rise": memory("VmHWM") - before, "written": done.nbytes}), flush=True)
