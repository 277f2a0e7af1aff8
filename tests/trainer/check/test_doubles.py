"""The float64 copies of a large model are cut down, keep its real weights, and still notice a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.check.benches import deeper, windows
from tests.trainer.tiny_models import packed_model
from trainer.check import doubles as module
from trainer.check.doubles import Doubles, make_doubles
from trainer.check.equality import equality_in_float64

CPU = torch.device("cpu")


def cut(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, layers: int) -> Doubles:
    monkeypatch.setattr(module, "_MOST_PARAMETERS", 0)
    ids = torch.cat([torch.from_numpy(each.row.input_ids).long() for each in windows()])
    with deeper(family, layers):
        model = packed_model(family, folder)
        made = make_doubles(model, ids=ids[ids % 2 == 0], device=CPU, keep=True)
        assert make_doubles(model, ids=ids, device=CPU, keep=False) is None
    assert made is not None
    assert made.ids is not None
    weights = model.model.get_input_embeddings().weight
    assert torch.equal(made.packed.model.get_input_embeddings().weight, weights[made.ids].double())
    return made


@pytest.mark.parametrize(("family", "left"), [("qwen3_5", 2), ("qwen3", 1), ("gemma3", 2)])
def test_a_large_model_keeps_as_many_blocks_as_hold_one_of_each_kind(
    family: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cut(family, tmp_path, monkeypatch, layers=4)
    assert (made.blocks, made.all_blocks) == (left, 4)
    assert len(made.packed.blocks) == left
    assert made.alone.config.vocab_size == len(made.ids) < 61  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["qwen3_5", pytest.param("qwen3_next", marks=pytest.mark.full)])
def test_what_is_left_is_equal_alone_and_packed_and_notices_another_weight(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_PARAMETERS", 0)
    ids = torch.cat([torch.from_numpy(each.row.input_ids).long() for each in windows()])
    with deeper(family, 4):
        made = make_doubles(packed_model(family, tmp_path), ids=ids, device=CPU, keep=True)
    assert made is not None
    found = equality_in_float64(made, windows()[:1], CPU)
    assert found.passed
    assert found.max_grad_error < 1e-10
    with torch.no_grad():
        next(iter(made.packed.blocks[0].parameters())).view(-1)[0] += 1e-5
    assert not equality_in_float64(made, windows()[:1], CPU).passed
