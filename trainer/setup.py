"""Everything a run needs in its hands before the first step, made in the order in which it can go wrong: cheap things first, weights after.

ready = make_ready(prepared, ranks, say, found)      # found: the checkpoint to go on from, or None
ready.model, ready.start
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

from packer.console import to_toml
from packer.errors import UserError
from packer.files import write_text
from packer.manifest import Manifest
from trainer import checkpoint
from trainer.batch import Shape
from trainer.metrics import MetricsFile
from trainer.model import PackedModel, load_model
from trainer.optim import make_optimizer
from trainer.parallel import checkpoint_blocks, shard
from trainer.prepare import Counts, Prepared, describe
from trainer.ranks import Ranks

Say = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """start: steps already made. metrics: on rank 0 alone."""

    prepared: Prepared
    ranks: Ranks
    say: Say
    counts: Counts
    model: PackedModel
    units: Sequence[FSDPModule]
    optimizer: torch.optim.AdamW
    shape: Shape
    metrics: MetricsFile | None
    start: int


def make_ready(prepared: Prepared, ranks: Ranks, say: Say, found: Path | None) -> Ready:
    """Reads the counts, loads and shards the model, goes back to a checkpoint, opens the run's folder; every rank calls it."""
    config = prepared.config
    ranks.together(lambda: _make_folder(prepared.folder) if ranks.first else None)
    counts = ranks.together(lambda: Counts.of(prepared.corpus))
    model = ranks.together(lambda: _load_model(prepared, ranks))
    _introduce(prepared, model, ranks, say)
    checkpoint_blocks(model.blocks, config.activation_checkpointing)
    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
    units = shard(model, model.blocks, dtype=dtype, ranks=ranks, replicas=config.replicas)
    optimizer = make_optimizer(model, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    start = 0 if found is None else _go_back(prepared, model, optimizer, found, say)
    return Ready(
        prepared=prepared,
        ranks=ranks,
        say=say,
        counts=counts,
        model=model,
        units=units,
        optimizer=optimizer,
        shape=Shape(
            rows=config.micro_rows,
            capacity=prepared.corpus.capacity,
            max_segments=prepared.max_segments,
            max_segment_len=prepared.max_segment_len,
        ),
        metrics=ranks.together(lambda: _open_folder(prepared, start) if ranks.first else None),
        start=start,
    )


def _manifests(prepared: Prepared) -> list[Manifest]:
    both = (prepared.corpus, prepared.eval_corpus)
    return [corpus.manifest for corpus in both if corpus is not None]


def _load_model(prepared: Prepared, ranks: Ranks) -> PackedModel:
    config, manifests = prepared.config, _manifests(prepared)
    model = load_model(
        prepared.model,
        init=config.init,
        seed=config.seed,
        dtype=torch.float32,
        kernels=config.kernels,
        device=ranks.device,
        vocab_at_least=max(max(manifest.max_token_id, manifest.pad_id) for manifest in manifests) + 1,
    )
    limit = getattr(model.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    longest = max(manifest.max_example_len for manifest in manifests)
    if limit is not None and longest > limit:
        raise UserError(
            f"{prepared.model} knows {limit:,} positions, but the longest example has {longest:,} tokens",
            f"build the shards with --capacity {limit // 64 * 64} or less, or choose another --model",
        )
    return model


def _introduce(prepared: Prepared, model: PackedModel, ranks: Ranks, say: Say) -> None:
    """The first lines: what is trained, by which kernels, on what, for how long."""
    config = prepared.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(
        "model",
        f"{prepared.model} ({config.init}): {parameters:,} parameters, fp32 master weights, computing in {config.dtype} "
        f"on {ranks.device.type}, activation checkpointing {config.activation_checkpointing}",
    )
    if model.unused_weights:
        say(
            "note",
            f"{len(model.unused_weights)} weights of the checkpoint have no place in the model, the first is {model.unused_weights[0]}",
        )
    for choice, count in Counter(model.layers).items():
        say("layers", f"{f'{count} × ' if count > 1 else ''}{choice.layer}: {choice.kernel} ({choice.reason})")
    for label, text in describe(prepared, world=ranks.world):
        say(label, text)


def _go_back(prepared: Prepared, model: PackedModel, optimizer: torch.optim.AdamW, found: Path, say: Say) -> int:
    saved = checkpoint.read_record(found)
    checkpoint.load(found, model, optimizer)
    say("resume", f"{found}: going on after step {saved.step:,} of {saved.steps:,}")
    for change in checkpoint.changed_options(saved, checkpoint.record(prepared, step=saved.step)):
        say("note", f"changed since then: {change}")
    return saved.step


def _make_folder(folder: Path) -> None:
    """Before the weights are read: that may take minutes, and a folder that cannot be written is no reason to wait for them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})", "give another --out") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written", "give another --out")


def _open_folder(prepared: Prepared, start: int) -> MetricsFile:
    folder = prepared.folder
    try:
        # Without --resume: that says how this run came about, not what it is.
        options = {name: value for name, value in prepared.config.options().items() if name != "resume"}
        write_text(folder / "config.toml", to_toml(options))
        return MetricsFile(folder, after=start)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})", "give another --out") from None
