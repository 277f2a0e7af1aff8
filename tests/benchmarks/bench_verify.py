"""`packer verify` on a folder that is there, on one core: megabytes of shards a second, and what of it is the digest and what the rules of the rows.

python -m tests.benchmarks.bench_verify [data/packed]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import packer
from packer.config import BuildConfig
from packer.digest import digest_file
from packer.schema import broken_rules
from packer.shards import open_corpus
from packer.verify import verify
from tests.benchmarks.chats import write
from tests.benchmarks.harness import add_outputs, leave, spread, table
from tests.support import SAMPLE, TINY


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
    parser.add_argument("folder", type=Path, nargs="?", help="default: one built of --rows")
    parser.add_argument("--rows", type=Path, default=SAMPLE)
    parser.add_argument("--tokenizer", type=Path, default=TINY)
    parser.add_argument("--count", type=int, default=8_000, help="conversations of the folder that is built")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=1)
    add_outputs(parser)
    arguments = parser.parse_args()
    if arguments.folder:
        measure(arguments.folder, arguments)
        return
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "chats.jsonl", arguments.rows, count=arguments.count)
        packed = Path(place) / "packed"
        data = (str(Path(place) / "chats.jsonl"),)
        packer.build(BuildConfig(datasets=data, tokenizer=str(arguments.tokenizer), out=packed))
        measure(packed, arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    corpora = [open_corpus(folder, split=name) for name in open_corpus(folder).manifest.splits]
    manifest = corpora[0].manifest
    paths = [folder / shard.file for corpus in corpora for shard in corpus.info.shards]
    megabytes = sum(path.stat().st_size for path in paths) / 1e6

    def rules() -> None:
        for corpus in corpora:
            for _, _, batch in corpus.batches():
                assert not broken_rules(batch, pad_id=manifest.pad_id, vocab_size=manifest.vocab_size)

    def whole() -> None:
        assert not verify(folder).broken

    document: dict[str, list[float]] = {}
    lines: list[list[str]] = []
    for name, work in (
        ("digests", lambda: [digest_file(path) for path in paths]),
        ("rules of the rows", rules),
        ("packer verify", whole),
    ):
        rates = [megabytes / one for one in seconds(work, arguments.repeats)]
        document[name] = rates
        lines.append([name, spread(rates)])
    heading = [f"{megabytes:,.0f} MB of shards, {arguments.cores} core(s)", "MB/s"]
    leave(arguments, {"megabytes_per_s": document}, table(heading, lines))


if __name__ == "__main__":
    main()
