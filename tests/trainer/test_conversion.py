"""Names and shapes between a checkpoint and its model, by rules made for the purpose: what the tested families have no example of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming, WeightTransform

from tests.trainer.tiny_models import CONFIGS
from trainer.conversion import Plan, plan_loading, plan_saving, without_memory

FUSED = "model.layers.{}.self_attn.qkv_proj.weight"
APART = [f"model.layers.{{}}.self_attn.{part}_proj.weight" for part in "qkv"]


def llama() -> LlamaForCausalLM:
    config = {name: value for name, value in CONFIGS["llama"].items() if name != "model_type"}
    config |= {"num_key_value_heads": 4, "tie_word_embeddings": False}  # q, k and v of one size
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**config))


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[WeightTransform]:
    """The library's rules for the class, to be filled."""
    mine: list[WeightTransform] = []
    monkeypatch.setattr("trainer.conversion.get_model_conversion_mapping", lambda *_, **__: list(mine))
    return mine


def made(plan: Plan, model: LlamaForCausalLM, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    assert plan.broken == ()
    found: dict[str, Tensor] = {}
    for recipe in plan.recipes:
        found |= recipe.make(model, [tensors[name] for name in recipe.names])
        assert {name: tuple(found[name].shape) for name in recipe.shapes} == dict(recipe.shapes)
    return found


def drawn(model: LlamaForCausalLM) -> dict[str, Tensor]:
    return {name: torch.randn(tensor.shape) for name, tensor in model.state_dict().items()}


def test_one_tensor_of_a_checkpoint_becomes_three_and_three_become_one_again(rules: list[WeightTransform]) -> None:
    names = [f"self_attn.{part}_proj.weight" for part in "qkv"]
    rules.append(WeightConverter("self_attn.qkv_proj.weight", names, [Chunk(dim=0)]))
    model = llama()
    whole = drawn(model)
    held = {name: value for name, value in whole.items() if not any(name.endswith(each) for each in names)}
    for layer in range(2):
        held[FUSED.format(layer)] = torch.cat([whole[name.format(layer)] for name in APART])
    plan = plan_loading(model, without_memory({name: value.shape for name, value in held.items()}))
    assert plan.unused == ()
    loaded = made(plan, model, held)
    assert loaded.keys() == whole.keys()
    assert all(torch.equal(loaded[name], value) for name, value in whole.items())
    back = plan_saving(model, without_memory({name: value.shape for name, value in whole.items()}))
    saved = made(back, model, whole)
    assert saved.keys() == held.keys()
    assert all(torch.equal(saved[name], value) for name, value in held.items())


def test_a_name_that_is_the_model_s_already_is_kept_though_a_rule_would_change_it(rules: list[WeightTransform]) -> None:
    rules.append(WeightRenaming("mlp", "ffn"))
    model = llama()
    there = without_memory({name: value.shape for name, value in model.state_dict().items()})
    plan = plan_loading(model, there)
    assert plan.unused == ()
    assert {recipe.name: recipe.names for recipe in plan.recipes} == {name: [name] for name in there}


def test_the_second_of_two_tensors_for_one_place_is_left_over(rules: list[WeightTransform]) -> None:
    rules.append(WeightRenaming("final_norm", "model.norm"))
    model = llama()
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    plan = plan_loading(model, without_memory({**shapes, "final_norm.weight": shapes["model.norm.weight"]}))
    assert plan.unused == ("model.norm.weight",)
    assert [recipe.names for recipe in plan.recipes if recipe.name == "model.norm.weight"] == [["final_norm.weight"]]


def test_what_a_rule_cannot_make_is_named_and_the_rest_goes_on(rules: list[WeightTransform]) -> None:
    class Refusing(Chunk):
        def convert(self, *_: object, **__: object) -> dict[str, Tensor]:
            raise ValueError("not in three")

    names = [f"self_attn.{part}_proj.weight" for part in "qkv"]
    rules.append(WeightConverter("self_attn.qkv_proj.weight", names, [Refusing(dim=0)]))
    model = llama()
    plan = plan_loading(model, without_memory({FUSED.format(0): (96, 32), "model.norm.weight": (32,)}))
    assert [(name, str(error)) for name, error in plan.broken] == [(APART[0].format(0), "not in three")]
    assert [recipe.name for recipe in plan.recipes] == ["model.norm.weight"]
