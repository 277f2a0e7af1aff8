"""Weights as they come into a model: equal to the library's own loading, bit for bit, alone and in three ranks, whatever the names in the files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer import loading_script
from tests.trainer.checkpoints import FAMILIES, saved, vision_language
from tests.trainer.shards_fixture import VOCAB, random_rows, write_corpus
from tests.trainer.tiny_models import VOCABULARY, write_config
from trainer import RunConfig, run
from trainer.dry_run import foresee
from trainer.model import Init, PackedModel, load_model
from trainer.prepare import prepare
from trainer.record import newest
from trainer.saved import SavedModel

RANKS = 3  # divides neither the vocabulary (61) nor the experts (4): parts are uneven, and one rank has no expert
PRETRAINED = ("llama", "qwen3_next", "olmo_hybrid", loading_script.REPLICATED, "vision")
RANDOM = ("llama-config", "qwen3_next-config")


def load(source: Path, init: Init = "pretrained", seed: int = 0) -> PackedModel:
    return load_model(
        str(source),
        init=init,
        seed=seed,
        dtype=torch.float32,
        kernels="auto",
        device="cpu",
        vocab_at_least=VOCABULARY,
    )


def stock(source: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return model


def drawn_by_the_library(source: Path, seed: int) -> PreTrainedModel:
    """The library's class given memory and initialised by its own method, all at once."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(source), dtype=torch.float32
        )
    model.to_empty(device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.initialize_weights()
    model.tie_weights()
    return model


def differing(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [
        name for name, value in theirs.items() if ours[name].dtype != value.dtype or not torch.equal(ours[name], value)
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_and_buffers_are_the_library_s_bit_for_bit(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path, shard_size="20KB")
    assert (source / "model.safetensors.index.json").is_file()
    ours, theirs = load(source), stock(source)
    assert differing(ours.model.state_dict(), theirs.state_dict()) == []
    assert differing(dict(ours.model.named_buffers()), dict(theirs.named_buffers())) == []
    assert ours.unused_weights == ()
    assert all(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_random_weights_are_those_of_the_library_s_own_initialisation(name: str, tmp_path: Path) -> None:
    source = Path(write_config(tmp_path, FAMILIES[name]))
    ours, theirs = load(source, "random", seed=3), drawn_by_the_library(source, 3)
    assert differing(ours.model.state_dict(), theirs.state_dict()) == []
    assert differing(dict(ours.model.named_buffers()), dict(theirs.named_buffers())) == []
    other = load(source, "random", seed=4)
    assert differing(other.model.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("tied", [False, True])
def test_the_language_model_is_taken_from_a_whole_multimodal_checkpoint(tied: bool, tmp_path: Path) -> None:
    source = vision_language(tmp_path / "whole", tied=tied)
    ours, theirs = load(source), stock(source)
    assert type(ours.model).__name__ == "Qwen3_5ForCausalLM"
    assert differing(ours.model.state_dict(), theirs.state_dict()) == []
    assert {name.split(".")[0] for name in ours.unused_weights} == {"mtp", "model"}
    assert all(name.startswith(("mtp.", "model.visual.")) for name in ours.unused_weights)
    assert (ours.head is ours.model.get_input_embeddings().weight) == tied


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, and beside each what three ranks made of it."""
    folder = tmp_path_factory.mktemp("loading")
    for name in PRETRAINED[:-1]:
        saved(name, folder, shard_size="20KB")
    vision_language(folder / "vision")
    wishes = [*(f"{name}=pretrained" for name in PRETRAINED), *(f"{name}=random" for name in RANDOM)]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    result = subprocess.run(
        [*start, "-m", "tests.trainer.loading_script", str(folder), *wishes],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", PRETRAINED)
def test_three_ranks_hold_what_the_library_loads(folder: Path, name: str) -> None:
    made, theirs = torch.load(folder / f"{name}-pretrained.pt"), stock(folder / name)
    assert differing(made["weights"], theirs.state_dict()) == []
    assert differing(made["buffers"], dict(theirs.named_buffers())) == []


@pytest.mark.parametrize("name", RANDOM)
def test_three_ranks_draw_what_one_draws(folder: Path, name: str) -> None:
    theirs = drawn_by_the_library(folder / name, loading_script.SEED)
    made = torch.load(folder / f"{name}-random.pt")
    assert differing(made["weights"], theirs.state_dict()) == []
    assert differing(made["buffers"], dict(theirs.named_buffers())) == []


def test_tied_weights_are_one_tensor_with_one_gradient_on_every_rank(folder: Path) -> None:
    for init in ("llama-pretrained", "llama-config-random"):
        made = torch.load(folder / f"{init}.pt")
        assert made["facts"]["tied"]
        assert made["facts"]["same storage"]
        after, head = made["after"], "lm_head.weight"
        assert torch.equal(after[head], after["model.embed_tokens.weight"])
        assert not torch.equal(after[head], made["weights"][head])
        assert head not in made["gradients"]
        assert made["facts"]["in the optimiser"] == len(made["gradients"])
    apart = torch.load(folder / "vision-pretrained.pt")
    assert not apart["facts"]["tied"]


def test_the_gradient_of_a_tied_weight_is_that_of_both_its_uses(folder: Path) -> None:
    made = torch.load(folder / "llama-pretrained.pt")
    model = stock(folder / "llama")
    for start, length in ((0, 3), (3, 5)):
        ids = (torch.arange(8)[None] % 5)[:, start : start + length]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        wanted = [1, 2] if start == 0 else [1, 2, 3, 4]
        torch.nn.functional.cross_entropy(logits, torch.tensor(wanted), reduction="sum").backward()
    expected = model.get_input_embeddings().weight.grad
    got = made["gradients"]["model.embed_tokens.weight"]
    torch.testing.assert_close(got, expected * RANKS, rtol=1e-4, atol=1e-5)  # every rank was given the same row


def test_parts_are_uneven_and_may_be_empty(folder: Path) -> None:
    rows = torch.load(folder / "qwen3_next-pretrained.pt")["facts"]["rows"]
    assert 21 in rows, "the first of three parts of 61"
    assert 2 in rows, "experts 0 and 1 of 4"
    assert 61 in torch.load(folder / f"{loading_script.REPLICATED}-pretrained.pt")["facts"]["rows"]


# What is wrong with a checkpoint is told before a tensor is read.


def rewritten(source: Path, **changes: torch.Tensor | None) -> Path:
    tensors = load_file(source / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return source


def test_an_expert_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = saved("qwen3_moe", tmp_path)
    rewritten(source, model__layers__1__mlp__experts__2__up_proj__weight=None)
    with pytest.raises(UserError, match=r"mlp\.experts\.gate_up_proj cannot be made"):
        load(source)
    both = {f"model__layers__1__mlp__experts__3__{name}_proj__weight": None for name in ("gate", "up")}
    source = rewritten(saved("qwen3_moe", tmp_path / "both"), **both)
    with pytest.raises(UserError, match=r"gate_up_proj: \[3, 32, 32\] in the file, \[4, 32, 32\] by the config"):
        load(source)


def test_both_of_two_tied_weights_may_be_there_where_they_are_equal(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    inside = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    rewritten(source, lm_head__weight=inside.clone())
    assert differing(load(source).model.state_dict(), stock(source).state_dict()) == []
    other = inside.clone()
    other[40, 3] += 1
    rewritten(source, lm_head__weight=other)
    with pytest.raises(UserError, match=r"ties .* to .*, but the two differ"):
        load(source)


def test_either_of_two_tied_weights_alone_is_enough(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    inside = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    rewritten(source, model__embed_tokens__weight=None, lm_head__weight=inside.clone())
    packed = load(source)
    assert torch.equal(packed.model.get_input_embeddings().weight, inside.float())
    assert packed.head is packed.model.get_input_embeddings().weight


def test_a_weight_that_is_not_a_number_is_told_by_name(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    value = load_file(source / "model.safetensors")[name]
    value[5, 7] = torch.inf
    rewritten(source, **{name.replace(".", "__"): value})
    with pytest.raises(UserError, match=rf"{name} has numbers that are not finite"):
        load(source)


def test_whole_numbers_and_small_floats_are_refused(tmp_path: Path) -> None:
    for number, kind in enumerate((torch.int8, torch.float8_e4m3fn)):
        source = saved("llama", tmp_path / str(number))
        rewritten(source, model__norm__weight=torch.ones(32).to(kind))
        with pytest.raises(UserError, match=r"model\.norm\.weight is stored as (I8|F8_E4M3)"):
            load(source)


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    config = json.loads((source / "config.json").read_text())
    write_config(source, {**config, "quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(UserError, match="quantized"):
        load(source)


def test_a_pickle_is_refused_with_the_way_out(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin") as error:
        load(source)
    assert "safetensors" in error.value.hint


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "../elsewhere.safetensors"}}, "is damaged"),
        ({"weight_map": {"a": "model-00009-of-00009.safetensors"}}, r"lacks model-00009-of-00009\.safetensors"),
        ({"weight_map": {}}, "is damaged"),
        ({"weight_map": ["a"]}, "is damaged"),
        ({"weight_map": {"a": 7}}, "is damaged"),
        ([], "is damaged"),
    ],
)
def test_an_index_that_leads_nowhere_is_told(index: object, words: str, tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=words):
        load(source)


def test_a_weight_that_the_library_renames_is_not_mistaken_for_another(tmp_path: Path) -> None:
    """Names of a backbone saved by itself, without "model." before them, are the model's too."""
    source = saved("qwen3", tmp_path)
    tensors = load_file(source / "model.safetensors")
    save_file(
        {name.removeprefix("model."): value for name, value in tensors.items()},
        source / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert differing(load(source).model.state_dict(), stock(source).state_dict()) == []


# The same in a whole run, where the model is sharded before it has weights.


def config_of(source: Path, folder: Path, **more: object) -> RunConfig:
    wishes: dict[str, object] = {"steps": 1, "rows_per_step": 1, "out": str(folder / "run"), **more}
    return RunConfig(shards=str(folder / "packed"), model=str(source), **wishes)  # type: ignore[arg-type]


def started(source: Path, folder: Path, **more: object) -> int:
    write_corpus(folder / "packed", rows=random_rows(4, seed=0))
    return run(config_of(source, folder, **more))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "stablelm"}, "was called without `segments`"),
        ({"model_type": "hyperclovax", "logits_scaling": 4.0}, "more between hidden states and logits"),
    ],
    ids=["stablelm", "hyperclovax"],
)
def test_a_sharded_model_is_tried_out_before_it_is_trained(
    config: dict[str, object], words: str, tmp_path: Path
) -> None:
    source = Path(write_config(tmp_path / "model", {**FAMILIES["llama"], "vocab_size": VOCAB, **config}))
    with pytest.raises(UserError, match=words):
        started(source, tmp_path, init="random")


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_a_sharded_model_that_computes_in_bfloat16_is_trained_and_keeps_float32_weights(
    name: str, tmp_path: Path
) -> None:
    source = saved(name, tmp_path, vocab_size=VOCAB)
    assert started(source, tmp_path, dtype="bf16", activation_checkpointing="selective") == 0
    kept = SavedModel(newest(tmp_path / "run"))  # type: ignore[arg-type]
    assert all(kept.read(key).dtype == torch.float32 for key in kept.shapes)


def test_a_run_on_an_incomplete_checkpoint_ends_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = rewritten(saved("llama", tmp_path, vocab_size=VOCAB), model__norm__weight=None)
    monkeypatch.setattr("trainer.tensor_file._read_into", lambda *_: pytest.fail("a tensor was read"))
    with pytest.raises(UserError, match=r"lacks 1 weights of its model, the first model\.norm\.weight"):
        started(source, tmp_path)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_a_run_that_goes_on_asks_neither_for_the_weights_it_began_with_nor_draws_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(name, tmp_path, vocab_size=VOCAB)
    wishes: dict[str, object] = {"steps": 3, "save_every": 2, "log_every": 1, "lr": 1e-2}
    assert started(source, tmp_path, **wishes) == 0
    whole = SavedModel(tmp_path / "run" / "checkpoints" / "step-000003")
    expected = {key: whole.read(key) for key in whole.shapes}
    shutil.rmtree(whole.checkpoint)
    for file in source.glob("*.safetensors"):
        file.unlink()
    seen = dict(foresee(prepare(config_of(source, tmp_path, **wishes)), world=1))
    assert "would go on after step 2 of 3" in seen["resume"]
    (tmp_path / "run" / "check.json").unlink()  # so that it is proved again, on the weights that it goes on with
    monkeypatch.setattr("trainer.tensor_file._read_into", lambda *_: pytest.fail("a tensor was read"))
    assert started(source, tmp_path, **wishes) == 0
    again = SavedModel(whole.checkpoint)
    assert again.shapes.keys() == expected.keys()
    assert all(torch.equal(again.read(key), value) for key, value in expected.items())
