"""Shards in somebody else's loop: the rows are the shards' rows, a batch trains what each example alone would train, and what would leak is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from packer.errors import UserError
from tests.support import TINY
from tests.trainer.shards_fixture import CAPACITY, VOCAB, Example, random_rows, write_corpus
from tests.trainer.tiny_models import CONFIGS
from trainer.adapters import Collator, PackedRow, PackedRows, isolate
from trainer.float64 import float32_means_float64
from trainer.segmented import SegmentedLayer
from trainer.segments import LostSegmentsError, Segments

ROWS = random_rows(11, seed=5)
QWEN3 = {**CONFIGS["qwen3"], "vocab_size": VOCAB}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "packed"
    write_corpus(path, rows=ROWS, eval_rows=random_rows(3, seed=6), rows_a_shard=4)
    return path


def stock(config: dict[str, object], attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    made = AutoConfig.for_model(**config)  # type: ignore[arg-type]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made, attn_implementation=attention)
    return model


def hybrid(seed: int = 0) -> PreTrainedModel:
    return stock(json.loads((TINY / "config.json").read_text()), seed=seed)


def alone(model: PreTrainedModel, examples: Sequence[Example]) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean cross-entropy over the targets of all examples, each run by itself in float64 by a copy of the library's model, and its gradients."""
    config = type(model.config).from_dict(model.config.to_dict())
    copy = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    copy.load_state_dict(model.state_dict())
    copy = copy.double().train()
    total, count = torch.zeros((), dtype=torch.float64), 0
    with float32_means_float64():
        for example in examples:
            ids = torch.tensor([example.ids])
            logits = copy(input_ids=ids, use_cache=False).logits[0]
            for place, is_target in enumerate(example.mask):
                if is_target:
                    total = total + F.cross_entropy(logits[place - 1][None], ids[0, place][None])
                    count += 1
        (total / count).backward()
    return (total / count).item(), {name: each.grad for name, each in copy.named_parameters() if each.grad is not None}


def in_training(
    model: PreTrainedModel, rows: Sequence[PackedRow], collate: Collator
) -> tuple[float, dict[str, torch.Tensor]]:
    """The same of a packed batch in float64, as a loop would have it."""
    model = model.double().train()
    with float32_means_float64():
        loss = model(**collate(rows)).loss
        loss.backward()
    return loss.item(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def test_a_row_is_what_lies_in_the_shard(folder: Path) -> None:
    """Read by pyarrow alone."""
    rows = PackedRows(folder)
    assert len(rows) == len(ROWS)
    tables = [pa.ipc.open_file(path).read_all() for path in sorted((folder / "train").iterdir())]
    expected = [row for table in tables for row in table.to_pylist()]
    for row, columns in zip(rows, expected, strict=True):  # type: ignore[call-overload]  # by index, as torch's data sets go
        labels = [t if m else -100 for t, m in zip(columns["input_ids"], columns["loss_mask"], strict=True)]
        assert row.input_ids.tolist() == columns["input_ids"]
        assert row.labels.tolist() == labels
        assert row.position_ids.tolist() == columns["position_ids"]
        assert row.cu_seqlens.tolist() == columns["cu_seqlens"]
        assert row.example_ids.tolist() == columns["example_ids"]
        assert row.num_segments == columns["num_segments"]
        assert {row.input_ids.dtype, row.labels.dtype, row.position_ids.dtype} == {torch.int64}
        row.input_ids[0] = 1  # its own memory, not the map's
    assert rows[-1].input_ids.tolist() == expected[-1]["input_ids"]
    with pytest.raises(IndexError):
        rows[len(ROWS)]
    assert len(PackedRows(folder, split="eval")) == 3


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=ROWS)
    shard = tmp_path / "packed" / "train" / "shard-00000.arrow"
    before = shard.read_bytes()
    ids = PackedRows(tmp_path / "packed")[3].input_ids.numpy().astype(np.int32).tobytes()
    shard.write_bytes(before.replace(ids, np.full(CAPACITY, VOCAB, np.int32).tobytes()))
    with pytest.raises(UserError, match="row 3: token ids must lie in the vocabulary"):
        PackedRows(tmp_path / "packed")[3]


def test_workers_and_ranks_read_the_same_rows(folder: Path) -> None:
    rows = PackedRows(folder)
    ids = [row.input_ids.tolist() for row in rows]  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(rows))
    assert "_corpus" not in {key for key, value in again.__dict__.items() if value is not None}
    assert again[4].input_ids.tolist() == ids[4]
    read = [
        row.input_ids.tolist()
        for batch in DataLoader(rows, batch_size=3, num_workers=2, collate_fn=list)
        for row in batch
    ]
    assert read == ids
    ranks = [
        DistributedSampler(rows, num_replicas=2, rank=rank, shuffle=True, seed=3, drop_last=True) for rank in (0, 1)
    ]
    assert len({index for rank in ranks for index in rank}) == 2 * (len(rows) // 2)


def test_a_batch_is_the_rows_one_behind_the_other(folder: Path) -> None:
    """Boundaries counted from the hand-made examples."""
    rows = PackedRows(folder)
    collate = Collator(stock(QWEN3), rows)
    batch = collate([rows[1], rows[3]])
    lengths = []
    for row in (ROWS[1], ROWS[3]):
        lengths += [len(example.ids) for example in row]
        lengths += (
            [CAPACITY - sum(len(example.ids) for example in row)] if sum(len(e.ids) for e in row) < CAPACITY else []
        )
    shaped = ("input_ids", "labels", "position_ids", "seq_idx")
    assert {tuple(batch[name].shape) for name in shaped} == {(1, 2 * CAPACITY)}  # type: ignore[union-attr]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == np.cumsum([0, *lengths]).tolist()  # type: ignore[union-attr]
    assert batch["cu_seq_lens_q"].dtype == batch["seq_idx"].dtype == torch.int32  # type: ignore[union-attr]
    assert batch["seq_idx"][0].tolist() == [place for place, length in enumerate(lengths) for _ in range(length)]  # type: ignore[index,union-attr]
    assert batch["max_length_q"] == batch["max_length_k"] == CAPACITY
    assert isinstance(batch["max_length_q"], int)
    assert (batch["use_cache"], "attention_mask" in batch) == (False, False)
    assert pickle.loads(pickle.dumps(collate)).isolated is False


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_positions_alone_train_what_each_example_alone_trains(folder: Path, attention: str) -> None:
    rows = PackedRows(folder)
    model = stock(QWEN3, attention)
    loss, gradients = alone(model, [*ROWS[1], *ROWS[3]])
    found, ours = in_training(model, [rows[1], rows[3]], Collator(model, rows))
    assert abs(found - loss) < 1e-12
    assert gradients.keys() == ours.keys()
    assert max(float((ours[name] - each).norm() / each.norm()) for name, each in gradients.items()) < 1e-11


def test_an_isolated_hybrid_trains_what_each_example_alone_trains(folder: Path) -> None:
    rows = PackedRows(folder)
    model = hybrid()
    loss, gradients = alone(model, [*ROWS[1], *ROWS[3]])
    assert [choice.layer for choice in isolate(model)] == ["attention", "delta", "conv"]
    collate = Collator(model, rows)
    assert isinstance(collate([rows[0]])["segments"], Segments)
    found, ours = in_training(model, [rows[1], rows[3]], collate)
    assert abs(found - loss) < 1e-12
    assert max(float((ours[name] - each).norm() / each.norm()) for name, each in gradients.items()) < 1e-9


def test_with_a_cache_the_library_would_let_examples_see_each_other(folder: Path) -> None:
    """Why every batch says use_cache=False: transformers looks for packed rows only where there is no cache."""
    rows = PackedRows(folder)
    model = stock(QWEN3).eval()
    batch = Collator(model, rows)([rows[1]])
    behind = int(rows[1].cu_seqlens[1])
    changed = {**batch, "input_ids": torch.cat([batch["input_ids"][:, :1] + 1, batch["input_ids"][:, 1:]], dim=1)}  # type: ignore[index,operator]

    def difference(**more: object) -> float:
        with torch.no_grad():
            one, other = (model(**{**given, **more}).logits[0, behind:] for given in (batch, changed))
        return float((one - other).abs().max())

    assert difference() == 0.0
    assert difference(use_cache=True) > 0.0


def _without_a_mask(*arguments: object, **options: object) -> object:
    return sdpa_attention_forward(*arguments, **options)  # type: ignore[arg-type]


AttentionInterface.register("without_a_mask", _without_a_mask)
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("config", "attention", "words"),
    [
        ({**CONFIGS["qwen3_5"]}, "sdpa", "Qwen3_5ForCausalLM cannot run on a packed row as transformers computes it: "),
        ({**CONFIGS["lfm2"]}, "eager", "Lfm2ForCausalLM cannot run on a packed row as transformers computes it: "),
        ({**CONFIGS["qwen3"], "model_type": "mamba"}, "eager", r"backbone\.layers\.0\.mixer \(MambaMixer\) lets one example|MambaForCausalLM cannot run on a packed row"),
        ({**CONFIGS["qwen3"], "model_type": "opt"}, "sdpa", r"model\.decoder\.layers\.0\.self_attn \(OPTAttention\) lets one example of a packed row see another"),
        ({**CONFIGS["qwen3"], "model_type": "bloom"}, "eager", r"transformer\.h\.0\.self_attention \(BloomAttention\) lets one example of a packed row see another"),
        (QWEN3, "without_a_mask", r"model\.layers\.0\.self_attn \(Qwen3Attention\) lets one example of a packed row see another"),
        ({**CONFIGS["llama"], "model_type": "phi3", "rope_parameters": LONGROPE}, "sdpa", "RoPE of type longrope depends on the length of the whole row"),
    ],
    ids=["gated delta", "short convolution", "mamba", "a mask of its own", "alibi", "no mask", "longrope"],
)  # fmt: skip
def test_what_would_leak_is_refused_when_the_collator_is_made(
    config: dict[str, object], attention: str, words: str
) -> None:
    model = stock(config, attention)
    with pytest.raises(UserError, match=words) as caught:
        Collator(model)
    assert caught.value.hint
    assert not caught.value.message.endswith(".")
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_too_small_for_the_rows_is_refused(folder: Path) -> None:
    rows = PackedRows(folder)
    with pytest.raises(UserError, match=f"token id {VOCAB - 1}, past the 50 rows of Qwen3ForCausalLM's embedding"):
        Collator(stock({**QWEN3, "vocab_size": 50}), rows)
    with pytest.raises(UserError, match=f"an example of {CAPACITY} tokens, and Qwen3ForCausalLM knows 32 positions"):
        Collator(stock({**QWEN3, "max_position_embeddings": 32}), rows)


def test_isolating_leaves_weights_names_and_mode_as_they_were(tmp_path: Path) -> None:
    model = hybrid().eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    isolate(model)
    assert not model.training
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    with pytest.raises(LostSegmentsError):
        model(input_ids=torch.zeros(1, 4, dtype=torch.int64))
    model.save_pretrained(tmp_path / "saved")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert not any(isinstance(module, SegmentedLayer) for module in back.modules())
    assert "packed" not in (tmp_path / "saved" / "config.json").read_text()
    with pytest.raises(UserError, match="Qwen3_5ForCausalLM is isolated already"):
        isolate(model)


def test_a_model_that_cannot_be_isolated_is_left_as_it_was() -> None:
    model = stock({**CONFIGS["qwen3_5"], "attention_dropout": 0.1})
    with pytest.raises(UserError, match=r"attention_dropout = 0\.1"):
        isolate(model)
    assert not any(isinstance(module, SegmentedLayer) for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
    assert model(input_ids=torch.zeros(1, 4, dtype=torch.int64)).logits.shape == (1, 4, 61)


@pytest.mark.parametrize("name", ["qwen3", "hybrid"])
def test_transformers_own_trainer_takes_the_rows(folder: Path, tmp_path: Path, name: str) -> None:
    """The loss of its first step is that of each example alone in float64; it logs what it trains on."""
    pytest.importorskip("accelerate", reason="transformers' Trainer comes with accelerate, of the dev extra")
    from transformers import Trainer, TrainingArguments

    rows = PackedRows(folder)
    model = stock(QWEN3) if name == "qwen3" else hybrid()
    if name == "hybrid":
        isolate(model)
    seen: list[list[int]] = []
    collate = Collator(model, rows)

    def noting(batch: Sequence[PackedRow]) -> dict[str, torch.Tensor | Segments | int]:
        seen.append([int(row.example_ids[0]) for row in batch])
        return collate(batch)

    first = {int(row.example_ids[0]): number for number, row in enumerate(rows)}  # type: ignore[arg-type]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=9, logging_steps=1,
        learning_rate=5e-3, per_device_eval_batch_size=3, lr_scheduler_type="constant", use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, seed=1,
    )  # fmt: skip
    plain = type(model.config).from_dict(model.config.to_dict())
    copy = AutoModelForCausalLM.from_config(plain)
    copy.load_state_dict(model.state_dict())
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=noting)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    examples = [example for batch in seen[:2] for start in batch for example in ROWS[first[start]]]
    expected, _ = alone(copy, examples)
    assert len(losses) == 9
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert sum(losses[6:]) < sum(losses[:3])
    copy.load_state_dict(model.state_dict())
    told = trainer.evaluate(PackedRows(folder, split="eval"))["eval_loss"]  # type: ignore[arg-type]
    held_out = [example for row in random_rows(3, seed=6) for example in row]
    assert told == pytest.approx(alone(copy, held_out)[0], rel=1e-5)


def test_rows_as_datasets_reads_them_make_the_same_batch(folder: Path) -> None:
    """TRL takes nothing but a `datasets.Dataset`, whose rows are columns by name."""
    rows = PackedRows(folder)
    collate = Collator(stock(QWEN3), rows)
    table = pa.ipc.open_file(folder / "train" / "shard-00000.arrow").read_all().to_pylist()
    ours, theirs = collate([rows[0], rows[2]]), collate([table[0], table[2]])
    for name in ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"):
        assert torch.equal(ours[name], theirs[name]), name  # type: ignore[arg-type]
        assert ours[name].dtype == theirs[name].dtype  # type: ignore[union-attr]
    with pytest.raises(
        UserError, match="the rows of the data set have no loss_mask, cu_seqlens, num_segments"
    ) as caught:
        collate([{"input_ids": [1], "position_ids": [0]}])
    assert "remove_unused_columns=False" in caught.value.hint


@pytest.mark.parametrize(
    ("column", "change", "rule"),
    [
        ("cu_seqlens", lambda bounds: [0, bounds[1], *bounds[1:-1]], "cu_seqlens must increase strictly"),
        ("cu_seqlens", lambda bounds: [1, *bounds[1:]], "cu_seqlens must start at 0"),
        (
            "cu_seqlens",
            lambda bounds: [min(place, CAPACITY - 1) for place in bounds],
            "cu_seqlens must reach the capacity",
        ),
        ("num_segments", lambda _: 0, "num_segments must be between 1 and max_segments"),
        ("position_ids", lambda places: list(range(len(places))), "position_ids must restart at 0 in each segment"),
        ("position_ids", lambda places: [place + 5 for place in places], "position_ids must restart at 0"),
        ("loss_mask", lambda mask: [True] * len(mask), "loss_mask must be false on every segment's first token"),
    ],
)
def test_a_row_of_a_data_set_that_does_not_keep_examples_apart_is_refused(
    folder: Path, column: str, change: Callable[[Any], object], rule: str
) -> None:
    """Nobody has held what `datasets` reads against the format, and a kernel would read past such boundaries or leave gradients unwritten."""
    collate = Collator(stock(QWEN3), PackedRows(folder))
    row = pa.ipc.open_file(folder / "train" / "shard-00000.arrow").read_all().to_pylist()[0]
    assert row["num_segments"] > 2
    with pytest.raises(UserError, match=f"a row of the data set: {rule}"):
        collate([{**row, column: change(row[column])}])


@pytest.mark.parametrize("positional", [False, True])
def test_positions_left_out_are_those_of_the_segments(positional: bool) -> None:
    model = hybrid().eval()
    isolate(model)
    rotary = model.get_submodule("model.rotary_emb")
    seen: list[torch.Tensor] = []
    rotary.register_forward_pre_hook(
        lambda _module, args, options: seen.append((*args, *options.values())[1]), with_kwargs=True
    )
    ids = torch.arange(1, 10)[None]
    segments = Segments.from_lengths([5, 1, 3])
    expected = torch.tensor([[0, 1, 2, 3, 4, 0, 0, 1, 2]])
    assert torch.equal(segments.positions, expected)
    args = (ids, None) if positional else ()
    options = {} if positional else {"input_ids": ids}
    without = model(*args, **options, segments=segments, use_cache=False).logits
    given = model(input_ids=ids, position_ids=expected, segments=segments, use_cache=False).logits
    assert torch.equal(without, given)
    assert all(torch.equal(places.reshape(-1, 9)[-1:], expected) for places in seen)
    assert len(seen) == 2


@pytest.mark.full
def test_trl_takes_the_shards(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="TRL comes with the dev extra")
    trl = pytest.importorskip("trl", reason="TRL comes with the dev extra")
    from datasets import load_dataset
    from transformers import PreTrainedTokenizerFast

    files = [str(path) for path in sorted((folder / "train").iterdir())]
    rows = load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    model = hybrid()
    isolate(model)
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=3, logging_steps=1, use_cpu=True, bf16=False, report_to=[],
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(TINY))
    trainer = trl.SFTTrainer(
        model=model, args=arguments, train_dataset=rows, data_collator=Collator(model), processing_class=tokenizer
    )
    trainer.train()
    assert len([line for line in trainer.state.log_history if "loss" in line]) == 3
