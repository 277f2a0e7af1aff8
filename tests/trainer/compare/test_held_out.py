"""Held-out loss: of examples that no step trains on, each alone, by the library's own model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from packer.errors import UserError
from packer.shards import open_corpus
from tests.trainer.compare.benches import HYBRID, a_config, a_setting
from tests.trainer.shards_fixture import random_rows
from trainer.compare.held_out import held_out_loss
from trainer.compare.rungs import PACKED, PADDED_STOCK, Rung, make_trainee, work_of
from trainer.compare.training import one_step, train


@pytest.mark.parametrize("model", [HYBRID, "qwen3", "llama"])
@pytest.mark.parametrize("rung", [PADDED_STOCK, PACKED], ids=lambda rung: rung.name)
def test_it_is_the_cross_entropy_of_each_example_alone_by_transformers(tmp_path: Path, model: str, rung: Rung) -> None:
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1), model=model)
    with a_setting(config) as (setting, check):
        trainee = make_trainee(rung, setting, config)
        for work in work_of(rung, setting, config, check):  # so that the weights are not those of the start
            one_step(trainee, work, setting, config)
        found = held_out_loss(trainee.model, setting)
        trained = {name: each.to_local() for name, each in trainee.model.model.named_parameters()}
        alone = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(setting.base.model), attn_implementation="eager"
        )
        with torch.no_grad():
            for name, parameter in alone.named_parameters():
                parameter.copy_(trained[name])
        alone.double().eval()
        total, targets = 0.0, 0
        corpus = open_corpus(config.shards, split="eval")
        with torch.no_grad():
            for row in corpus:
                for first, end in zip(
                    row.cu_seqlens[: row.num_examples], row.cu_seqlens[1 : row.num_examples + 1], strict=True
                ):
                    ids = torch.from_numpy(row.input_ids[first:end].astype(np.int64))
                    at = np.flatnonzero(row.loss_mask[first:end])
                    logits = alone(input_ids=ids[None], use_cache=False).logits[0]
                    total += float(F.cross_entropy(logits[at - 1], ids[at], reduction="sum"))
                    targets += len(at)
    assert found == pytest.approx(total / targets, rel=2e-6)


def test_it_leaves_the_weights_and_the_optimiser_as_they_were(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1))
    with a_setting(config) as (setting, _):
        trainee = make_trainee(PACKED, setting, config)
        before = [each.to_local().clone() for each in trainee.model.parameters()]
        first = held_out_loss(trainee.model, setting)
        assert held_out_loss(trainee.model, setting) == first
        assert all(
            torch.equal(one, each.to_local()) for one, each in zip(before, trainee.model.parameters(), strict=True)
        )
        assert trainee.model.training


def test_without_an_eval_split_the_last_rows_are_kept_back_and_in_no_step(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(41, seed=0), steps=40)
    with a_setting(config, seeds=2, most_held_out=10_000) as (setting, _):
        assert setting.rows == 39  # one row in twenty
        kept_back = {example.at[0] for example in setting.held_out}
        assert kept_back == {39, 40}
        for seed in setting.seeds:
            order = setting.prepared(dataclasses.replace(config, seed=seed)).order
            assert {int(row) for step in range(40) for row in order.step(step).rows} == set(range(39))
    assert "the last 2 of the train rows" in setting.held_out_from


def test_a_single_row_cannot_be_both(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(1, seed=0))
    with pytest.raises(UserError, match="a single row cannot be trained on and held out"), a_setting(config):
        pass


def test_at_most_so_many_examples_are_taken_evenly_spread(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(4, seed=0), eval_rows=random_rows(10, seed=1))
    with a_setting(config, most_held_out=5) as (setting, _):
        rows = [example.at[0] for example in setting.held_out]
        total = int(open_corpus(config.shards, split="eval").column("num_examples").sum())
    assert (len(rows), setting.held_out_of) == (5, total)
    assert rows[0] == 0
    assert rows[-1] == 9
    assert rows == sorted(set(rows))


def test_the_loss_of_a_run_is_that_of_its_last_weights(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1), steps=2)
    with a_setting(config) as (setting, check):
        done = train(PACKED, setting, config, check=check, advance=lambda _: None)
        untrained = held_out_loss(make_trainee(PACKED, setting, config).model, setting)
    assert done.held_out != untrained


def test_a_damaged_eval_shard_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(6, seed=0), eval_rows=random_rows(3, seed=1))
    shard = tmp_path / "packed" / "eval" / "shard-00000.arrow"
    first = open_corpus(config.shards, split="eval")[0].input_ids[:4].tobytes()
    data = bytearray(shard.read_bytes())
    data[data.index(first) + 8] ^= 2  # another token: no rule of the format sees it
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"eval/shard-00000\.arrow: its bytes are not those"), a_setting(config):
        pass
