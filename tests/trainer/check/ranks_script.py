"""What every rank of a torchrun does for test_ranks.py: planted faults and sound models, sharded, one start for all of them. Rank 0 writes what came out.

python -m tests.trainer.check.ranks_script FOLDER NAME…     NAME: FAMILY, or FAMILY=FAULT of the zoo; writes FOLDER/found.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.trainer.check.benches import case_of, proved
from tests.trainer.check.zoo import ZOO
from tests.trainer.tiny_models import packed_model
from trainer.ranks import start_ranks


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    found: dict[str, list[str]] = {}
    with start_ranks() as ranks:
        own = folder / str(ranks.rank)  # so that no rank reads a config that another is writing
        for name in names:
            family, _, fault = name.partition("=")
            case = case_of(packed_model(family, own), own, ranks, sharded=True)
            report, _ = proved(ZOO[fault].plant(case) if fault else case)
            last = next((each for each in report.findings if not each.passed), report.findings[-1])
            mine = [last.name, str(last.passed), last.where]
            assert ranks.gather_objects(mine) == [mine] * ranks.world
            found[name] = mine
        if ranks.first:
            (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
