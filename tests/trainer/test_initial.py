"""First values: a class that does not make all of them by itself is refused, and nothing is left changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import FalconH1Config, FalconH1ForCausalLM, LlamaConfig, LlamaForCausalLM

from packer.errors import UserError
from tests.trainer.tiny_models import CONFIGS
from trainer.initial import initialise
from trainer.refuse import decoder_blocks


def draft() -> LlamaForCausalLM:
    config = LlamaConfig(**{name: value for name, value in CONFIGS["llama"].items() if name != "model_type"})
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def made(model: LlamaForCausalLM, seed: int | None = 0) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    initialise(model, decoder_blocks(model), seed=seed, keep=lambda name, value: values.update({name: value.clone()}))
    return values


def test_every_parameter_and_buffer_is_made_once_and_the_draft_stays_empty() -> None:
    model = draft()
    values = made(model)
    assert values.keys() == {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    assert "lm_head.weight" not in values, "it is the embedding"
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_without_a_seed_only_buffers_are_made() -> None:
    model = draft()
    assert made(model, None).keys() == {name for name, _ in model.named_buffers()}


def test_no_more_than_a_block_is_held() -> None:
    model, most = draft(), 0

    def look(_name: str, _value: Tensor) -> None:
        nonlocal most
        most = max(most, sum(tensor.nbytes for tensor in model.parameters() if not tensor.is_meta))

    initialise(model, decoder_blocks(model), seed=0, keep=look)
    block = sum(parameter.nbytes for parameter in model.model.layers[0].parameters())
    assert most == max(block, model.lm_head.weight.nbytes) < sum(parameter.nbytes for parameter in model.parameters())


def test_the_generator_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    made(draft())
    assert torch.equal(torch.rand(1), expected)


def lose_a_norm(_: LlamaForCausalLM, module: nn.Module, stock: Callable[[nn.Module], None]) -> None:
    if "RMSNorm" not in type(module).__name__:
        stock(module)


def lose_a_frequency(_: LlamaForCausalLM, module: nn.Module, stock: Callable[[nn.Module], None]) -> None:
    if "Rotary" not in type(module).__name__:
        stock(module)


def reach_into_the_embedding(self: LlamaForCausalLM, module: nn.Module, stock: Callable[[nn.Module], None]) -> None:
    stock(module)
    if module is self.model:
        module.embed_tokens.weight.mul_(2)


def reach_into_the_frequencies(self: LlamaForCausalLM, module: nn.Module, stock: Callable[[nn.Module], None]) -> None:
    stock(module)
    if module is self.model:
        module.rotary_emb.inv_freq.mul_(2)


def forget_half_the_frequencies(self: LlamaForCausalLM, module: nn.Module, stock: Callable[[nn.Module], None]) -> None:
    if module is self.model:
        module.rotary_emb.inv_freq[:2].copy_(torch.ones(2))
    lose_a_frequency(self, module, stock)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lose_a_norm, r"model\.layers\.0\.\w+norm\.weight of LlamaForCausalLM is not initialised by its class"),
        (lose_a_frequency, r"model\.rotary_emb\.inv_freq of LlamaForCausalLM is not initialised"),
        (forget_half_the_frequencies, r"model\.rotary_emb\.inv_freq of LlamaForCausalLM is not initialised"),
        (reach_into_the_frequencies, r"model\.rotary_emb\.inv_freq is initialised by the module around it"),
        (reach_into_the_embedding, r"model\.embed_tokens\.weight is initialised by the module around it"),
    ],
)
def test_a_class_that_initialises_otherwise_is_refused_by_name(
    fault: Callable[..., None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = draft()
    stock = model._init_weights
    for owner in (model, model.model):
        monkeypatch.setattr(owner, "_init_weights", lambda module: fault(model, module, stock))
    with pytest.raises(UserError, match=words):
        made(model)
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("seed", [None, 0])
def test_a_buffer_of_a_block_that_the_backbone_writes_is_made_once(seed: int | None) -> None:
    config = FalconH1Config(**{name: value for name, value in CONFIGS["falcon_h1"].items() if name != "model_type"})
    with torch.device("meta"):
        model = FalconH1ForCausalLM(config)
    kept: list[str] = []
    initialise(model, decoder_blocks(model), seed=seed, keep=lambda name, _: kept.append(name))
    wanted = [name for name, _ in [*(model.named_parameters() if seed == 0 else ()), *model.named_buffers()]]
    assert sorted(kept) == sorted(wanted)
    assert {"model.layers.0.mamba.mup_vector", "model.layers.1.mamba.mup_vector"} <= set(kept)
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
