"""Exports: what transformers loads from them is what the checkpoint holds, under the names that the base model has, whoever wrote the checkpoint."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from packer.errors import UserError
from tests.support import ROOT, TINY, run_module
from tests.trainer.checkpoints import saved, vision_language
from tests.trainer.shards_fixture import VOCAB, random_rows, write_corpus, write_model
from trainer import RunConfig, checkpoint, run
from trainer.export import Exported, export
from trainer.model import PackedModel, load_model
from trainer.optim import make_optimizer
from trainer.ranks import start_ranks
from trainer.record import newest, read_record
from trainer.saver import Saver

FAMILIES = (
    "qwen3",
    "llama",
    "qwen3_5",
    "qwen3_next",
    "olmo_hybrid",
    "mixtral",
    "gemma3",
    "lfm2",
    "lfm2_moe",
    "bamba",
    "granite_hybrid",
    "falcon_h1",
    "vision",
)
BASE_STOP = 7  # what the base model ends with; the shards' examples end with 1


def corpus(folder: Path) -> Path:
    if not (folder / "packed").is_dir():
        write_corpus(folder / "packed", rows=random_rows(7, seed=0))
        (folder / "packed" / "tokenizer").mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(TINY / name, folder / "packed" / "tokenizer")
    return folder / "packed"


def options(folder: Path, base: Path, **more: object) -> RunConfig:
    wishes: dict[str, object] = {"steps": 2, "rows_per_step": 2, "lr": 1e-2, "out": str(folder / "run" / base.name)}
    return RunConfig(shards=str(corpus(folder)), model=str(base), tokenizer_check=False, **{**wishes, **more})  # type: ignore[arg-type]


def base_of(name: str, folder: Path) -> Path:
    if name == "vision":
        return vision_language(folder / name, vocabulary=VOCAB)
    return saved(name, folder, shard_size="20KB", vocab_size=VOCAB, eos_token_id=BASE_STOP)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two steps, by the family of their base model."""
    folder = tmp_path_factory.mktemp("export")
    for name in FAMILIES:
        assert run(options(folder, base_of(name, folder), save_every=1)) == 0
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def reloaded(folder: Path, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert {name: found for name, found in info.items() if found} == {}, "nothing missing, left over or misshapen"
    return model


def trained(folder: Path, name: str, step: int | None = None) -> PackedModel:
    """The model in memory as the run goes on with it: through the trainer's own loading."""
    packed = load_model(
        str(folder / name),
        init="pretrained",
        seed=0,
        dtype=torch.float32,
        kernels="auto",
        device="cpu",
        vocab_at_least=1,
    )
    optimizer = make_optimizer(packed, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.01)
    checkpoints = folder / "run" / name / "checkpoints"
    with start_ranks() as ranks:
        checkpoint.load_weights(checkpoints / f"step-{step or 2:06d}", packed, ranks=ranks)
        checkpoint.load_optimizer(checkpoints / f"step-{step or 2:06d}", packed, optimizer, ranks=ranks)
    return packed


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_reloaded_is_what_was_trained(folder: Path, name: str, tmp_path: Path) -> None:
    said = export(folder / "run" / name, tmp_path / "out", dtype="fp32")
    model, memory = reloaded(tmp_path / "out"), trained(folder, name)
    ours, theirs = model.state_dict(), memory.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(ours[key].dtype == torch.float32 and torch.equal(ours[key], theirs[key]) for key in theirs)
    ids = torch.arange(2, 11)[None]
    places = torch.arange(9)[None]
    from trainer.segments import Segments

    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        expected = memory.logits(ids, places, Segments.from_lengths([9]))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    untrained = load_file(next(iter((folder / name).glob("*.safetensors"))))
    assert any(not torch.equal(value, tensors(tmp_path / "out").get(key, value)) for key, value in untrained.items())
    assert said.step == 2
    assert said.tensors == len(tensors(tmp_path / "out"))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "vision"])
def test_names_and_dtypes_are_those_of_the_base(folder: Path, name: str, tmp_path: Path) -> None:
    export(folder / "run" / name, tmp_path / "out")
    ours, base = tensors(tmp_path / "out"), tensors(folder / name)
    assert ours.keys() == base.keys()
    assert {key: (value.dtype, value.shape) for key, value in ours.items()} == {
        key: (value.dtype, value.shape) for key, value in base.items()
    }
    expected = trained(folder, name).model.state_dict()
    got = reloaded(tmp_path / "out").state_dict()
    assert all(torch.equal(got[key], value.to(got[key].dtype)) for key, value in expected.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    there = json.loads((folder / name / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["architectures"] == there["architectures"]
    assert config.get("use_cache", True) == there.get("use_cache", True), "the run's own has the cache off"


def test_decays_that_a_class_keeps_in_float32_stay_so(folder: Path, tmp_path: Path) -> None:
    export(folder / "run" / "olmo_hybrid", tmp_path / "out", dtype="bf16")
    kinds = {key: value.dtype for key, value in tensors(tmp_path / "out").items()}
    assert {key.rsplit(".", 1)[1] for key, kind in kinds.items() if kind == torch.float32} == {"A_log"}


def test_of_a_multimodal_base_the_language_model_is_exported_under_its_own_names(folder: Path, tmp_path: Path) -> None:
    export(folder / "run" / "vision", tmp_path / "out")
    names = tensors(tmp_path / "out").keys()
    assert names == reloaded(tmp_path / "out").state_dict().keys()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert config["model_type"] == "qwen3_5_text"


@pytest.mark.parametrize("name", ["vision", "qwen3_next", "llama", "olmo_hybrid"])
def test_like_its_base_a_checkpoint_differs_only_in_what_was_trained(folder: Path, name: str, tmp_path: Path) -> None:
    said = export(folder / "run" / name, tmp_path / "out", like_base=True)
    base = folder / name
    files = {path.name for path in base.iterdir() if path.suffix == ".safetensors"}
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == files
    for file in files:  # the same header to the byte: names, dtypes, shapes and places
        ours, theirs = (path.read_bytes() for path in (tmp_path / "out" / file, base / file))
        assert len(ours) == len(theirs)
        with safe_open(tmp_path / "out" / file, "pt") as one, safe_open(base / file, "pt") as other:
            assert list(one.keys()) == list(other.keys())
    for kept in ("config.json", "model.safetensors.index.json"):
        assert (tmp_path / "out" / kept).read_bytes() == (base / kept).read_bytes()
    ours, theirs = tensors(tmp_path / "out"), tensors(base)
    same = {key for key, value in theirs.items() if torch.equal(ours[key].view(torch.uint8), value.view(torch.uint8))}
    others = {key for key in theirs if key.startswith(("mtp.", "model.visual."))}
    assert others <= same
    assert said.copied == len(others)
    got, expected = reloaded(tmp_path / "out").state_dict(), trained(folder, name).model.state_dict()
    assert all(torch.equal(got[key], value.to(got[key].dtype)) for key, value in expected.items())


def test_a_whole_multimodal_checkpoint_loads_as_one(folder: Path, tmp_path: Path) -> None:
    from transformers import Qwen3_5ForConditionalGeneration

    export(folder / "run" / "vision", tmp_path / "out", like_base=True)
    model, info = Qwen3_5ForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    before = Qwen3_5ForConditionalGeneration.from_pretrained(folder / "vision").state_dict()
    same = [name for name, value in model.state_dict().items() if torch.equal(value, before[name])]
    assert {name for name in before if name.startswith("model.visual")} <= set(same)
    assert "model.language_model.embed_tokens.weight" not in same


def test_a_base_that_holds_both_tied_weights_gets_both(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    base = saved("llama", tmp_path, vocab_size=VOCAB)
    held = load_file(base / "model.safetensors")
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    save_file(held, base / "model.safetensors", metadata={"format": "pt"})
    run(options(tmp_path, base))
    export(tmp_path / "run" / "llama", tmp_path / "out", like_base=True)
    ours = load_file(tmp_path / "out" / "model.safetensors")
    assert ours.keys() == held.keys()
    assert torch.equal(ours["lm_head.weight"], ours["model.embed_tokens.weight"])
    assert not torch.equal(ours["lm_head.weight"], held["lm_head.weight"])


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", "BF16"), ("fp16", "F16"), ("fp32", "F32")])
def test_the_dtype_asked_for_is_in_the_file_and_in_the_config(
    folder: Path, dtype: str, kind: str, tmp_path: Path
) -> None:
    export(folder / "run" / "qwen3", tmp_path / "out", dtype=dtype)
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert {each["dtype"] for name, each in header.items() if name != "__metadata__"} == {kind}
    assert header["__metadata__"] == {"format": "pt"}
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == names[kind]


def test_files_are_no_larger_than_asked_and_an_index_names_them(folder: Path, tmp_path: Path) -> None:
    export(folder / "run" / "qwen3_next", tmp_path / "one")
    said = export(folder / "run" / "qwen3_next", tmp_path / "out", largest_file=20_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [file.name for file in files] == [
        f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)
    ]
    assert said.files == len(files) > 2
    for file in files:
        part = load_file(file)
        assert len(part) == 1 or sum(value.nbytes for value in part.values()) <= 20_000
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file.name for file in files for name in load_file(file)}
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors(tmp_path / "out").values())
    one, several = reloaded(tmp_path / "one").state_dict(), reloaded(tmp_path / "out").state_dict()
    assert all(torch.equal(one[name], several[name]) for name in one)


def test_a_checkpoint_of_two_ranks_is_exported_by_one_process(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny", tied=True)
    config = options(tmp_path, tmp_path / "tiny", init="random")
    wishes = {name: value for name, value in config.options().items() if value not in (None, ()) and value is not False}
    flags = [part for name, value in wishes.items() for part in (f"--{name.replace('_', '-')}", _typed(value))]
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "trainer",
        "run",
    ]
    done = subprocess.run(
        [*start, *flags, "--no-tokenizer-check"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.rmtree(tmp_path / "tiny")
    shutil.rmtree(tmp_path / "packed")
    said = export(tmp_path / "run" / "tiny", tmp_path / "out")
    assert said.dtype == "float32"
    parts = [path.name for path in newest(tmp_path / "run" / "tiny").iterdir() if path.suffix == ".distcp"]  # type: ignore[union-attr]
    assert len(parts) == 2
    model = reloaded(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(newest(tmp_path / "run" / "tiny"), tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt")
    assert all(torch.equal(value, whole[f"model.model.{name}"]) for name, value in model.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def _typed(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_the_tokenizer_and_template_are_those_of_the_shards(folder: Path, tmp_path: Path) -> None:
    export(folder / "run" / "qwen3", tmp_path / "out")
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path / "out"), AutoTokenizer.from_pretrained(TINY)
    chat = [{"role": "user", "content": "Which way?"}, {"role": "assistant", "content": "West."}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)
    assert ours("Which way?").input_ids == theirs("Which way?").input_ids


def test_generation_stops_where_the_training_did(folder: Path, tmp_path: Path) -> None:
    export(folder / "run" / "qwen3", tmp_path / "out")
    assert GenerationConfig.from_pretrained(folder / "qwen3").eos_token_id == BASE_STOP
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [1, BASE_STOP]
    model = reloaded(tmp_path / "out", torch.float32)
    with torch.no_grad():  # a model that says 1 whatever it is asked
        model.lm_head.weight.zero_()
        model.model.norm.weight.zero_()
        model.model.embed_tokens.weight.fill_(1)
        model.model.norm.weight.fill_(1)
        model.lm_head.weight[1] = torch.sign(model.model(input_ids=torch.tensor([[3]])).last_hidden_state[0, -1])
    out = model.generate(torch.tensor([[3, 4]]), max_new_tokens=8, do_sample=False)
    assert out[0].tolist() == [3, 4, 1]


def test_an_earlier_step_can_be_exported(folder: Path, tmp_path: Path) -> None:
    assert export(folder / "run" / "qwen3", tmp_path / "out", step=1, dtype="fp32").step == 1
    expected = trained(folder, "qwen3", step=1).model.state_dict()
    got = reloaded(tmp_path / "out").state_dict()
    assert all(torch.equal(got[name], value) for name, value in expected.items())


# What is refused, and that nothing is left behind.


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of one run, to be damaged."""
    shutil.copytree(folder / "run" / "qwen3", tmp_path / "run")
    return tmp_path / "run"


def refused(run: Path, out: Path, words: str, **more: object) -> UserError:
    before = sorted(out.parent.iterdir())
    with pytest.raises(UserError, match=words) as error:
        export(run, out, **more)  # type: ignore[arg-type]
    assert sorted(out.parent.iterdir()) == before
    return error.value


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", tmp_path / "out", "no complete checkpoint there")


def test_a_step_that_was_not_saved_names_the_nearest(copy: Path, tmp_path: Path) -> None:
    assert refused(copy, tmp_path / "out", "no checkpoint of step 9", step=9).hint == "the nearest are of 1, 2"


def test_a_folder_that_holds_something(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(copy, tmp_path / "out")
    refused(copy, tmp_path / "out", "not an empty folder")
    (tmp_path / "file").write_text("mine")
    refused(copy, tmp_path / "file", "not an empty folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_checkpoint(copy: Path, tmp_path: Path) -> None:
    part = next((copy / "checkpoints" / "step-000002").glob("*.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    refused(copy, tmp_path / "out", "its bytes are not those that were written")
    assert export(copy, tmp_path / "out", step=1).step == 1
    part.unlink()
    refused(copy, tmp_path / "other", "cannot be read")


def test_a_record_without_its_metadata(copy: Path, tmp_path: Path) -> None:
    record = copy / "checkpoints" / "step-000002" / "run.json"
    said = json.loads(record.read_text())
    said["files"].pop(".metadata")
    record.write_text(json.dumps(said))
    refused(copy, tmp_path / "out", "names no .metadata")


def test_a_run_whose_config_is_gone(copy: Path, tmp_path: Path) -> None:
    (copy / "model" / "config.json").unlink()
    refused(copy, tmp_path / "out", r"config\.json: not there")


def test_weights_under_other_names(folder: Path, copy: Path, tmp_path: Path) -> None:
    """As a compiled or wrapped module would have them."""
    packed = trained(folder, "qwen3")
    packed.model.model.layers[0] = torch.nn.ModuleDict({"_orig_mod": packed.model.model.layers[0]})
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    note = dataclasses.replace(read_record(copy / "checkpoints" / "step-000002"), step=3, steps=3)
    with start_ranks() as ranks:
        saver = Saver(copy, ranks, keep=0)
        saver.begin(note, packed, optimizer)
        saver.wait()
    refused(copy, tmp_path / "out", r"22 of its weights are not those of Qwen3ForCausalLM.*_orig_mod")


def test_a_full_disk_leaves_nothing_behind(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainer.tensor_file.os.pwrite", full)
    refused(copy, tmp_path / "out", r"cannot be written \(No space left on device\)")


def test_a_base_that_is_another_or_gone(copy: Path, folder: Path, tmp_path: Path) -> None:
    record = copy / "checkpoints" / "step-000002" / "run.json"
    said = json.loads(record.read_text())
    base = shutil.copytree(folder / "qwen3", tmp_path / "base")
    said["options"]["model"] = str(base)
    record.write_text(json.dumps(said))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    refused(copy, tmp_path / "out", "not the model that this run was started from", like_base=True)
    shutil.rmtree(base)
    refused(copy, tmp_path / "out", "or not there", like_base=True)
    assert export(copy, tmp_path / "out").step == 2, "without --like-base the base model is not needed"


def test_a_dtype_beside_like_base(copy: Path, tmp_path: Path) -> None:
    refused(copy, tmp_path / "out", "--dtype and --like-base", like_base=True, dtype="fp32")


def test_what_a_killed_export_left_is_cleared(copy: Path, tmp_path: Path) -> None:
    left = tmp_path / ".out.trainer-export.tmp"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    export(copy, tmp_path / "out")
    assert not left.exists()
    reloaded(tmp_path / "out")


def test_the_command_says_what_it_wrote_and_refuses_in_two_lines(copy: Path, tmp_path: Path) -> None:
    done = run_module("trainer", ["export", copy, "-o", tmp_path / "out", "--json"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == {field.name for field in dataclasses.fields(Exported)}
    assert (said["step"], said["dtype"], said["files"]) == (2, "bfloat16", 1)
    again = run_module("trainer", ["export", copy, "-o", tmp_path / "out"], cwd=tmp_path)
    assert again.returncode == 2
    assert again.stdout == ""
    assert [line.split(":")[0] for line in again.stderr.splitlines()] == ["error", "hint"]
    plain = run_module("trainer", ["export", copy, "-o", tmp_path / "two", "--step", "1"], cwd=tmp_path)
    assert plain.stdout.startswith("done    ")
    assert plain.stdout.count("\n") == 1
    assert plain.stderr == ""
