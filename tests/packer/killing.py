"""Builds that are killed at an exact moment: before the n-th time that they touch a file of their folder, for any n.

A build is a forked process with `--workers 1`; it kills itself with SIGKILL, which nothing can catch, when its audit events say so. What the kernel
has written by then stays, what Python had in hand is gone: what a kill from outside does, but at a moment that can be named.

python -m tests.packer.killing DATA TOKENIZER FOLDER SEED KILLS STORE      # STORE: 1, or 0 for --no-token-store; one JSON document on stdout
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pyarrow as pa

import packer
import packer.parts
import packer.pipeline
from packer.config import BuildConfig
from packer.errors import UserError
from packer.progress import Progress

# What changes a file or a folder, as Python's audit events call it.
_TOUCHES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.copyfile", "open"}


def build_config(data: str, tokenizer: str, out: Path, *, store: bool) -> BuildConfig:
    """A small build with many parts and shards, an eval split, over-long ones and copies."""
    return BuildConfig(
        mix=((data, Fraction(3, 2)),),
        tokenizer=tokenizer,
        out=out,
        capacity=512,
        eval_fraction=Fraction(1, 10),
        overlong="split",
        max_loss=Fraction(1),
        shard_rows=128,
        workers=1,
        token_store=store,
    )


def phase(touch: str) -> str:
    """The phase of a build that a touch of a file belongs to."""
    where = touch.split(" ", 1)[1].replace("/.", "/").lstrip(".")
    for word in ("tokenizer", "tokens", "examples", "rejects", "plan/train", "plan/eval", "train", "eval", "build-log"):
        if where.startswith(word):
            return word
    return "manifest" if where.startswith("manifest") else "folder"


class _Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def _in_a_fork(work: Callable[[], object]) -> tuple[int, str]:
    """(signal or status, what work returned as JSON) of a forked process that does `work`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001  # nothing may run on in a fork
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def _build(config: BuildConfig, kill_at: int | None) -> dict[str, object]:
    """Builds, and dies before touch number `kill_at` (None: never). Returns what was said, and a word for each touch."""
    touches: list[str] = []
    out, folder = str(config.out), str(config.out) + os.sep
    last: list[str] = [""]

    def touched(word: str, path: str) -> None:
        touches.append(f"{word} {os.path.relpath(path, out)}")
        if len(touches) - 1 == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event not in _TOUCHES:
            return
        if event == "open" and (not isinstance(arguments[1], str) or arguments[1][0] not in "wax"):
            return
        path = os.fspath(arguments[1] if event == "shutil.copyfile" else arguments[0])  # type: ignore[arg-type]
        path = path if isinstance(path, str) else ""
        if path.startswith(folder):
            last[0] = path
            touched(event, path)

    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        # Between a file's last byte and its rename.
        touched("fsync", last[0])
        real_fsync(descriptor)

    real_new_file = pa.ipc.new_file

    def new_file(file: object, *arguments: object, **options: object) -> object:
        # With the file begun and not one batch in it.
        touched("begin", last[0])
        return real_new_file(file, *arguments, **options)

    os.fsync = fsync
    pa.ipc.new_file = new_file
    sys.addaudithook(hook)
    said = _Said()
    packer.build(config, said)
    return {"said": said.lines, "touches": touches}


def _stamps(out: Path, *, all_shards: bool) -> dict[str, list[int]]:
    """What would change if a part or a shard were made again: its file's number and the time of its last byte.

    Of parts, and of shards that are noted as done (or all, where a finished build has put the notes away).
    """
    notes = {path.stem for home in (out, out / ".packer-aside") for path in (home / "plan").glob("*.json")}
    parts = [path for home in (out, out / ".packer-aside") for path in (home / "tokens").glob("part-*.arrow")]
    shards = [path for split in ("train", "eval") for path in (out / split).glob("shard-*.arrow")]
    done = [path for path in shards if all_shards or path.stem.replace("shard", path.parent.name) in notes]
    return {
        f"{path.parent.name}/{path.name}": [path.stat().st_ino, path.stat().st_mtime_ns] for path in [*parts, *done]
    }


def _broken(out: Path) -> list[str]:
    """Files under their final names that are not whole."""
    broken = []
    for path in out.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            try:
                if path.suffix == ".arrow":
                    pa.ipc.open_file(path).read_all().validate(full=True)
                elif path.suffix == ".json" and path.parent.name != "tokenizer":
                    json.loads(path.read_text(encoding="utf-8"))
            except (pa.ArrowException, ValueError):
                broken.append(str(path.relative_to(out)))
    return broken


def _looks_finished(out: Path) -> bool:
    try:
        packer.open(out)
    except UserError:
        return False
    return True


def _bytes_of(out: Path) -> dict[str, str]:
    import xxhash

    return {
        str(path.relative_to(out)): xxhash.xxh3_128_hexdigest(path.read_bytes())
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "build-log.json"
    }


def main() -> None:
    data, tokenizer, folder, seed, kills = sys.argv[1:6]
    store = sys.argv[6] == "1"
    packer.parts._PART_ROWS = 40  # type: ignore[misc]
    # All that is slow to import, once; nothing that starts threads, which a fork would lose.
    from transformers import PreTrainedTokenizerFast  # noqa: F401

    whole = Path(folder) / "whole"
    status, text = _in_a_fork(lambda: _build(build_config(data, tokenizer, whole, store=store), None))
    assert status == 0
    touches = json.loads(text)["touches"]
    expected = _bytes_of(whole)
    draw = random.Random(int(seed))
    # One in each of as many stretches of the build as there are kills, so that every phase is met.
    last = touches.index("open .manifest.json.tmp")
    edges = [round(number * len(touches) / int(kills)) for number in range(int(kills) + 1)]
    report = []
    moments = [draw.randrange(start, end) for start, end in itertools.pairwise(edges)]
    met = {phase(touches[moment]) for moment in moments}
    for missed in sorted({phase(touch) for touch in touches} - met):
        moments.append(draw.choice([number for number, touch in enumerate(touches) if phase(touch) == missed]))
    # And the moment at which everything but the manifest is there, and what does not belong to a finished folder is out of the way.
    for moment in [*moments, last]:
        out = Path(folder) / "killed"
        shutil.rmtree(out, ignore_errors=True)
        config = build_config(data, tokenizer, out, store=store)
        status, _ = _in_a_fork(lambda config=config, moment=moment: _build(config, moment))
        broken = _broken(out)
        before, finished = _stamps(out, all_shards=False), _looks_finished(out)
        again, text = _in_a_fork(lambda config=config: _build(config, None))
        after = _stamps(out, all_shards=True)
        report.append(
            {
                "moment": touches[moment],
                "phase": phase(touches[moment]),
                "status": status,
                "looked_finished": finished,
                "broken": broken,
                "parts": sum(name.startswith("tokens/") for name in before),
                "shards": sum(not name.startswith("tokens/") for name in before),
                "made_again": [
                    name
                    for name, stamp in before.items()
                    if after.get(name) != stamp and (store or not name.startswith("tokens/"))
                ],
                "again": again,
                "said": json.loads(text)["said"] if text else [],
                "same_bytes": _bytes_of(out) == expected,
            }
        )
    print(json.dumps({"touches": touches, "kills": report}))


if __name__ == "__main__":
    main()
