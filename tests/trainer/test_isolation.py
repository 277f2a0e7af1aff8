"""Whole tiny models: an example in a packed row computes what it computes alone, and nothing of it depends on the others."""

import importlib
from pathlib import Path

import pytest
import torch

from tests.isolation import (
    end_to_end_gradient_leak,
    equality,
    gradient_leaks,
    layout_faults,
    length_leak,
    pack,
    perturbation_leak,
)
from tests.trainer.tiny_models import CONFIGS, DENSE, alone, examples, packed_model, stock_model
from trainer.float64 import float32_means_float64
from trainer.isolate import isolating
from trainer.segmented import SegmentedLayer
from trainer.segments import LostSegmentsError

LENGTHS, PAD = [5, 1, 2, 63, 65, 30], 26
OURS = [
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "olmo_hybrid",
    "lfm2",
    "lfm2_moe",
    "bamba",
    "granite_hybrid",
    "falcon_h1",
]


@pytest.mark.parametrize("name", CONFIGS)
def test_no_gradient_crosses_a_boundary_in_any_layer(name: str, tmp_path: Path) -> None:
    model = packed_model(name, tmp_path)
    flat = pack(examples(LENGTHS), pad=PAD)
    leaks = gradient_leaks(model, flat)
    assert len(leaks) == (4 if name == "falcon_h1" else 2)  # a layer of Falcon-H1 has attention and a scan side by side
    assert leaks == dict.fromkeys(leaks, 0.0)
    assert end_to_end_gradient_leak(model, flat) == 0.0


@pytest.mark.parametrize("name", CONFIGS)
def test_another_token_before_a_boundary_changes_nothing_behind_it(name: str, tmp_path: Path) -> None:
    flat = pack(examples(LENGTHS), pad=PAD)
    if name in DENSE:
        assert perturbation_leak(packed_model(name, tmp_path), flat) == 0.0
    else:  # experts multiply as many tokens as were sent to them, and rounding depends on how many
        model = packed_model(name, tmp_path).double()
        with float32_means_float64():
            assert perturbation_leak(model, flat) < 1e-12


@pytest.mark.parametrize("name", CONFIGS)
def test_how_long_the_others_and_the_pad_tail_are_changes_nothing(name: str, tmp_path: Path) -> None:
    model = packed_model(name, tmp_path).double()
    (example,) = examples([40], seed=1)
    rows = [
        (pack([example]), 0),
        (pack([example], pad=300), 0),
        (pack([*examples([64]), example]), 1),
        (pack([*examples([1, 90, 3]), example, *examples([77])], pad=50), 3),
    ]
    with float32_means_float64():
        assert length_leak(model, example, rows) < 1e-12


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packed_row_equals_its_examples_run_alone_by_the_library(name: str, tmp_path: Path) -> None:
    packed = packed_model(name, tmp_path).double()
    stock = stock_model(packed, name, tmp_path)
    conversations = examples(LENGTHS)
    with float32_means_float64():
        found = equality(packed, pack(conversations, pad=PAD), conversations, alone(stock), stock)
    assert found.max_logit_error < 1e-11
    assert found.max_grad_error < 1e-9, found.worst
    assert found.loss_error < 1e-12


@pytest.mark.parametrize("name", ["qwen3_5", "llama"])
def test_equality_does_not_pass_for_other_weights(name: str, tmp_path: Path) -> None:
    packed = packed_model(name, tmp_path).double()
    stock = stock_model(packed, name, tmp_path)
    with torch.no_grad():
        next(iter(packed.blocks[0].parameters())).view(-1)[0] += 1e-6
    conversations = examples(LENGTHS)
    with float32_means_float64():
        found = equality(packed, pack(conversations), conversations, alone(stock), stock)
    assert found.max_logit_error > 1e-9


def test_the_layout_of_a_packed_row_is_right() -> None:
    flat = pack(examples(LENGTHS), pad=PAD)
    assert layout_faults(flat, LENGTHS, PAD) == []
    assert flat.count == sum(length - 1 for length in LENGTHS)


@pytest.mark.parametrize("name", OURS)
def test_the_library_is_left_as_it_was_found(name: str, tmp_path: Path) -> None:
    packed = packed_model(name, tmp_path)
    assert any(isinstance(module, SegmentedLayer) for module in packed.modules())
    stock = stock_model(packed, name, tmp_path)
    assert not any(isinstance(module, SegmentedLayer) for module in stock.modules())
    assert {f"{packed.hf_state_dict_prefix}{key}" for key in stock.state_dict()} == set(packed.state_dict())


def test_the_library_is_left_as_it_was_found_by_what_fails_and_by_what_is_nested() -> None:
    modeling = importlib.import_module("transformers.models.lfm2.modeling_lfm2")
    theirs, seen = modeling.Lfm2ShortConv, []

    def build_and_fail() -> None:
        with isolating("lfm2"):
            seen.append(modeling.Lfm2ShortConv)
            with isolating("lfm2"):
                seen.append(modeling.Lfm2ShortConv)
            raise KeyError

    with pytest.raises(KeyError):
        build_and_fail()
    assert seen[0] is seen[1]
    assert issubclass(seen[0], SegmentedLayer)
    assert modeling.Lfm2ShortConv is theirs


@pytest.mark.parametrize("name", OURS)
def test_a_layer_of_ours_that_is_not_told_the_segments_raises(name: str, tmp_path: Path) -> None:
    layer = next(module for module in packed_model(name, tmp_path).modules() if isinstance(module, SegmentedLayer))
    with pytest.raises(LostSegmentsError, match="of layer 0 was called without `segments`"):
        layer(hidden_states=torch.zeros(1, 4, 32))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_that_is_not_told_the_segments_raises(name: str, tmp_path: Path) -> None:
    model = packed_model(name, tmp_path).model
    ids = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(LostSegmentsError, match="without `segments`"):
        model(input_ids=ids, use_cache=False)
