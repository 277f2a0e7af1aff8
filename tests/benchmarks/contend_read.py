"""Contenders for reading packed rows, each with the same work: for a shuffled list of row numbers, ids, loss mask, positions and boundaries as numpy
arrays, copied into buffers that are there already (so that every byte is touched); or the ids alone.

python -m tests.benchmarks.contend_read write litdata PACKED FOLDER       the rows in a peer's own format
python -m tests.benchmarks.contend_read read litdata FOLDER PASSES        prints tokens, seconds, start-up

Each peer reads in the fastest way that its documentation shows.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

STARTED = time.perf_counter()

import numpy as np  # noqa: E402  # importing is part of starting

Arrays = tuple[np.ndarray, ...]
NAMES = ("input_ids", "loss_mask", "position_ids", "cu_seqlens")
_LITDATA_CHUNK = "64MB"


def columns(row: object) -> dict[str, np.ndarray]:
    """What every contender has to give, of one packed row."""
    return {name: np.array(getattr(row, name)) for name in NAMES}


@functools.cache
def corpus_of(packed: Path):  # type: ignore[no-untyped-def]  # imported only where it is the contender
    from packer.shards import open_corpus

    return open_corpus(packed)


def litdata_row(index: int, packed: Path) -> dict[str, np.ndarray]:
    """At the top of the module, so that litdata's worker can find it."""
    return columns(corpus_of(packed)[index])


def write(name: str, packed: Path, folder: Path) -> None:
    """The same rows as a peer keeps them."""
    corpus = corpus_of(packed)
    folder.mkdir(parents=True, exist_ok=True)
    if name == "memmap":
        with (folder / "ids.bin").open("wb") as file:
            for row in corpus:
                file.write(row.input_ids.tobytes())
    elif name == "litdata":
        import litdata

        litdata.optimize(
            functools.partial(litdata_row, packed=packed),
            inputs=list(range(len(corpus))),
            output_dir=str(folder),
            chunk_bytes=_LITDATA_CHUNK,
            num_workers=1,
        )
    elif name == "streaming":
        import streaming

        first = columns(corpus[0])
        # A shape makes it a plain copy of the bytes: no header to parse. It knows no bool.
        kinds = {key: f"ndarray:{_mds_dtype(value)}:{len(value)}" for key, value in first.items()}
        with streaming.MDSWriter(out=str(folder), columns=kinds, compression=None, hashes=[]) as file:
            for row in corpus:
                file.write({key: value.astype(_mds_dtype(value), copy=False) for key, value in columns(row).items()})
    elif name == "datasets":
        import datasets

        kinds = {key: str(value.dtype) for key, value in columns(corpus[0]).items()}
        kinds["loss_mask"] = "bool"
        features = datasets.Features({key: datasets.Sequence(datasets.Value(kind)) for key, kind in kinds.items()})
        rows = datasets.Dataset.from_generator(lambda: map(columns, corpus), features=features, keep_in_memory=True)
        rows.save_to_disk(str(folder))


def _mds_dtype(values: np.ndarray) -> str:
    return "uint8" if values.dtype == np.bool_ else str(values.dtype)


def reader(name: str, folder: Path, packed: Path) -> tuple[int, Callable[[list[int]], Iterable[Arrays]]]:
    """How many rows there are, and what yields rows for a list of row numbers."""
    if name in ("packer", "packer, ids"):
        corpus = corpus_of(packed)
        if name == "packer":
            return len(corpus), lambda order: (
                (row.input_ids, row.loss_mask, row.position_ids, row.cu_seqlens)
                for row in map(corpus.__getitem__, order)
            )
        return len(corpus), lambda order: ((corpus.input_ids(number),) for number in order)
    if name == "memmap":
        capacity = json.loads((packed / "manifest.json").read_text())["capacity"]
        ids = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r").reshape(-1, capacity)
        return len(ids), lambda order: ((ids[number],) for number in order)
    if name == "litdata":
        import litdata

        # By row number it changes chunks with every row, which it is not made for (1 million tokens/s): its own shuffled iteration is what counts.
        data = litdata.StreamingDataset(str(folder), shuffle=True, seed=0)
        return len(data), lambda _: map(_by_name, data)
    if name.startswith("streaming"):
        import streaming

        if name.endswith("local"):
            rows = streaming.LocalDataset(local=str(folder))
        elif name.endswith("iterated"):
            # What its documentation has people do; by row number it is faster.
            data = streaming.StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=0, batch_size=1)
            return len(data), lambda _: map(_by_name, data)
        else:
            rows = streaming.StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
        return len(rows), lambda order: (_by_name(rows[number]) for number in order)
    if name == "datasets":
        import datasets

        table = datasets.load_from_disk(str(folder)).with_format("numpy")
        return len(table), lambda order: (_by_name(table[number]) for number in order)
    raise SystemExit(f"no contender {name!r}")


def _by_name(row: dict[str, np.ndarray]) -> Arrays:
    return tuple(row[key] for key in NAMES)


def read(name: str, folder: Path, packed: Path, passes: int) -> dict[str, float]:
    """Seconds of `passes` passes over all rows in shuffled order, after one that is not timed."""
    count, rows_of = reader(name, folder, packed)
    order = np.random.default_rng(0).permutation(count).tolist()
    first = next(iter(rows_of(order[:1])))
    start = time.perf_counter() - STARTED
    buffers = [np.empty(len(values), values.dtype) for values in first]
    seconds, cpu = [], []
    seen = 0
    for _ in range(passes + 1):
        began, used, seen = time.perf_counter(), time.process_time(), 0
        for arrays in rows_of(order):
            for buffer, values in zip(buffers, arrays, strict=True):
                buffer[:] = values
            seen += 1
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    if seen != count:
        raise SystemExit(f"{name}: {seen} of {count} rows came")
    # Nobody may be fast by reading something else.
    if sums(rows_of(order)) != sums(reader("packer", folder, packed)[1](order))[: len(buffers)]:
        raise SystemExit(f"{name}: other rows than were packed")
    return {
        "tokens": count * len(buffers[0]) * passes,
        "seconds": sum(seconds[1:]),
        "cpu_seconds": sum(cpu[1:]),
        "start": start,
        "first_pass": seconds[0],
    }


def sums(rows: Iterable[Arrays]) -> list[int]:
    """Of all values of each array, over all rows."""
    return np.sum([[int(values.sum(dtype=np.int64)) for values in row] for row in rows], axis=0).tolist()


def main() -> None:
    command, name, *rest = sys.argv[1:]
    if command == "write":
        write(name, Path(rest[0]), Path(rest[1]))
        print("{}")
    else:
        print(json.dumps(read(name, Path(rest[0]), Path(rest[1]), int(rest[2]))))


if __name__ == "__main__":
    main()
