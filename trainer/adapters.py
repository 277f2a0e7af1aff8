"""Packed shards for other loops: a map-style data set of torch tensors, and a collator for transformers' `Trainer`, TRL, or a loop of your own.

    from trainer.adapters import Collator, PackedRows, isolate

    rows = PackedRows("data/packed")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    Trainer(model=model, train_dataset=rows, data_collator=Collator(model, rows), args=args).train()

A batch is the rows one behind the other, [1, M·C]: no kernel that takes boundaries takes a second dimension. A model is taken only if it was tried and
kept two examples apart (`trainer.apart`), or was taught to (`isolate`, which hybrids want on most machines).

Rows as torch tensors, without a trainer:

    >>> rows = PackedRows("data/packed")
    >>> len(rows), rows[0].input_ids.shape, rows[0].labels[0]
    (49, torch.Size([4096]), tensor(-100))
    >>> sum(int((row.labels != IGNORED).sum()) for row in rows) == rows.corpus.info.supervised_tokens
    True
    >>> loader = torch.utils.data.DataLoader(rows, batch_size=2, shuffle=True, collate_fn=list)
    >>> sum(len(batch) for batch in loader)
    49

In a loop of your own, here with a hybrid model, whose layers transformers alone would not keep apart:

    >>> from transformers import AutoConfig, AutoModelForCausalLM
    >>> _ = torch.manual_seed(0)
    >>> model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("data/sample/tiny-hybrid"))
    >>> [layer.kernel for layer in isolate(model, kernels="reference")]
    ['reference', 'reference', 'reference']
    >>> batch = Collator(model, rows)([rows[0]])
    >>> list(batch)
    ['input_ids', 'labels', 'position_ids', 'segments', 'use_cache']
    >>> round(model(**batch).loss.item(), 1)
    8.3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from packer.errors import UserError
from packer.schema import broken_boundaries
from packer.shards import Corpus, check_row, open_corpus
from trainer.apart import prove_apart
from trainer.isolate import is_isolated
from trainer.isolate_loaded import isolate
from trainer.segments import Segments

__all__ = ["IGNORED", "Collator", "PackedRow", "PackedRows", "isolate"]

IGNORED = -100
"""The label of a token that is no target, as cross-entropy of torch and transformers has it."""
_NEEDED = ("input_ids", "loss_mask", "position_ids", "cu_seqlens", "num_segments")


class PackedRow(NamedTuple):
    """One row of C slots as tensors of its own; S places for segments.

    input_ids, position_ids: int64 [C]; positions restart at 0 in each segment. labels: int64 [C], the token itself where it is a target (true in
    `loss_mask`), else -100; not shifted: transformers does that, and a segment's first token is never a target, so no label crosses a
    boundary. cu_seqlens: int32 [S+1], boundaries of the first `num_segments` segments (a pad tail is one), then C. example_ids: int64 [S], -1 for the
    pad tail and unused places. max_segment_len: no segment of the whole corpus is longer. loss_weights: float32 [C], what each target counts in the loss, 0
    elsewhere; None where every target counts 1.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    num_segments: int
    example_ids: Tensor
    max_segment_len: int
    loss_weights: Tensor | None = None


class PackedRows(Dataset[PackedRow]):
    """The rows of one split, map-style: for `DataLoader` (its workers too), `DistributedSampler`, `Trainer`. len(rows), rows[i] → PackedRow.

    shards: a folder that `packer build` wrote, or its address; cache: where what is fetched from an address is kept. Rows were shuffled when they were
    written. Every row that is read is held against the format; digests are `packer verify`'s to check. Pickled without its map of
    the files, which a worker makes again. Raises UserError where the folder or a row is broken, IndexError past the end.
    """

    def __init__(self, shards: str | Path, *, split: str = "train", cache: str | Path | None = None) -> None:
        self.shards, self.split = str(shards), split
        self.cache = None if cache is None else Path(cache)
        self._corpus: Corpus | None = open_corpus(self.shards, split=split, cache=self.cache)

    @property
    def corpus(self) -> Corpus:
        """The rows as numpy views, with the manifest."""
        if self._corpus is None:
            self._corpus = open_corpus(self.shards, split=self.split, cache=self.cache)
        return self._corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, index: int) -> PackedRow:
        corpus = self.corpus
        index = int(index) + len(corpus) if index < 0 else int(index)
        row = corpus[index]
        check_row(corpus, index, row)
        return PackedRow(
            input_ids=torch.from_numpy(row.input_ids.astype(np.int64)),
            labels=torch.from_numpy(np.where(row.loss_mask, row.input_ids, IGNORED).astype(np.int64)),
            position_ids=torch.from_numpy(row.position_ids.astype(np.int64)),
            cu_seqlens=torch.from_numpy(np.array(row.cu_seqlens)),
            num_segments=row.num_segments,
            example_ids=torch.from_numpy(np.array(row.example_ids)),
            max_segment_len=corpus.manifest.max_segment_len,
            loss_weights=None if row.loss_weights is None else torch.from_numpy(np.array(row.loss_weights)),
        )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_corpus": None}

    def __repr__(self) -> str:
        return f"PackedRows({self.corpus!r})"


class Collator:
    """Rows → what `model(**batch)` takes: one sequence [1, M·C] and where its examples end.

    For a model that `isolate` has taught: input_ids, labels, position_ids (int64 [1, T]) and `segments`, which has `.to(device)`. For any other, what
    transformers' own layers may hear of: cu_seq_lens_q and cu_seq_lens_k (int32 [segments+1], the pad tails' among them), max_length_q and
    max_length_k (integers), and seq_idx (int32 [1, T]). Always use_cache=False: with a cache, transformers makes no mask between
    examples. Never an attention_mask, for the same reason.

    Raises UserError when it is made where the model, as it stands, lets examples see each other (it is run on 128 tokens, so it lies on the device it
    will be trained on, not yet sharded), or where it has too few embedding rows or positions for `datasets`; and, then or with the first batch, where targets
    have weights, which the loss of transformers' models does not know.
    """

    def __init__(self, model: PreTrainedModel, *datasets: PackedRows) -> None:
        for rows in datasets:
            _fits(model, rows)
        self.isolated = is_isolated(model)
        if not self.isolated:
            prove_apart(model, lambda segments: _keywords(segments, isolated=False))

    def __call__(self, rows: Sequence[PackedRow | Mapping[str, object]]) -> dict[str, Tensor | Segments | int]:
        """rows: PackedRow, or the columns of a shard by name, as `datasets.load_dataset("arrow", …)` gives them. Raises UserError where a column that
        is needed is not among them, or says that examples are not apart."""
        packed = [row if isinstance(row, PackedRow) else _of_columns(row) for row in rows]
        if any(row.loss_weights is not None for row in packed):
            raise _weights_unknown("the rows of the data set")
        lengths = [length for row in packed for length in torch.diff(row.cu_seqlens[: row.num_segments + 1]).tolist()]
        segments = Segments.from_lengths(lengths, max_segment_len=max(row.max_segment_len for row in packed))
        return {
            "input_ids": torch.cat([row.input_ids for row in packed])[None],
            "labels": torch.cat([row.labels for row in packed])[None],
            "position_ids": torch.cat([row.position_ids for row in packed])[None],
            **_keywords(segments, isolated=self.isolated),
        }


def _of_columns(columns: Mapping[str, object]) -> PackedRow:
    """A row from lists, arrays or tensors by column."""
    if missing := [name for name in _NEEDED if name not in columns]:
        raise UserError(
            f"the rows of the data set have no {', '.join(missing)}",
            "give remove_unused_columns=False, and for TRL dataset_kwargs={'skip_prepare_dataset': True}: a collator cannot do without them",
        )
    ids, mask, positions, bounds = (torch.as_tensor(columns[name]) for name in _NEEDED[:4])
    used = int(torch.as_tensor(columns["num_segments"]))
    _hold_rules(ids, mask, positions, bounds, used)
    return PackedRow(
        input_ids=ids.long(),
        labels=torch.where(mask.bool(), ids.long(), IGNORED),
        position_ids=positions.long(),
        cu_seqlens=bounds.int(),
        num_segments=used,
        example_ids=torch.zeros(0, dtype=torch.int64),
        max_segment_len=int(torch.diff(bounds[: used + 1]).max()),
        loss_weights=torch.as_tensor(columns["loss_weights"]) if "loss_weights" in columns else None,
    )


def _hold_rules(ids: Tensor, mask: Tensor, positions: Tensor, bounds: Tensor, used: int) -> None:
    """Holds a row that no `PackedRows` has read against the rules of the format that keep examples apart; raises UserError with the rule."""
    broken = [rule for _, rule in broken_boundaries(bounds.numpy()[None], np.array([used]), capacity=len(ids))]
    if not broken:
        starts = bounds[:used]
        lengths = torch.diff(bounds[: used + 1])
        if not torch.equal(positions.long(), torch.arange(len(ids)) - torch.repeat_interleave(starts, lengths)):
            broken = ["position_ids must restart at 0 in each segment"]
        elif mask.bool()[starts.long()].any():
            broken = ["loss_mask must be false on every segment's first token"]
    if broken:
        raise UserError(f"a row of the data set: {broken[0]}", "see what `packer verify` says of the shards' folder")


def _keywords(segments: Segments, *, isolated: bool) -> dict[str, Tensor | Segments | int]:
    """What tells a model its boundaries."""
    if isolated:
        return {"segments": segments, "use_cache": False}
    return {
        "cu_seq_lens_q": segments.boundaries,
        "cu_seq_lens_k": segments.boundaries,
        "max_length_q": segments.max_segment_len,
        "max_length_k": segments.max_segment_len,
        "seq_idx": segments.seq_idx,
        "use_cache": False,
    }


def _weights_unknown(what: str) -> UserError:
    return UserError(
        f"{what}: targets have weights, which the loss of transformers' models would leave out",
        "train on them with `trainer run`, or in a loop of your own with the `loss_weights` of `PackedRows`, without this collator",
    )


def _fits(model: PreTrainedModel, rows: PackedRows) -> None:
    manifest, name = rows.corpus.manifest, type(model).__name__
    if manifest.weighted:
        raise _weights_unknown(rows.shards)
    embedding = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
    highest = max(manifest.max_token_id, manifest.pad_id)
    if highest >= embedding:
        raise UserError(
            f"{rows.shards} has token id {highest}, past the {embedding} rows of {name}'s embedding",
            "build the shards with this model's own tokenizer",
        )
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if positions is not None and manifest.max_example_len > positions:
        raise UserError(
            f"{rows.shards} has an example of {manifest.max_example_len} tokens, and {name} knows {positions} positions",
            f"build the shards with --capacity {positions // 64 * 64} or less",
        )
