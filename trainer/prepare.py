"""From options to a run that can start: the corpora opened, the model named, the steps counted. Knows nothing of torch.

`trainer run` and its --dry-run both begin here, so that a typo or a missing folder is met on the machine without a GPU.

    prepared = prepare(RunConfig(shards="data/packed", steps=100))
    prepared.order.steps, describe(prepared, world=8)
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer.errors import UserError
from packer.order import Order
from packer.shards import Corpus, open_corpus
from packer.types import Int64Array
from trainer.config import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """config: with `model` and `out` resolved. max_segments (S) and max_segment_len hold for train and eval rows alike."""

    config: RunConfig
    model: str
    folder: Path
    corpus: Corpus
    eval_corpus: Corpus | None
    order: Order
    max_segments: int
    max_segment_len: int


def prepare(config: RunConfig, *, world: int = 1) -> Prepared:
    """Opens what `config` names and counts the steps; raises UserError where something is missing or does not fit together or the ranks."""
    if world % config.replicas:
        raise UserError(
            f"--replicas {config.replicas}: {_count(world, 'rank')} cannot be shared out evenly among them",
            "give a number that divides the number of ranks; 1 shards the model over all of them",
        )
    corpus = open_corpus(config.shards, split="train", cache=config.cache_folder)
    if len(corpus) == 0:
        raise UserError(
            f"{config.shards}: the train split has no rows", "build it from a data set with at least one conversation"
        )
    beyond = [row for row in config.skip_rows if row >= len(corpus)]
    if beyond:
        raise UserError(
            f"--skip-rows {beyond[0]}: the corpus has {len(corpus)} rows, numbered from 0",
            "`packer inspect --row` shows a row",
        )
    eval_corpus = _open_eval(config, corpus)
    if config.eval_every and eval_corpus is None:
        raise UserError(
            f"--eval-every {config.eval_every}: {config.shards} has no eval split",
            "give --eval-shards, or build with --eval-fraction",
        )
    positions = config.steps * config.rows_per_step if config.steps is not None else (config.epochs or 1) * len(corpus)
    model = config.model if config.model is not None else _default_model(corpus)
    manifests = [corpus.manifest] if eval_corpus is None else [corpus.manifest, eval_corpus.manifest]
    return Prepared(
        config=dataclasses.replace(config, model=model, out=str(config.run_folder)),
        model=model,
        folder=config.run_folder,
        corpus=corpus,
        eval_corpus=eval_corpus,
        order=Order(
            rows=len(corpus),
            rows_per_step=config.rows_per_step,
            positions=positions,
            seed=config.seed,
            balance=config.balance,
        ),
        max_segments=max(manifest.max_segments for manifest in manifests),
        max_segment_len=max(manifest.max_segment_len for manifest in manifests),
    )


def _open_eval(config: RunConfig, corpus: Corpus) -> Corpus | None:
    if config.eval_every == 0:
        if config.eval_shards is not None:
            raise UserError(
                "--eval-shards was given, but --eval-every 0 says never to evaluate", "leave one of the two out"
            )
        return None
    if config.eval_shards is None:
        return (
            open_corpus(config.shards, split="eval", cache=config.cache_folder)
            if "eval" in corpus.manifest.splits
            else None
        )
    other = open_corpus(config.eval_shards, split="train", cache=config.cache_folder)
    if "eval" in other.manifest.splits:
        other = open_corpus(config.eval_shards, split="eval", cache=config.cache_folder)
    for what, ours, theirs in (
        ("capacity", corpus.capacity, other.capacity),
        ("tokenizer digest", corpus.manifest.tokenizer.digest, other.manifest.tokenizer.digest),
    ):
        if ours != theirs:
            raise UserError(
                f"--eval-shards {config.eval_shards}: its {what} is {theirs}, that of {config.shards} is {ours}",
                "build both with the same --capacity and --tokenizer",
            )
    return other


def build_noted(corpus: Corpus, key: str) -> str:
    """What the build wrote of itself under a key of build-log.json; empty where there is no log, or nothing there."""
    log = corpus.fetch("build-log.json")
    if not log.is_file():
        return ""
    try:
        noted = json.loads(log.read_text(encoding="utf-8")).get(key)
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        return ""  # It decides no number; a damaged one only costs what it would have told.
    return noted if isinstance(noted, str) else ""


def _default_model(corpus: Corpus) -> str:
    """The model whose tokenizer made the shards: its folder while that still lies where the build found it, else its hub name."""
    noted = build_noted(corpus, "tokenizer_path")
    if noted and (Path(noted) / "config.json").is_file():
        return noted
    name = corpus.manifest.tokenizer.name
    if name.count("/") == 1:
        return name
    raise UserError(
        f"{corpus.name}: tokenized with {name!r}, a folder that is not a model or no longer there",
        "name the model to train: --model NAME_OR_DIR",
    )


def fits_model(prepared: Prepared, *, rows: object, positions: object) -> None:
    """Holds the data against a model's embedding (rows) and longest position, where they are known integers; raises UserError."""
    both = (prepared.corpus, prepared.eval_corpus)
    manifests = [corpus.manifest for corpus in both if corpus is not None]
    largest = max(max(manifest.max_token_id, manifest.pad_id) for manifest in manifests)
    longest = max(manifest.max_example_len for manifest in manifests)
    if isinstance(rows, int) and largest >= rows:
        raise UserError(
            f"the data has token id {largest}, past the {rows} rows of {prepared.model}'s embedding",
            "build the shards with this model's own tokenizer, or give the model that belongs to the tokenizer",
        )
    if isinstance(positions, int) and longest > positions:
        raise UserError(
            f"{prepared.model} knows {positions:,} positions, but the longest example has {longest:,} tokens",
            f"build the shards with --capacity {positions // 64 * 64} or less, or choose another --model",
        )


def check_targets(prepared: Prepared, counts: Counts) -> None:
    """Looks at every step of the run for one in which nothing is a target: its gradient would be 0 ÷ 0. Raises UserError with its rows.

    Only where rows without targets are as many as a step's could such a step come about, so most runs are done at once.
    """
    order, skipped = prepared.order, prepared.config.skip_rows
    silent = counts.supervised == 0
    silent[list(skipped)] = True
    if not silent.any():
        return
    # A step takes a row at most once from each epoch it spans; only the last may have fewer rows than the others.
    few = int(silent.sum()) * (order.rows_per_step // order.rows + 2) < order.rows_per_step
    for step in range(order.steps - 1 if few else 0, order.steps):
        rows = order.step(step, cost=counts.cost)
        if silent[rows.rows[rows.weights]].all():
            raise UserError(
                f"step {step + 1}: none of its rows has a token to train on (rows {row_list(rows.rows)})",
                "`packer inspect --supervised` shows what is trained on; take more rows a step, or skip fewer",
            )


def row_list(rows: Int64Array) -> str:
    """Row numbers for a message, each once (a step of several epochs has a row again), the first 16 of them."""
    rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    shown = ", ".join(str(int(row)) for row in rows[:16])
    return shown if len(rows) <= 16 else f"{shown}, … {len(rows)} in all"


def passes_per_step(config: RunConfig, *, world: int) -> int:
    """Forward and backward passes that every rank makes in a step."""
    return -(-config.rows_per_step // (world * config.micro_rows))


def describe(prepared: Prepared, *, world: int) -> list[tuple[str, str]]:
    """What the run will do, as (label, text) lines for a person."""
    config, corpus, order = prepared.config, prepared.corpus, prepared.order
    info, slots = corpus.info, corpus.capacity * len(corpus)
    passes = passes_per_step(config, world=world)
    lines = [
        (
            "data",
            f"{corpus.name} (train): {_count(info.rows, 'row')} of {corpus.capacity:,} slots, {info.tokens / slots:.1%} filled, "
            f"{info.examples / info.rows:.1f} segments a row (pad tail not counted), {info.supervised_tokens / max(info.tokens, 1):.1%} of the tokens supervised",
        ),
        (
            "steps",
            f"{_count(order.steps, 'step')} of {_count(order.rows_per_step, 'row')} ({order.positions / order.rows:.2f} epochs), "
            f"{_count(world, 'rank')} × {_count(config.micro_rows, 'row')} × {_count(passes, 'pass', 'passes')}",
        ),
    ]
    if config.replicas > 1:
        lines.append(
            (
                "ranks",
                f"{config.replicas} replicas of the model, each sharded over {_count(world // config.replicas, 'rank')}",
            )
        )
    filler = passes * world * config.micro_rows - config.rows_per_step
    if filler:
        lines.append(
            (
                "note",
                f"{filler} of {filler + config.rows_per_step} places in each step are filling (weight 0): that share of the compute is lost; "
                f"make --rows-per-step a multiple of {world * config.micro_rows}",
            )
        )
    if config.skip_rows:
        lines.append(
            (
                "note",
                f"{_count(len(set(config.skip_rows)), 'row')} left out by --skip-rows: they keep their places at weight 0",
            )
        )
    if corpus.manifest.weighted:
        lines.append(
            (
                "note",
                f"targets of {corpus.name} have weights: the loss is their weighted mean (`packer stats` lists the weights)",
            )
        )
    if prepared.eval_corpus is not None:
        other = prepared.eval_corpus
        when = f"every {_count(config.eval_every, 'step')} and at the end" if config.eval_every else "at the end"
        lines.append(("eval", f"{other.name} ({other.split}): {_count(len(other), 'row')}, {when}"))
    return lines


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What the order of a run needs to know of every row, read once: supervised int64 [R], cost (Σ of squared lengths) int64 [R]."""

    supervised: np.ndarray
    cost: np.ndarray

    @classmethod
    def of(cls, corpus: Corpus) -> Counts:
        """Those of all rows of a corpus."""
        return cls(
            supervised=corpus.column("num_supervised").astype(np.int64),
            cost=corpus.column("sum_sq_len").astype(np.int64),
        )
