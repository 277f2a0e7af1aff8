"""The padded-stock rung is transformers' own model, told of the padding and of nothing else, with the weights that the other rungs start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.compare.benches import HYBRID, a_config, a_setting
from tests.trainer.shards_fixture import random_rows
from trainer.compare.rungs import PACKED, PADDED_KERNELS, PADDED_STOCK, make_trainee, work_of
from trainer.compare.stock import stock_view
from trainer.segmented import SegmentedLayer
from trainer.step import loss_of


def test_no_layer_of_ours_is_in_it_and_its_attention_is_the_library_s(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(4, seed=0))
    with a_setting(config) as (setting, _):
        stock = make_trainee(PADDED_STOCK, setting, config).model
        ours = make_trainee(PADDED_KERNELS, setting, config).model
    assert not any(isinstance(module, SegmentedLayer) for module in stock.modules())
    assert any(isinstance(module, SegmentedLayer) for module in ours.modules())
    assert stock.model.config._attn_implementation == "sdpa"
    assert [choice.kernel for choice in stock.layers] == ["sdpa", "transformers"]


@pytest.mark.parametrize("init_of", [HYBRID, "qwen3", "llama"])
def test_all_rungs_start_from_the_same_weights_bit_for_bit(tmp_path: Path, init_of: str) -> None:
    config = a_config(tmp_path, random_rows(4, seed=0), model=init_of)
    with a_setting(config) as (setting, _):
        stock, flat, packed = (
            {
                name: each.to_local().clone()
                for name, each in make_trainee(rung, setting, config).model.named_parameters()
            }
            for rung in (PADDED_STOCK, PADDED_KERNELS, PACKED)
        )
    assert stock.keys() == flat.keys() == packed.keys()
    assert all(torch.equal(stock[name], packed[name]) and torch.equal(stock[name], flat[name]) for name in stock)


def test_the_library_is_told_which_slots_are_padding(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(4, seed=0), model="qwen3", rows_per_step=2)
    seen: list[dict[str, Tensor]] = []
    with a_setting(config) as (setting, check):
        model = make_trainee(PADDED_STOCK, setting, config).model
        backbone = model.model.base_model
        backbone.register_forward_pre_hook(lambda _, __, given: seen.append(given), with_kwargs=True)
        batches = next(work_of(PADDED_STOCK, setting, config, check)).passes
        for batch in batches:
            loss_of(model, batch)
    assert len(seen) == len(batches)
    assert any(batch.shape.slots > batch.useful_tokens for batch in batches)
    for batch, given in zip(batches, seen, strict=True):
        assert set(given) == {"input_ids", "attention_mask", "use_cache"}
        lengths = given["attention_mask"].sum(dim=1).tolist()
        assert sum(lengths) == batch.useful_tokens
        for line, length in enumerate(lengths):
            assert given["attention_mask"][line].tolist() == [1] * length + [0] * (batch.shape.capacity - length)
        assert max(lengths) == batch.shape.capacity


def test_a_view_has_the_trained_tensors_themselves(tmp_path: Path) -> None:
    config = a_config(tmp_path, random_rows(4, seed=0))
    with a_setting(config) as (setting, _):
        trained = make_trainee(PACKED, setting, config).model
        view = stock_view(trained, setting.base.model)
        theirs = {name: each.to_local() for name, each in trained.model.named_parameters()}
        for name, parameter in view.model.named_parameters(remove_duplicate=False):
            if name in theirs:
                assert parameter.data_ptr() == theirs[name].data_ptr()
        buffers = dict(trained.model.named_buffers())
        assert {name for name, _ in view.model.named_buffers()} == set(buffers)
        assert all(torch.equal(each, buffers[name]) for name, each in view.model.named_buffers())
        assert not any(each.is_meta for each in (*view.parameters(), *view.buffers()))
        assert not view.training
