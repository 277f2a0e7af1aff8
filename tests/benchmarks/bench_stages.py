"""Where the time of a build goes, stage by stage, in one process: the next bottleneck by name, and all of it beside the encoder's own time.

python -m tests.benchmarks.bench_stages --rows ROWS.jsonl --tokenizer FOLDER

Each stage is a function of packer's, timed from outside without what it calls of the others. read: lines off the disk. parse: JSON. render: rows to
text. encode: text to ids. mask: targets by where the text lies. store: a part of the token store. plan, shards: as `packer repack` makes them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import packer
from packer import assemble, encode, inputs, parts, pipeline, render, repacking
from packer.config import BuildConfig
from packer.encoders import EncoderName
from packer.repacking import RepackConfig
from tests.benchmarks.chats import write
from tests.benchmarks.harness import add_outputs, leave, table

STAGES = ("read", "parse", "render", "encode", "mask", "store", "plan", "shards")


class Clock:
    """Seconds by stage, each without those that ran inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def around(self, owner: object, name: str, stage: str) -> mock._patch[Callable[..., object]]:
        """`owner.name` timed as `stage`."""
        original = getattr(owner, name)

        def timed(*arguments: object, **options: object) -> object:
            with self.stage(stage):
                return original(*arguments, **options)

        return mock.patch.object(owner, name, timed)


def measure(data: Path, tokenizer: Path, encoder: EncoderName, folder: Path) -> tuple[Counter[str], int]:
    """Seconds by stage of a build of `data`, and its tokens."""
    clock = Clock()
    config = BuildConfig(datasets=(str(data),), tokenizer=str(tokenizer), encoder=encoder, out=folder / "packed")
    packer.build(config)  # the folder that is repacked, and caches that are full
    found = inputs.resolve(config)
    (folder / "again").mkdir()
    with ExitStack() as patches:
        for owner, name, stage in (
            (encode, "parsed", "parse"),
            (render.Renderer, "_ready", "render"),
            (render, "canonical", "render"),
            (type(found.tokenizer), "encode", "encode"),
            (render, "token_spans", "mask"),
            (render.Renderer, "_examples", "mask"),
            (encode, "_joined_part", "store"),
            (encode, "write_part", "store"),
            (assemble, "make_plan", "plan"),
            (assemble, "write_split", "shards"),
        ):
            patches.enter_context(clock.around(owner, name, stage))
        make = encode.part_writer(found.renderer, folder / "again")
        raw = parts.raw_parts(
            found.sources, pipeline.token_keys(config, found), config.policies.layout.columns, limit=config.limit
        )
        while True:
            with clock.stage("read"):
                part = next(raw, None)
            if part is None:
                break
            with clock.stage("store"):
                make(part)
        again = RepackConfig(source=folder / "packed", out=folder / "repacked", capacity=8192, workers=1)
        with clock.stage("shards"):
            manifest = repacking.repack(again)
    return clock.seconds, manifest.ledger.tokens["encoded"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3_200)
    parser.add_argument("--encoder", nargs="+", default=["auto", "tokenizers"])
    parser.add_argument("--repeats", type=int, default=3)
    add_outputs(parser)
    arguments = parser.parse_args()
    runs: dict[str, list[Counter[str]]] = {name: [] for name in arguments.encoder}
    tokens = 0
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "chats.jsonl"
        write(data, arguments.rows, count=arguments.count)
        for repeat in range(arguments.repeats):
            for encoder in arguments.encoder:
                place = Path(folder) / f"{encoder}-{repeat}"
                place.mkdir()
                seconds, tokens = measure(data, arguments.tokenizer, encoder, place)
                runs[encoder].append(seconds)
    lines, document = [], {}
    for encoder, found in runs.items():
        each = {stage: statistics.median(one[stage] for one in found) for stage in STAGES}
        document[encoder] = each | {"all ÷ encode": sum(each.values()) / each["encode"]}
        lines.append(
            [
                encoder,
                *(f"{1e9 * seconds / tokens:.0f}" for seconds in each.values()),
                f"{sum(each.values()) / each['encode']:.2f}",
            ]
        )
    heading = [f"ns a token, one core, {tokens / 1e6:.1f} M tokens", *STAGES, "all ÷ encode"]
    leave(arguments, {"seconds": document, "tokens": tokens}, table(heading, lines))


if __name__ == "__main__":
    main()
