"""Everything a run needs in its hands before the first step, made in the order in which it can go wrong: cheap things first, weights after.

ready = make_ready(prepared, ranks, say, found, config_digest=digest)      # found: the checkpoint to go on from, or None
ready.model, ready.start
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

from packer.errors import UserError
from packer.manifest import Manifest
from trainer import checkpoint
from trainer.batch import Shape
from trainer.by_source import Sources
from trainer.check.at_start import check_at_start
from trainer.companions import keep_companions
from trainer.config import RunConfig
from trainer.flops import flops_of, peak_flops, told
from trainer.metrics import MetricsFile
from trainer.model import PackedModel, plan_model, try_out
from trainer.optim import make_optimizer
from trainer.parallel import (
    DTYPES,
    checkpoint_blocks,
    compile_blocks,
    compute_in_float64,
    master_dtype,
    prove_compiler,
    shard,
)
from trainer.prepare import Counts, Prepared, check_targets, describe, fits_model
from trainer.ranks import Ranks
from trainer.record import Record, changed_options, read_record, record
from trainer.routers import experts_per_token
from trainer.run_folder import write_options
from trainer.same_tokenizer import check_tokenizer
from trainer.say import Say
from trainer.source import weight_files
from trainer.trackers import Opening, Trackers, identity_of
from trainer.warm_up import first_pass, warm_up
from trainer.weights import Random, Weights, fill, move_buffers

_DROPOUTS = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.AlphaDropout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """start: steps already made, of which `skipped` without an update. config_digest: of the model's. metrics: on rank 0 alone. sources: None where the
    corpus has one."""

    prepared: Prepared
    ranks: Ranks
    say: Say
    counts: Counts
    model: PackedModel
    units: Sequence[FSDPModule]
    optimizer: torch.optim.AdamW
    shape: Shape
    sources: Sources | None
    metrics: MetricsFile | None
    start: int
    skipped: int
    config_digest: str


def make_ready(prepared: Prepared, ranks: Ranks, say: Say, found: Path | None, *, config_digest: str) -> Ready:
    """Reads the counts, shards the model and fills it, from a checkpoint where there is one, opens the run's folder; every rank calls it."""
    config = prepared.config
    counts = ranks.patiently(lambda: Counts.of(prepared.corpus))  # of shards at an address: fetches them
    ranks.together(lambda: check_targets(prepared, counts))
    sources = ranks.together(lambda: Sources.of(prepared.corpus))
    compared = ranks.together(lambda: check_tokenizer(prepared, fetch=True))
    if config.init == "pretrained" and found is None:  # one rank of a machine fetches, the others find it there
        ranks.patiently(lambda: weight_files(prepared.model) if ranks.local_rank == 0 else [])
    model, weights = ranks.together(lambda: plan_as_run(prepared, ranks, resumed=found is not None))
    if config.router_aux_loss:
        ranks.together(lambda: experts_per_token(model.model))
    units = shard_as_run(model, config, ranks)
    offloaded = config.cpu_offload and ranks.device.type != "cpu"
    ranks.together(lambda: fill(model, model.model, weights, torch.device("cpu") if offloaded else ranks.device))
    if offloaded:
        move_buffers(model, ranks.device)  # FSDP moves parameters alone
    if found is not None:
        checkpoint.load_weights(found, model, ranks=ranks)
    ranks.together(lambda: try_out(model, prepared.model, ranks.device))
    ranks.together(lambda: keep_companions(prepared, model.model) if ranks.first else None)
    _introduce(prepared, model, ranks, say)
    for label, text in (*compared, *_dropout(model)):
        say(label, text)
    if config.cpu_offload and not offloaded:
        say("note", "--cpu-offload does nothing here: on a CPU all lies in the host's memory anyway")
    check_at_start(
        prepared, model, units, dtype=DTYPES[config.dtype], config_digest=config_digest, ranks=ranks, say=say
    )
    shape = _shape(prepared, sources)
    if ranks.device.type == "cuda" or config.compile:
        first = 0 if found is None else ranks.together(lambda: read_record(found)).step
        batch = first_pass(prepared, counts, step=first, shape=shape, sources=sources, ranks=ranks)
        warm_up(model, units, batch, ranks, say, compiled=config.compile)
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
        shape=shape,
        sources=sources,
        metrics=metrics,
        start=start,
        skipped=0 if saved is None else saved.skipped,
        config_digest=config_digest,
    )


def _shape(prepared: Prepared, sources: Sources | None) -> Shape:
    """Of every pass of the run, training and evaluation."""
    config = prepared.config
    return Shape(
        rows=config.micro_rows,
        capacity=prepared.corpus.capacity,
        max_segments=prepared.max_segments,
        max_segment_len=prepared.max_segment_len,
        weighted=config.loss_weighting == "example",
        sources=0 if sources is None else len(sources.names),
        balanced=config.router_aux_loss > 0,
        row_weights=prepared.corpus.manifest.weighted,
    )


def shard_as_run(model: PackedModel, config: RunConfig, ranks: Ranks) -> list[FSDPModule]:
    """Each wraps what the one before made: compilation, recomputation, sharding."""
    dtype, blocks = DTYPES[config.dtype], model.blocks
    if dtype == torch.float64:
        compute_in_float64(model, blocks)
    if config.compile:
        ranks.together(lambda: prove_compiler(ranks.device))
        compile_blocks(blocks)
    if not (config.compile and config.activation_checkpointing == "selective"):
        checkpoint_blocks(blocks, config.activation_checkpointing)
    return shard(model, blocks, dtype=dtype, ranks=ranks, replicas=config.replicas, cpu_offload=config.cpu_offload)


def _manifests(prepared: Prepared) -> list[Manifest]:
    both = (prepared.corpus, prepared.eval_corpus)
    return [corpus.manifest for corpus in both if corpus is not None]


def plan_as_run(prepared: Prepared, ranks: Ranks, *, resumed: bool = False) -> tuple[PackedModel, Weights]:
    """The model of a run without memory, and where its weights come from; raises UserError where it does not fit the rows.

    resumed: its checkpoint has all parameters, so the weights that it began with are neither looked for nor read.
    """
    config, manifests = prepared.config, _manifests(prepared)
    model, weights = plan_model(
        prepared.model,
        init="random" if resumed else config.init,
        seed=config.seed,
        dtype=master_dtype(DTYPES[config.dtype]),
        kernels=config.kernels,
        device=ranks.device,
        vocab_at_least=max(max(manifest.max_token_id, manifest.pad_id) for manifest in manifests) + 1,
    )
    limit = getattr(model.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    fits_model(prepared, rows=None, positions=limit)
    if resumed:
        assert isinstance(weights, Random)  # init says so
        weights = replace(weights, seed=None)
    return model, weights


def _introduce(prepared: Prepared, model: PackedModel, ranks: Ranks, say: Say) -> None:
    """The first lines: what is trained, by which kernels, on what, for how long."""
    config = prepared.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(
        "model",
        f"{prepared.model} ({config.init}): {parameters:,} parameters, {'fp64' if config.dtype == 'fp64' else 'fp32'} master weights, computing in {config.dtype} "
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
    peak = peak_flops(ranks.device, DTYPES[config.dtype])
    say("flops", told(flops_of(model), peak, ranks.device.type, config.dtype))


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
    checkpoint.load_optimizer(found, model, optimizer, ranks=ranks)
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


def trackers_of(ready: Ready) -> Trackers:
    """Those of the options on the rank that speaks, none elsewhere."""
    config, folder = ready.prepared.config, ready.prepared.folder
    names = config.tracker if ready.ranks.first else ()
    opening = Opening(
        folder=folder,
        start=ready.start,
        identity=identity_of(folder, start=ready.start) if names else "",
        project=config.tracker_project,
        options=config.options(),
    )
    return Trackers(names, opening, ready.say)
