"""Which models are taken, which are refused and in what words, and that loading keeps weights as they are."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from packer.errors import UserError
from tests.isolation import pack
from tests.trainer.tiny_models import CONFIGS, VOCABULARY, examples, packed_model, write_config
from trainer.model import Init, PackedModel, load_model, plan_model
from trainer.refuse import decoder_blocks

LLAMA = CONFIGS["llama"]
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}
_BAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]}
_MAMBA2 = {"num_heads": 8, "head_dim": 8}


def load(source: str, init: Init = "random", vocab_at_least: int = VOCABULARY) -> PackedModel:
    return load_model(
        source,
        init=init,
        seed=0,
        dtype=torch.float32,
        kernels="auto",
        device="cpu",
        vocab_at_least=vocab_at_least,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "jamba"}, r"model\.layers\.0\.mamba \(JambaMambaMixer\) cannot keep segments apart"),
        ({"model_type": "mamba"}, r"backbone\.layers\.0\.mixer \(MambaMixer\) cannot keep segments apart"),
        ({"model_type": "mamba2", **_MAMBA2}, r"backbone\.layers\.0\.mixer \(Mamba2Mixer\) cannot keep segments apart"),
        ({"model_type": "falcon_mamba"}, r"backbone\.layers\.0\.mixer \(FalconMambaMixer\)"),
        ({"model_type": "rwkv"}, r"rwkv\.blocks\.0\.attention \(RwkvSelfAttention\) cannot keep segments apart"),
        ({"model_type": "nemotron_h"}, "layer 1 of nemotron_h is of type 'moe'"),
        ({"model_type": "lfm3"}, r"model\.layers\.0\.conv\.conv \(Conv1d\) cannot keep segments apart"),
        (
            {"model_type": "bamba", **_BAMBA, "hidden_act": "gelu"},
            "activation 'gelu': the short convolution knows silu",
        ),
        ({"model_type": "recurrent_gemma"}, r"conv_1d \(Conv1d\).*not told where segments end"),
        ({"model_type": "minimax"}, "MiniMaxLightningAttention.*attention interface"),
        ({"model_type": "phi3", "rope_parameters": _LONGROPE}, "RoPE of type longrope"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "RoPE of type dynamic"),
        ({"model_type": "gpt_oss"}, "attention sinks"),
        ({"model_type": "gemma2"}, "attn_logit_softcapping = 50"),
        ({"model_type": "llama4_text"}, "'chunked_attention'"),
        ({"attention_dropout": 0.1}, r"attention_dropout = 0\.1"),
        ({"model_type": "phi"}, "not a plain matrix"),
        ({"model_type": "stablelm"}, "was called without `segments`"),
        ({"model_type": "hyperclovax", "logits_scaling": 4.0}, "more between hidden states and logits"),
    ],
    ids=lambda value: value.get("model_type", "llama") if isinstance(value, dict) else "",
)
def test_models_that_cannot_keep_segments_apart_are_refused_by_name(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    source = write_config(tmp_path, {**LLAMA, **changes})
    with pytest.raises(UserError, match=words):
        load(source)


def test_kernels_are_listed_by_kind_of_layer_with_a_reason(tmp_path: Path) -> None:
    layers = packed_model("qwen3_5", tmp_path).layers
    assert [choice.layer for choice in layers] == ["attention", "delta", "conv"]
    assert all(choice.kernel == "reference" and choice.reason for choice in layers)
    assert [choice.layer for choice in packed_model("llama", tmp_path).layers] == ["attention"]


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        load(str(tmp_path))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load(str(tmp_path / "nowhere"))


def test_a_config_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        load(str(tmp_path))


def test_an_unknown_model_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read.*no_such_model"):
        load(write_config(tmp_path, {"model_type": "no_such_model"}))


def test_a_model_that_is_no_language_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be built as a causal language model"):
        load(write_config(tmp_path, {"model_type": "vit"}))


def test_no_weights_names_the_option_for_random_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights") as error:
        load(write_config(tmp_path, LLAMA), init="pretrained")
    assert "--init random" in error.value.hint


def test_a_token_id_past_the_embedding(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"token id {VOCABULARY}, past the {VOCABULARY} rows"):
        load(write_config(tmp_path, LLAMA), vocab_at_least=VOCABULARY + 1)


def test_random_weights_follow_from_the_seed_and_leave_the_generator_alone(tmp_path: Path) -> None:
    source = write_config(tmp_path, LLAMA)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = load(source)
    assert torch.equal(torch.rand(1), expected)
    again = load(source)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", ["qwen3_5", "llama"])
def test_saved_weights_come_back_and_tied_ones_stay_tied(name: str, tmp_path: Path) -> None:
    packed = packed_model(name, tmp_path)
    packed.model.save_pretrained(tmp_path / "saved")
    back = load(str(tmp_path / "saved"), init="pretrained")
    assert back.unused_weights == ()
    assert all(torch.equal(value, packed.state_dict()[key]) for key, value in back.state_dict().items())
    assert (back.head is back.model.get_input_embeddings().weight) == (name == "llama")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert "Segmented" not in "".join(type(module).__name__ for module in stock.modules())


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    packed = packed_model("qwen3", tmp_path)
    weights = dict(packed.model.state_dict())
    weights.pop("model.norm.weight")
    packed.model.save_pretrained(tmp_path / "saved", state_dict=weights)
    with pytest.raises(UserError, match=r"lacks 1 weights.*model\.norm\.weight"):
        load(str(tmp_path / "saved"), init="pretrained")


def test_the_loss_is_the_library_s_own_on_one_segment(tmp_path: Path) -> None:
    for name in ("gemma3", "qwen3_next"):
        packed = packed_model(name, tmp_path)
        flat = pack(examples([30]))
        ours = packed(flat.input_ids, flat.position_ids, flat.segments, flat.positions, flat.targets, flat.count)
        config = json.loads((tmp_path / name / "config.json").read_text())
        logits = packed.model(
            input_ids=flat.input_ids, position_ids=flat.position_ids, segments=flat.segments, use_cache=False
        ).logits[0]
        assert config["vocab_size"] == logits.shape[-1]
        theirs = torch.nn.functional.cross_entropy(logits[:-1], flat.input_ids[0, 1:], reduction="sum")
        torch.testing.assert_close(ours, theirs)


def test_there_are_as_many_blocks_as_decoder_layers(tmp_path: Path) -> None:
    for name, config in CONFIGS.items():
        packed, _ = plan_model(
            write_config(tmp_path / name, config),
            init="random",
            seed=0,
            dtype=torch.float32,
            kernels="auto",
            device="cpu",
            vocab_at_least=VOCABULARY,
        )
        assert len(packed.blocks) == config["num_hidden_layers"]


def saved_llama(folder: Path) -> Path:
    packed_model("llama", folder).model.save_pretrained(folder / "saved")
    return folder / "saved"


@pytest.mark.parametrize("kept", [0, 4, 100, 3000])
def test_weights_cut_short_are_told(kept: int, tmp_path: Path) -> None:
    saved = saved_llama(tmp_path)
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"the weights of .* cannot be read"):
        load(str(saved), init="pretrained")


def test_weights_of_other_shapes_are_told_with_both(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = saved_llama(tmp_path)
    config = json.loads((saved / "config.json").read_text())
    write_config(saved, {**config, "intermediate_size": 40})
    with pytest.raises(
        UserError, match=r"weights have not the shape.*\[\d+, \d+\] in the file, \[.*40.*\] by the config"
    ):
        load(str(saved), init="pretrained")
    assert "MISMATCH" not in "".join(capfd.readouterr())


def test_weights_that_are_not_numbers_are_told(tmp_path: Path) -> None:
    packed = packed_model("llama", tmp_path)
    with torch.no_grad():
        packed.model.model.norm.weight[0] = float("nan")
    packed.model.save_pretrained(tmp_path / "saved")
    with pytest.raises(UserError, match="not finite"):
        load(str(tmp_path / "saved"), init="pretrained")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "dots1", "n_shared_experts": None}, "cannot be built"),
        ({"model_type": "reformer", "is_decoder": False}, "cannot be built as a causal language model: If you want"),
        ({"model_type": "dbrx"}, "cannot be built"),
        ({"model_type": "falcon"}, "attention that does not go through the library's attention interface"),
        ({"model_type": "git"}, "attention that does not go through the library's attention interface"),
        ({**LLAMA, "hidden_act": "no_such"}, "cannot be"),
        ({**LLAMA, "num_attention_heads": 0}, "cannot be"),
        ({**LLAMA, "hidden_size": "wide"}, "cannot be"),
        ({**LLAMA, "rope_parameters": {"rope_type": "none_such"}}, "RoPE|cannot be"),
    ],
)
def test_a_config_that_no_class_was_written_for_is_two_lines(
    config: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        load(write_config(tmp_path, {"vocab_size": VOCABULARY, **config}))


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise ImportError("TimmWrapperModel requires the timm library")

    monkeypatch.setattr("trainer.library.AutoModelForCausalLM.from_config", lacking)
    with pytest.raises(UserError, match="requires the timm library") as error:
        load(write_config(tmp_path, LLAMA))
    assert "install" in error.value.hint


def test_decoder_layers_are_found_however_deep_they_lie(tmp_path: Path) -> None:
    config = {"model_type": "opt", "vocab_size": VOCABULARY, "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 3}
    config |= {
        "num_attention_heads": 2,
        "word_embed_proj_dim": 32,
        "attention_dropout": 0.0,
        "max_position_embeddings": 64,
    }
    assert len(load(write_config(tmp_path, config)).blocks) == 3


def test_a_model_without_one_list_of_layers_is_refused_by_name(tmp_path: Path) -> None:
    model = packed_model("llama", tmp_path).model
    model.model.layers = model.model.layers[0]
    with pytest.raises(UserError, match="LlamaForCausalLM has no one list of its 2 decoder layers"):
        decoder_blocks(model)
