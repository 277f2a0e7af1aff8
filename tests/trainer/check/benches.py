"""A model on the bench: what `prove` needs, made of a tiny random model and windows made by hand, for a fault to be planted in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from tests.trainer.shards_fixture import random_rows, write_corpus
from tests.trainer.tiny_models import CONFIGS, packed_model, stock_model
from trainer.check.proof import Case, prove
from trainer.check.report import Report
from trainer.check.subject import packed_subject, stock_subject
from trainer.check.windows import Piece, Window, assemble
from trainer.config import RunConfig
from trainer.model import PackedModel
from trainer.parallel import shard
from trainer.prepare import prepare
from trainer.ranks import Ranks

VOCABULARY = 61
SLOTS = 320
# Segments of 1, 2 and 3 tokens, some past a chunk of 64, a pad tail; and a row without one.
SHORT, LONG = [30, 1, 2, 3, 1, 63, 65, 5, 97], [220, 95, 5]
ALONE = Ranks(rank=0, world=1, local_rank=0, local_world=1, device=torch.device("cpu"))


def piece(rng: np.random.Generator, length: int) -> Piece:
    mask = rng.random(length) < 0.6
    mask[0] = False
    return Piece(ids=rng.integers(1, VOCABULARY, length).astype(np.int32), mask=mask)


def window(lengths: list[int], seed: int = 0, *, slots: int = SLOTS) -> Window:
    rng = np.random.default_rng(seed)
    return assemble([piece(rng, length) for length in lengths], slots=slots, pad_id=0)


def windows() -> list[Window]:
    return [window(SHORT), window(LONG, seed=1)]


def case_of(model: PackedModel, folder: Path, ranks: Ranks = ALONE, *, sharded: bool = False) -> Case:
    """The case of a model as `trainer run` takes it."""
    if not (folder / "packed").exists():
        write_corpus(folder / "packed", rows=random_rows(3, seed=0))
    config = RunConfig(shards=str(folder / "packed"), model="tiny", out=str(folder / "run"), steps=1)
    units = shard(model, model.blocks, dtype=torch.float32, ranks=ranks) if sharded else []
    return Case(
        prepared=prepare(config),
        ranks=ranks,
        subject=packed_subject(model, ranks.device),
        windows=windows(),
        furthest=500,
        dtype=torch.float32,
        key="",
        model=model,
        units=units,
        layers=model.layers,
    )


def stock_case(name: str, folder: Path, ranks: Ranks = ALONE) -> Case:
    """The case of the library's own model, told of positions alone."""
    packed = packed_model(name, folder)
    stock = stock_model(packed, name, folder)
    stock.set_attn_implementation("sdpa")
    return dataclasses.replace(
        case_of(packed, folder, ranks), model=None, subject=stock_subject(stock, ranks.device), layers=()
    )


def proved(case: Case) -> tuple[Report, list[str]]:
    """The report of all checks, and what was said."""
    said: list[str] = []
    report = prove(case, lambda label, text: said.append(f"{label} {text}"))
    return report, said


@contextmanager
def deeper(name: str, layers: int) -> Iterator[None]:
    """While inside, the tiny models of this family have so many layers, in the same turn."""
    before = CONFIGS[name]
    kinds = before.get("layer_types")
    more = {"layer_types": [kinds[place % len(kinds)] for place in range(layers)]} if isinstance(kinds, list) else {}
    CONFIGS[name] = {**before, "num_hidden_layers": layers, **more}
    try:
        yield
    finally:
        CONFIGS[name] = before
