"""Everything a run needs in its hands before the first step, made in the order in which it can go wrong: cheap things first, weights after.

ready = make_ready(prepared, ranks, say, found, config_digest=digest)      # found: the checkpoint to go on from, or None
ready.model, ready.start
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

from packer.errors import UserError
from packer.manifest import Manifest
from trainer import checkpoint
from trainer.batch import Shape
from trainer.check.at_start import check_at_start
from trainer.metrics import MetricsFile
from trainer.model import PackedModel, load_model
from trainer.optim import make_optimizer
from trainer.parallel import checkpoint_blocks, shard
from trainer.prepare import Counts, Prepared, check_targets, describe, fits_model
from trainer.ranks import Ranks
from trainer.record import Record, changed_options, read_record, record
from trainer.run_folder import write_options
from trainer.same_tokenizer import check_tokenizer
from trainer.say import Say

_DROPOUTS = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.AlphaDropout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """start: steps already made, of which `skipped` without an update. config_digest: of the model's. metrics: on rank 0 alone."""

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
    skipped: int
    config_digest: str


def make_ready(prepared: Prepared, ranks: Ranks, say: Say, found: Path | None, *, config_digest: str) -> Ready:
    """Reads the counts, loads and shards the model, goes back to a checkpoint, opens the run's folder; every rank calls it."""
    config = prepared.config
    counts = ranks.together(lambda: Counts.of(prepared.corpus))
    ranks.together(lambda: check_targets(prepared, counts))
    compared = ranks.together(lambda: check_tokenizer(prepared, fetch=True))
    model = ranks.together(lambda: _load_model(prepared, ranks))
    _introduce(prepared, model, ranks, say)
    for label, text in (*compared, *_dropout(model)):
        say(label, text)
    checkpoint_blocks(model.blocks, config.activation_checkpointing)
    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
    units = shard(model, model.blocks, dtype=dtype, ranks=ranks, replicas=config.replicas)
    check_at_start(prepared, model, units, dtype=dtype, config_digest=config_digest, ranks=ranks, say=say)
    optimizer = make_optimizer(model, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    saved = None if found is None else _go_back(prepared, model, optimizer, found, config_digest, ranks, say)
    start = 0 if saved is None else saved.step
    metrics = ranks.together(lambda: _open_metrics(prepared, start) if ranks.first else None)
    if metrics is not None and metrics.unreadable:
        say(
            "note",
            f"{metrics.unreadable:,} lines of metrics.jsonl were not readable and are gone; the others were kept",
        )
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
        metrics=metrics,
        start=start,
        skipped=0 if saved is None else saved.skipped,
        config_digest=config_digest,
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
    fits_model(prepared, rows=None, positions=limit)
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
    for note in model.notes:
        say("note", note)
    for choice, count in Counter(model.layers).items():
        say("layers", f"{f'{count} × ' if count > 1 else ''}{choice.layer}: {choice.kernel} ({choice.reason})")
    for label, text in describe(prepared, world=ranks.world):
        say(label, text)


def _dropout(model: PackedModel) -> list[tuple[str, str]]:
    """A note where anything drops activations: modules of that kind, and layers that call it with a share of their own."""
    found: Counter[str] = Counter()
    for module in model.modules():
        shares = {
            name: value
            for name, value in vars(module).items()
            if "drop" in name or (name == "p" and isinstance(module, _DROPOUTS))
        }
        for name, share in shares.items():
            if isinstance(share, float) and share > 0:
                found[f"{type(module).__name__} ({name} {share:g})"] += 1
    if not found:
        return []
    told = ", ".join(f"{count} × {name}" for name, count in found.items())
    return [
        (
            "note",
            f"dropout is on: {told}. What it draws depends on rank and pass, so losses are not those of another number of ranks",
        )
    ]


def _go_back(
    prepared: Prepared,
    model: PackedModel,
    optimizer: torch.optim.AdamW,
    found: Path,
    digest: str,
    ranks: Ranks,
    say: Say,
) -> Record:
    saved = read_record(found)
    checkpoint.load(found, model, optimizer, ranks=ranks)
    say("resume", f"{found}: going on after step {saved.step:,} of {saved.steps:,}")
    if saved.skipped:
        say("note", f"{saved.skipped:,} of them made no update: their gradient was not finite")
    for change in changed_options(saved, record(prepared, step=saved.step, config_digest=digest)):
        say("note", f"changed since then: {change}")
    return saved


def _open_metrics(prepared: Prepared, start: int) -> MetricsFile:
    write_options(prepared.folder, prepared.config)
    try:
        return MetricsFile(prepared.folder, after=start)
    except OSError as error:
        raise UserError(f"{prepared.folder}: cannot be written ({error.strerror})", "give another --out") from None
