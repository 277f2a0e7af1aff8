"""A small valid folder of packed shards, made from hand-made examples without `packer build`, and a tiny model to train on it.

corpus = write_corpus(tmp_path / "packed", rows=random_rows(7, seed=0))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.examples import EXAMPLES_SCHEMA
from packer.files import write_text
from packer.manifest import Ledger, Manifest, Masking, Source, Split, Tokenizer, corpus_digest
from packer.schema import ROWS_PER_BATCH, RowBatch, position_dtype
from packer.shards import Corpus, open_corpus, write_shard

CAPACITY, MAX_SEGMENTS, PAD, VOCAB = 64, 8, 0, 97


@dataclass(frozen=True, kw_only=True)
class Example:
    """ids and, for each, whether it is a target (never the first); weights: what each target counts, 1 where None."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    weights: tuple[float, ...] | None = None

    @property
    def counted(self) -> tuple[float, ...]:
        """What each token counts, as float32 holds it; 0 where it is no target."""
        weights = self.weights or (1.0,) * len(self.ids)
        return tuple(float(np.float32(w)) if m else 0.0 for w, m in zip(weights, self.mask, strict=True))


def random_example(rng: np.random.Generator, length: int) -> Example:
    mask = rng.random(length) < 0.6
    mask[0] = False
    mask[-1] = length > 1  # at least one target
    return Example(ids=tuple(int(i) for i in rng.integers(1, VOCAB, length)), mask=tuple(bool(m) for m in mask))


def weighted(rows: Sequence[Sequence[Example]], *, seed: int) -> list[list[Example]]:
    """The same rows with weights of targets, drawn token by token."""
    rng = np.random.default_rng(seed)
    drawn = [1.0, 0.5, 0.25, 1 / 3, 3.0, 0.001]
    return [
        [replace(one, weights=tuple(float(w) for w in rng.choice(drawn, len(one.ids)))) for one in row] for row in rows
    ]


def random_rows(count: int, *, seed: int) -> list[list[Example]]:
    """Rows of two to five examples, most with a pad tail, every third full to the last slot."""
    rng = np.random.default_rng(seed)
    rows = []
    for place in range(count):
        lengths = [int(n) for n in rng.integers(3, 15, rng.integers(2, 5))]
        if place % 3 == 0:
            lengths.append(CAPACITY - sum(lengths))
        rows.append([random_example(rng, length) for length in lengths])
    return rows


def _batch(rows: Sequence[Sequence[Example]], first_id: int, *, weigh: bool) -> RowBatch:
    n = len(rows)
    weights = np.zeros((n, CAPACITY), np.float32)
    ids = np.full((n, CAPACITY), PAD, np.int32)
    mask = np.zeros((n, CAPACITY), bool)
    positions = np.zeros((n, CAPACITY), position_dtype(CAPACITY))
    cu = np.full((n, MAX_SEGMENTS + 1), CAPACITY, np.int32)
    example_ids = np.full((n, MAX_SEGMENTS), -1, np.int64)
    segments, examples, squares = (np.zeros(n, np.int64) for _ in range(3))
    for r, row in enumerate(rows):
        at = 0
        cu[r, 0] = 0
        for e, example in enumerate(row):
            for offset, (token, target) in enumerate(zip(example.ids, example.mask, strict=True)):
                ids[r, at + offset], mask[r, at + offset], positions[r, at + offset] = token, target, offset
            weights[r, at : at + len(example.ids)] = example.counted
            at += len(example.ids)
            cu[r, e + 1] = at
            example_ids[r, e] = first_id
            first_id += 1
            squares[r] += len(example.ids) ** 2
        examples[r] = segments[r] = len(row)
        if at < CAPACITY:
            positions[r, at:] = np.arange(CAPACITY - at)
            segments[r] += 1
    return RowBatch(
        input_ids=ids,
        loss_mask=mask,
        position_ids=positions,
        cu_seqlens=cu,
        num_segments=segments.astype(np.int32),
        num_examples=examples.astype(np.int32),
        example_ids=example_ids,
        num_supervised=mask.sum(axis=1).astype(np.int32),
        sum_sq_len=squares,
        loss_weights=weights if weigh else None,
    )


def write_corpus(
    folder: Path,
    *,
    rows: Sequence[Sequence[Example]],
    eval_rows: Sequence[Sequence[Example]] = (),
    rows_a_shard: int = 16,
    sources: Sequence[str] = (),
) -> Corpus:
    """Writes train (and eval) shards and the manifest; returns the train split. sources: their names; then there is a table of examples too, in which
    example e came from source e % their number, row 10·e."""
    splits = {}
    weigh = any(example.weights for split in (rows, eval_rows) for row in split for example in row)
    for name, split in (("train", rows), ("eval", eval_rows)):
        if not split:
            continue
        shards = []
        for number, first in enumerate(range(0, len(split), rows_a_shard)):
            ends = min(first + rows_a_shard, len(split))
            parts = [
                _batch(split[at : min(at + ROWS_PER_BATCH, ends)], first_id=at * MAX_SEGMENTS, weigh=weigh)
                for at in range(first, ends, ROWS_PER_BATCH)
            ]
            file = f"{name}/shard-{number:05}.arrow"
            shards.append(
                write_shard(
                    folder,
                    file,
                    parts,
                    capacity=CAPACITY,
                    max_segments=MAX_SEGMENTS,
                    pad_id=PAD,
                    vocab_size=VOCAB,
                    weighted=weigh,
                )
            )
        examples = [example for row in split for example in row]
        tokens = sum(len(example.ids) for example in examples)
        splits[name] = Split(
            rows=len(split),
            examples=len(examples),
            tokens=tokens,
            supervised_tokens=sum(sum(example.mask) for example in examples),
            pad_tokens=len(split) * CAPACITY - tokens,
            lower_bound_rows=-(-tokens // CAPACITY),
            max_segments=MAX_SEGMENTS,
            shards=tuple(shards),
        )
    manifest = Manifest(
        format_version=2 if weigh else 1,
        packer_version="0.1.0",
        capacity=CAPACITY,
        max_segments=MAX_SEGMENTS,
        shard_rows=rows_a_shard,
        max_segment_len=CAPACITY,
        max_example_len=CAPACITY,
        pad_id=PAD,
        vocab_size=VOCAB,
        max_token_id=VOCAB - 1,
        stop_ids=(1,),
        sources=tuple(
            Source(name=name, revision="", split="", files=(), weight="1", conversations=0) for name in sources
        ),
        tokenizer=Tokenizer(name="hand-made", revision="", digest="0" * 32),
        chat_template="0" * 32,
        masking=Masking(policy="assistant", method="marks"),
        options={},
        seed=0,
        strategy="optimal",
        splits=splits,
        ledger=Ledger(conversations={}, tokens={}, control_tokens={}),
        corpus_digest=corpus_digest(splits, capacity=CAPACITY, max_segments=MAX_SEGMENTS, pad_id=PAD),
    )
    if sources:
        _write_examples(folder, max(len(rows), len(eval_rows)) * MAX_SEGMENTS, len(sources))
    write_text(folder / "manifest.json", manifest.to_json())
    return open_corpus(folder)


def _write_examples(folder: Path, number: int, sources: int) -> None:
    """Only ids, sources and rows are true; nothing of the trainer reads the rest."""
    ids = np.arange(number)
    zeros = np.zeros(number, np.int32)
    columns = {
        "example_id": ids,
        "source": (ids % sources).astype(np.int16),
        "row": 10 * ids,
        "piece": zeros,
        "copy": zeros,
        "tokens": zeros,
        "supervised": zeros,
        "split": ["train"] * number,
    }
    (folder / "examples").mkdir()
    table = pa.table(columns, schema=EXAMPLES_SCHEMA)
    with pa.ipc.new_file(folder / "examples" / "part-00000.arrow", EXAMPLES_SCHEMA) as writer:
        writer.write_table(table)


def write_model(folder: Path, *, tied: bool = True) -> Path:
    """The config of a hybrid model small enough for a test: three gated-delta layers and one of full attention. Train it with --init random."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB + 15,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
        "tie_word_embeddings": tied,
        "pad_token_id": PAD,
        "eos_token_id": 1,
        "dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
