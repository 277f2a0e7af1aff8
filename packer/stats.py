"""What a folder of packed shards holds and what packing saved, as numbers that say what they count.

stats = measure("data/packed")
stats.to_json()["splits"]["train"]["density"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.analysis.loss_weights import LossWeights, loss_weights_of
from packer.distributions import Distributions, distributions
from packer.errors import UserError
from packer.manifest import Manifest
from packer.savings import Padded, compare
from packer.shards import Corpus, open_corpus
from packer.types import Int64Array
from packer.waiting import RowCosts, Waiting, autocorrelation, rank_correlation, simulate

RECIPE_EXAMPLES = 128
_MOST_SIMULATED = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Of some lengths, in tokens."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentsPerRow:
    """Segments a row, pad tails counted."""

    mean: float
    max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitStats:
    """density: tokens ÷ slots. supervised_tokens: targets. lower_bound_rows: the fewest rows any plan can need. loss_weights: None where every target
    counts 1."""

    rows: int
    capacity: int
    max_segments: int
    examples: int
    tokens: int
    supervised_tokens: int
    pad_tokens: int
    density: float
    lower_bound_rows: int
    segments_per_row: SegmentsPerRow
    length: Spread
    loss_weights: LossWeights | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A padded way to train on the same examples: 2-D batches, slots with padding, the share of slots that hold no token."""

    batches: int
    slots: int
    pad_fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """fewer_batches: 1 - rows ÷ batches. fewer_slots: 1 - slots ÷ the baseline's slots."""

    fewer_batches: float
    fewer_slots: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What the corpus means for a recipe: examples in a row, rows that hold 128 examples, optimiser steps an epoch at that many rows a step, and
    at 128 examples a step in padded batches.
    """

    examples_per_row: float
    rows_for_128_examples: int
    steps_per_epoch: int
    padded_steps_per_epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOrder:
    """Of the mean length of each row's examples: its rank correlation with the place of the row, and its correlation with the next row's. Near 0
    (within 2 ÷ √rows) where neighbours are not alike.
    """

    length_rank_correlation: float
    length_autocorrelation: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """baselines, savings, recipe, order and waiting are of the train split. bytes_per_token: shards only, all splits."""

    manifest: Manifest
    splits: Mapping[str, SplitStats]
    distributions: Mapping[str, Distributions]
    baselines: Mapping[str, Baseline]
    savings: Mapping[str, Saving]
    recipe: Recipe
    order: RowOrder
    waiting: Waiting
    bytes_per_token: float
    token_store_bytes: int

    def to_json(self) -> dict[str, object]:
        document = asdict(self)
        manifest = document.pop("manifest")
        for name, split in self.splits.items():
            if split.loss_weights is None:
                del document["splits"][name]["loss_weights"]
        return {**document, "ledger": manifest["ledger"], "corpus_digest": manifest["corpus_digest"]}


def measure(
    folder: str | Path, *, ranks: int = 8, rows_per_step: int | None = None, cache: Path | None = None
) -> Stats:
    """Reads the manifest, the table of examples and the small columns of the shards; raises UserError where one cannot be read.

    folder: a path or an address. cache: where what is fetched from an address is kept. ranks, rows_per_step: of the run whose waiting is simulated;
    None: a row a rank.
    """
    for option, value in (("--ranks", ranks), ("--rows-per-step", rows_per_step)):
        if value is not None and not 1 <= value <= _MOST_SIMULATED:
            raise UserError(f"{option} {value}: must be from 1 to {_MOST_SIMULATED}", f"try {option} 8")
    corpus = open_corpus(folder, split="train", cache=cache)
    manifest = corpus.manifest
    lengths = _example_lengths(corpus)
    splits: dict[str, SplitStats] = {}
    spread: dict[str, Distributions] = {}
    row_tokens: dict[str, Int64Array] = {}
    for name in sorted(manifest.splits, reverse=True):
        opened = corpus if name == corpus.split else open_corpus(folder, split=name, cache=cache)
        mine = lengths.get(name, np.zeros(0, dtype=np.int64))
        splits[name] = _split(opened, mine)
        row_tokens[name] = tokens_of_rows(opened)
        spread[name] = distributions(
            lengths=mine,
            row_tokens=row_tokens[name],
            segments=opened.column("num_segments").astype(np.int64),
            capacity=manifest.capacity,
        )
    train = manifest.splits["train"]
    padded = compare(lengths["train"], capacity=manifest.capacity)
    slots = train.rows * manifest.capacity
    rows_for_128 = max(1, round(RECIPE_EXAMPLES * train.rows / train.examples))
    size = sum(shard.bytes for split in manifest.splits.values() for shard in split.shards)
    costs = RowCosts(
        capacity=manifest.capacity,
        squares=corpus.column("sum_sq_len").astype(np.int64),
        targets=corpus.column("num_supervised").astype(np.int64),
    )
    return Stats(
        manifest=manifest,
        splits=splits,
        distributions=spread,
        baselines={name: _baseline(one) for name, one in padded.items()},
        savings={
            name: Saving(fewer_batches=1 - train.rows / one.batches, fewer_slots=1 - slots / one.slots)
            for name, one in padded.items()
        },
        recipe=Recipe(
            examples_per_row=train.examples / train.rows,
            rows_for_128_examples=rows_for_128,
            steps_per_epoch=-(-train.rows // rows_for_128),
            padded_steps_per_epoch=-(-train.examples // RECIPE_EXAMPLES),
        ),
        order=_order(row_tokens["train"] / corpus.column("num_examples")),
        waiting=simulate(costs, ranks=ranks, rows_per_step=rows_per_step or ranks),
        bytes_per_token=size / sum(split.tokens for split in manifest.splits.values()),
        token_store_bytes=corpus.bytes_under("tokens"),
    )


def _example_lengths(corpus: Corpus) -> dict[str, Int64Array]:
    """The tokens of each example by split, from the table of examples."""
    lengths: dict[str, list[Int64Array]] = {}
    files = sorted(corpus.fetch("examples").glob("*.arrow"))
    if not files:
        raise UserError(
            f"{corpus.name}/examples: the table of examples is missing",
            "build the folder again, or restore it from a copy",
        )
    for path in files:
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{path}: not a readable table ({error})", "build the folder again, or restore it from a copy"
            ) from None
        for name in pc.unique(table["split"]).to_pylist():
            chosen = table.filter(pc.equal(table["split"], name))["tokens"]
            lengths.setdefault(name, []).append(chosen.to_numpy().astype(np.int64))
    return {name: np.concatenate(parts) for name, parts in lengths.items()}


def _split(corpus: Corpus, lengths: Int64Array) -> SplitStats:
    manifest, split = corpus.manifest, corpus.info
    segments = corpus.column("num_segments")
    if len(lengths) != split.examples:
        raise UserError(
            f"{corpus.name}/examples: lists {len(lengths)} examples of the split {corpus.split!r}, the manifest {split.examples}",
            "build the folder again, or restore it from a copy",
        )
    # "lower": a percentile is then the length of an example that exists.
    p50, p90, p99 = (int(np.percentile(lengths, q, method="lower")) if len(lengths) else 0 for q in (50, 90, 99))
    return SplitStats(
        rows=split.rows,
        capacity=manifest.capacity,
        max_segments=split.max_segments,
        examples=split.examples,
        tokens=split.tokens,
        supervised_tokens=split.supervised_tokens,
        pad_tokens=split.pad_tokens,
        density=split.tokens / (split.rows * manifest.capacity) if split.rows else 0.0,
        lower_bound_rows=split.lower_bound_rows,
        segments_per_row=SegmentsPerRow(
            mean=float(segments.mean()) if len(segments) else 0.0, max=int(segments.max(initial=0))
        ),
        length=Spread(
            mean=float(lengths.mean()) if len(lengths) else 0.0,
            p50=p50,
            p90=p90,
            p99=p99,
            max=int(lengths.max(initial=0)),
        ),
        loss_weights=loss_weights_of(corpus),
    )


def tokens_of_rows(corpus: Corpus) -> Int64Array:
    """int64 [R]: the tokens of every row, no padding counted."""
    examples = corpus.column("num_examples")
    if not len(examples):
        return np.zeros(0, dtype=np.int64)
    if corpus.manifest.align > 1:
        own: Int64Array = corpus.column("example_lens").sum(axis=1, dtype=np.int64)
        return own
    filled: Int64Array = corpus.column("cu_seqlens")[np.arange(len(examples)), examples].astype(np.int64)
    return filled


def _order(lengths: np.ndarray) -> RowOrder:
    """lengths: float64 [R], the mean length of each row's examples."""
    return RowOrder(length_rank_correlation=rank_correlation(lengths), length_autocorrelation=autocorrelation(lengths))


def _baseline(padded: Padded) -> Baseline:
    return Baseline(batches=padded.batches, slots=padded.slots, pad_fraction=padded.pad_slots / padded.slots)
