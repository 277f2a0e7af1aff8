"""The checks of isolation are only worth what they catch: each known way to pack wrongly, planted, must be found."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.isolation import (
    Pass,
    end_to_end_gradient_leak,
    equality,
    gradient_leaks,
    layout_faults,
    length_leak,
    pack,
    perturbation_leak,
)
from tests.trainer.tiny_models import alone, examples, packed_model, stock_model
from trainer.float64 import float32_means_float64
from trainer.isolate import register_attention
from trainer.kernels import attention, conv, delta, scan
from trainer.model import PackedModel
from trainer.segmented import SegmentedLayer
from trainer.segments import Segments

LENGTHS, PAD = [9, 64, 3, 40], 12


def whole_row(segments: Segments) -> Segments:
    return Segments.from_lengths([segments.num_tokens])


def off_by_one(segments: Segments) -> Segments:
    first, *rest, last = segments.lengths
    return Segments.from_lengths([first + 1, *rest, last - 1])


def blind_attention(model: PackedModel, seen: object) -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
        return attention.reference(q, k, v, segments=seen(segments), scale=scale, window=window)  # type: ignore[operator]

    model.model.set_attn_implementation(register_attention(kernel, "planted"))


def blind_delta(model: PackedModel, seen: object) -> None:
    for module in model.modules():
        if isinstance(module, SegmentedLayer):
            module.delta_kernel = lambda *x, segments: delta.reference(*x, segments=seen(segments))  # type: ignore[operator,misc]


def blind_conv(model: PackedModel, seen: object) -> None:
    for module in model.modules():
        if isinstance(module, SegmentedLayer):
            module.conv_kernel = lambda *x, segments: conv.reference(*x, segments=seen(segments))  # type: ignore[operator,misc]


def blind_scan(model: PackedModel, seen: object) -> None:
    for module in model.modules():
        if isinstance(module, SegmentedLayer):
            module.scan_kernel = lambda *x, segments: scan.reference(*x, segments=seen(segments))  # type: ignore[operator,misc]


@pytest.mark.parametrize("seen", [whole_row, off_by_one])
@pytest.mark.parametrize(
    ("name", "plant", "layer"),
    [
        ("qwen3_5", blind_attention, "self_attn"),
        ("qwen3_5", blind_delta, "linear_attn"),
        ("qwen3_5", blind_conv, "linear_attn"),
        ("lfm2", blind_conv, "conv"),
        ("bamba", blind_conv, "mamba"),
        ("bamba", blind_scan, "mamba"),
        ("falcon_h1", blind_scan, "mamba"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_layer_that_ignores_or_shifts_boundaries_is_found_and_named(
    name: str, plant: object, layer: str, seen: object, tmp_path: Path
) -> None:
    model = packed_model(name, tmp_path).double()
    stock = stock_model(model, name, tmp_path)
    conversations = examples(LENGTHS)
    flat = pack(conversations, pad=PAD)
    plant(model, seen)  # type: ignore[operator]
    leaking = [path for path, leak in gradient_leaks(model, flat).items() if leak != 0.0]
    assert {path.rsplit(".", 1)[-1] for path in leaking} == {layer}
    assert end_to_end_gradient_leak(model, flat) > 1e-6
    assert perturbation_leak(model, flat) > 1e-6
    (example,) = examples([40], seed=1)
    assert (
        length_leak(
            model,
            example,
            [(pack([*examples([5]), example, *examples([5])]), 1), (pack([*examples([6]), example], pad=9), 1)],
        )
        > 1e-6
    )
    with float32_means_float64():
        found = equality(model, flat, conversations, alone(stock), stock)
    assert found.max_logit_error > 1e-6
    assert found.max_grad_error > 1e-6
    assert found.loss_error > 1e-9


def test_positions_that_run_on_are_found() -> None:
    flat = pack(examples(LENGTHS), pad=PAD)
    running = dataclasses.replace(flat, position_ids=torch.arange(flat.segments.num_tokens)[None])
    assert layout_faults(running, LENGTHS, PAD) == ["positions do not restart at 0 in every segment"]


def shifted_over_boundaries(conversations: list[Tensor]) -> Pass:
    """Every slot but the last predicts the next one, as a shift of the flat row does."""
    flat = pack(conversations)
    total = flat.segments.num_tokens
    targets = torch.cat([flat.input_ids[0, 1:], torch.zeros(1, dtype=torch.int64)])
    return dataclasses.replace(flat, positions=torch.arange(total), targets=targets, count=total - 1)


def test_a_label_shift_over_a_boundary_is_found(tmp_path: Path) -> None:
    conversations = examples(LENGTHS)
    flat = shifted_over_boundaries(conversations)
    assert layout_faults(flat, LENGTHS, 0) == ["3 targets are the first token of the next segment"]
    model = packed_model("llama", tmp_path).double()
    stock = stock_model(model, "llama", tmp_path)
    with float32_means_float64():
        found = equality(model, flat, conversations, alone(stock), stock)
    assert found.loss_error > 1e-3
    assert found.max_grad_error > 1e-3


def test_targets_shifted_once_too_often_are_found() -> None:
    flat = pack(examples(LENGTHS))
    wrong = dataclasses.replace(flat, targets=flat.targets.roll(-1))
    assert layout_faults(wrong, LENGTHS, 0) == ["a target is not the token behind its position"]


def test_a_pad_tail_glued_to_the_last_example_is_found() -> None:
    flat = pack(examples(LENGTHS), pad=PAD)
    glued = dataclasses.replace(
        flat,
        segments=Segments.from_lengths([*LENGTHS[:-1], LENGTHS[-1] + PAD]),
        position_ids=torch.cat([torch.arange(n) for n in [*LENGTHS[:-1], LENGTHS[-1] + PAD]])[None],
    )
    assert len(layout_faults(glued, LENGTHS, PAD)) == 2


def test_supervised_padding_is_found() -> None:
    flat = pack(examples([*LENGTHS, PAD]))
    assert "tokens of the pad tail are supervised" in layout_faults(flat, LENGTHS, PAD)


def test_a_rope_that_looks_at_the_longest_position_is_found_by_lengths_alone(tmp_path: Path) -> None:
    model = packed_model("llama", tmp_path).double()
    rotary = model.model.base_model.rotary_emb
    plain = type(rotary).forward

    def stretching(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        rotary.attention_scaling = 1.0 if int(position_ids.max()) < 50 else 1.2
        return plain(rotary, x, position_ids)  # type: ignore[no-any-return]

    rotary.forward = stretching
    (example,) = examples([40], seed=1)
    flat = pack([example, *examples([5])], pad=PAD)
    assert end_to_end_gradient_leak(model, flat) == 0.0
    assert perturbation_leak(model, flat) == 0.0
    assert length_leak(model, example, [(flat, 0), (pack([example], pad=100), 0)]) > 1e-3
