"""The window of every attention layer is the one its own mask has; a mask that is more than that is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask

from packer.errors import UserError
from tests.isolation import pack
from tests.trainer.tiny_models import CONFIGS, VOCABULARY, alone, examples, packed_model, write_config
from trainer.masks import learn_windows
from trainer.model import load_model
from trainer.segments import Segments

_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
WINDOWED = {
    "phimoe": {"model_type": "phimoe", "sliding_window": 5},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "sliding_window": 5,
        "shared_expert_intermediate_size": 16,
        **_ALTERNATING,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "gemma3": {**CONFIGS["gemma3"], "sliding_window": 5},
}


@pytest.mark.parametrize("name", WINDOWED)
def test_segments_longer_than_the_window_give_the_library_s_logits(name: str, tmp_path: Path) -> None:
    source = write_config(tmp_path, {**CONFIGS["llama"], **_EXPERTS, **WINDOWED[name]})
    packed = load_model(
        source, init="random", seed=0, dtype=torch.float32, kernels="auto", device="cpu", vocab_at_least=VOCABULARY
    ).eval()
    stock = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), attn_implementation="eager")
    stock.load_state_dict(packed.model.state_dict())
    texts = examples([23, 4, 40])
    flat = pack(texts)
    with torch.no_grad():
        ours = packed.logits(flat.input_ids, flat.position_ids, flat.segments)[0]
        for number, text in enumerate(texts):
            theirs = alone(stock.eval())(text[None])[0]
            assert (ours[flat.span(number)] - theirs).norm() / theirs.norm() < 1e-5
    silent = {"phimoe": 2, "qwen2_moe": 1}.get(name)
    assert [note.split()[0] for note in packed.notes] == ([] if silent is None else [str(silent)])


def test_a_window_of_thousands_is_seen_with_a_segment_of_four_tokens(tmp_path: Path) -> None:
    source = write_config(tmp_path, {**CONFIGS["llama"], **_EXPERTS, "model_type": "phimoe", "sliding_window": 3000})
    packed = load_model(
        source, init="random", seed=0, dtype=torch.float32, kernels="auto", device="cpu", vocab_at_least=VOCABULARY
    )
    assert "3,000 tokens" in packed.notes[0]


def chunks(**options: object) -> object:
    return create_chunked_causal_mask(**options)


def prefix(**options: object) -> object:
    return create_causal_mask(**options, or_mask_function=lambda *places: places[3] < 2)


def nothing(**_: object) -> object:
    return None


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (chunks, "not causality and a window"),
        (prefix, "not causality and a window"),
        (nothing, "makes its mask by itself"),
    ],
)
def test_a_mask_that_packing_would_lose_is_refused_with_its_layer(
    mask: object, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_config(tmp_path, {**CONFIGS["llama"], "attention_chunk_size": 3})
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", mask)
    with pytest.raises(UserError, match=rf"layers\.0\.self_attn \(LlamaAttention\).*{words}"):
        load_model(source, init="random", seed=0, dtype=torch.float32, kernels="auto", device="cpu", vocab_at_least=9)


def test_a_layer_that_asks_for_another_window_than_its_mask_has_is_refused(tmp_path: Path) -> None:
    packed = packed_model("gemma3", tmp_path)
    packed.blocks[0].self_attn.sliding_window = 9
    with pytest.raises(UserError, match="asks for a window of 9 tokens, but its mask has 7"):
        learn_windows(packed.model, Segments.from_lengths([4]))


def test_looking_changes_nothing(tmp_path: Path) -> None:
    packed = packed_model("qwen3_5", tmp_path)
    before = packed.model.config._attn_implementation
    learn_windows(packed.model, Segments.from_lengths([4]))
    assert packed.model.config._attn_implementation == before == "packed_reference"
    assert "packed_recorded" not in json.dumps(packed.model.config.to_dict())
