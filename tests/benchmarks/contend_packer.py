"""Contender: packer.build as a whole process. Prints tokens, the seconds of its stages, and start-up."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

STARTED = time.perf_counter()


def main() -> None:
    data, tokenizer, encoder, workers, out = sys.argv[1:6]
    shutil.rmtree(out, ignore_errors=True)
    import packer
    from packer.config import BuildConfig
    from packer.tokens import TokenStore

    config = BuildConfig(datasets=(data,), tokenizer=tokenizer, encoder=encoder, workers=int(workers), out=Path(out))  # type: ignore[arg-type]
    manifest = packer.build(config)
    log = json.loads((Path(out) / "build-log.json").read_text())
    seconds = log["seconds"]
    # From the first part on: importing, loading tokenizers and starting processes is start-up. By then every worker has made one part.
    rows = [head.rows for head in TokenStore(Path(out) / "tokens").heads]
    read, done = sum(rows), sum(rows[: max(int(workers), 1)])
    steady = seconds["all"] - seconds["first_part"]
    tokens = manifest.ledger.tokens["encoded"]
    start = time.perf_counter() - STARTED - steady
    print(
        json.dumps(
            {"all_tokens": tokens, "tokens": tokens * max(read - done, 0) / read, "seconds": steady, "start": start}
        )
    )


if __name__ == "__main__":
    main()
