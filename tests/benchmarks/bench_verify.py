"""`packer verify` on a folder that is there, on one core: megabytes of shards a second, and what of it is the digest and what the rules of the rows.

python -m tests.benchmarks.bench_verify data/packed
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from packer.digest import digest_file
from packer.schema import broken_rules
from packer.shards import open_corpus
from packer.verify import verify


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Of each run, after one that is not counted (the first reads from disk)."""
    work()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=1)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    corpora = [open_corpus(arguments.folder, split=name) for name in open_corpus(arguments.folder).manifest.splits]
    manifest = corpora[0].manifest
    paths = [arguments.folder / shard.file for corpus in corpora for shard in corpus.info.shards]
    megabytes = sum(path.stat().st_size for path in paths) / 1e6

    def rules() -> None:
        for corpus in corpora:
            for _, _, batch in corpus.batches():
                assert not broken_rules(batch, pad_id=manifest.pad_id, vocab_size=manifest.vocab_size)

    def whole() -> None:
        assert not verify(arguments.folder).broken

    for name, work in (
        ("digests", lambda: [digest_file(path) for path in paths]),
        ("rules of the rows", rules),
        ("packer verify", whole),
    ):
        taken = seconds(work, arguments.repeats)
        rates = [megabytes / one for one in taken]
        print(
            f"{name:20} {statistics.median(rates):>8,.0f} MB/s ({min(rates):,.0f} to {max(rates):,.0f}), "
            f"{megabytes:,.1f} MB, {arguments.cores} core(s)"
        )


if __name__ == "__main__":
    main()
