"""Settings to compare in: tiny shards and models, and a model whose layers have been taught to leak."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from torch import Tensor

from tests.trainer.check.zoo import whole_row
from tests.trainer.shards_fixture import VOCAB, Example, write_corpus, write_model
from tests.trainer.tiny_models import CONFIGS
from trainer.compare.rungs import PACKED, Rung, segmented
from trainer.compare.setting import Setting, make_setting
from trainer.config import RunConfig
from trainer.isolate import register_attention
from trainer.kernels import attention, conv, delta
from trainer.loader import ShardCheck
from trainer.model import PackedModel
from trainer.prepare import Prepared
from trainer.ranks import Ranks, start_ranks
from trainer.segments import Segments
from trainer.weights import Weights

Rows = Sequence[Sequence[Example]]
HYBRID = "hybrid"


def a_config(folder: Path, rows: Rows, *, eval_rows: Rows = (), model: str = HYBRID, **options: object) -> RunConfig:
    """Shards of these rows and a tiny model with random weights; model: the hybrid, or a name of `tiny_models.CONFIGS`."""
    write_corpus(folder / "packed", rows=rows, eval_rows=eval_rows)
    if model == HYBRID:
        write_model(folder / "tiny")
    else:
        (folder / "tiny").mkdir()
        (folder / "tiny" / "config.json").write_text(json.dumps({**CONFIGS[model], "vocab_size": VOCAB}))
    chosen = {"steps": 3, "rows_per_step": 3, "lr": 3e-3, "dtype": "fp32", "tokenizer_check": False, **options}
    return RunConfig(
        shards=str(folder / "packed"),
        model=str(folder / "tiny"),
        init="random",
        **chosen,  # type: ignore[arg-type]
    )


@contextmanager
def a_setting(config: RunConfig, *, seeds: int = 1, most_held_out: int = 64) -> Iterator[tuple[Setting, ShardCheck]]:
    with start_ranks() as ranks:
        setting = make_setting(config, seeds=seeds, most_held_out=most_held_out, ranks=ranks)
        check = ShardCheck(setting.base.corpus, local_rank=0, local_world=1)
        try:
            yield setting, check
        finally:
            check.close()


def rows_that_repeat(count: int, *, seed: int) -> list[list[Example]]:
    """Each row asks one question seven times, and there are 24 questions with an answer of three tokens each.

    Alone, an example can be answered only by a model that has learnt the answers by heart; one that sees its neighbours need only copy.
    """
    answers = np.random.default_rng(7).integers(40, VOCAB, (24, 3))
    rng = np.random.default_rng(seed)
    rows = []
    for question in rng.integers(0, len(answers), count):
        fillers = rng.integers(26, 40, 7)
        rows.append(
            [
                Example(
                    ids=(int(filler), int(question) + 2, *map(int, answers[question]), 1),
                    mask=(False, False, True, True, True, False),
                )
                for filler in fillers
            ]
        )
    return rows


def leaking(seen: Callable[[Segments], Segments] = whole_row) -> Rung:
    """The packed rung with kernels that see the segments wrongly: by default not at all."""

    def build(prepared: Prepared, ranks: Ranks) -> tuple[PackedModel, Weights]:
        model, weights = segmented(prepared, ranks)

        def attend(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
            return attention.reference(q, k, v, segments=seen(segments), scale=scale, window=window)

        model.model.set_attn_implementation(register_attention(attend, "planted"))
        for module in model.modules():
            if "delta_kernel" in vars(module):
                module.delta_kernel = lambda *x, segments: delta.reference(*x, segments=seen(segments))  # type: ignore[assignment]
            if "conv_kernel" in vars(module):
                module.conv_kernel = lambda *x, segments: conv.reference(*x, segments=seen(segments))  # type: ignore[assignment]
        return model, weights

    return dataclasses.replace(PACKED, build=build)
