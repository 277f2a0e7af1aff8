"""The shards' tokenizer is the model's, and a run goes on with the model it began with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from packer.errors import UserError
from tests.support import TINY
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig, run
from trainer.prepare import prepare
from trainer.same_tokenizer import check_tokenizer
from trainer.source import config_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards with a tokenizer beside them, and a model with the same."""
    write_corpus(tmp_path / "packed", rows=random_rows(8, seed=0))
    write_model(tmp_path / "tiny")
    (tmp_path / "packed" / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        for place in (tmp_path / "packed" / "tokenizer", tmp_path / "tiny"):
            shutil.copyfile(TINY / name, place / name)
    return tmp_path


def config(folder: Path, **more: object) -> RunConfig:
    chosen = {
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": 2,
        "rows_per_step": 2,
        "out": str(folder / "run"),
    }
    return RunConfig(shards=str(folder / "packed"), **{**chosen, **more})  # type: ignore[arg-type]


def edit(path: Path, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def swap_two_words(document: dict) -> None:  # type: ignore[type-arg]
    vocabulary = document["model"]["vocab"]
    one, other = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (swap_two_words, "model"),
        (lambda document: document["model"]["merges"].pop(), "model"),
        (lambda document: document["added_tokens"].pop(), "added_tokens"),
        (lambda document: document.update(normalizer={"type": "Lowercase"}), "normalizer"),
        (lambda document: document.update(pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer"),
    ],
)
def test_a_model_whose_ids_mean_other_words_is_refused(
    folder: Path,
    change: Callable[[dict], None],
    part: str,
    capsys: pytest.CaptureFixture[str],  # type: ignore[type-arg]
) -> None:
    edit(folder / "tiny" / "tokenizer.json", change)
    with pytest.raises(UserError, match=rf"not the tokenizer of .*packed \({part} differs\)") as caught:
        run(config(folder))
    assert "--no-tokenizer-check" in caught.value.hint
    assert run(config(folder, tokenizer_check=False)) == 0
    assert "--no-tokenizer-check: the model's tokenizer was not held against" in capsys.readouterr().out


def test_the_same_tokenizer_in_another_library_s_spelling_is_the_same(folder: Path) -> None:
    def rewrite(document: dict) -> None:  # type: ignore[type-arg]
        merges = document["model"]["merges"]
        document["model"]["merges"] = [m.split(" ") if isinstance(m, str) else " ".join(m) for m in merges]
        document["padding"] = {"strategy": "BatchLongest", "pad_id": 0}
        document["version"] = "2.0"

    edit(folder / "tiny" / "tokenizer.json", rewrite)
    assert check_tokenizer(prepare(config(folder)), fetch=False) == []


def test_what_cannot_be_compared_is_said(folder: Path) -> None:
    (folder / "tiny" / "tokenizer.json").unlink()
    assert "tiny has no tokenizer.json" in check_tokenizer(prepare(config(folder)), fetch=False)[0][1]


def test_a_tokenizer_that_is_not_fetched_yet_is_not_said_to_be_absent(folder: Path) -> None:
    said = check_tokenizer(prepare(config(folder, model="nobody/nothing-here")), fetch=False)
    assert said == [
        ("note", "the tokenizer of nobody/nothing-here is not in the hub's cache: the run fetches and compares it")
    ]


def test_a_chat_template_that_changed_by_one_character_is_refused(folder: Path) -> None:
    template = folder / "tiny" / "chat_template.jinja"
    template.write_text(template.read_text().replace("You may call", "You may cull"))
    with pytest.raises(UserError, match=r"its chat template is not the one that .*packed was rendered with") as caught:
        run(config(folder))
    assert "--no-tokenizer-check" in caught.value.hint
    assert check_tokenizer(prepare(config(folder, tokenizer_check=False)), fetch=False)[0][0] == "note"


def test_a_chat_template_that_was_given_to_the_build_is_only_said(folder: Path) -> None:
    (folder / "packed" / "tokenizer" / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "packed" / "build-log.json").write_text(json.dumps({"chat_template_path": "/somewhere/t.jinja"}))
    assert "another chat template" in check_tokenizer(prepare(config(folder)), fetch=False)[0][1]


def test_a_chat_template_is_the_same_wherever_it_is_kept_and_however_its_lines_end(folder: Path) -> None:
    template = folder / "tiny" / "chat_template.jinja"
    text = template.read_text()
    template.unlink()

    def keep(document: dict) -> None:  # type: ignore[type-arg]
        document["chat_template"] = text.replace("\n", "\r\n").rstrip()

    edit(folder / "tiny" / "tokenizer_config.json", keep)
    assert check_tokenizer(prepare(config(folder)), fetch=False) == []
    edit(folder / "tiny" / "tokenizer_config.json", lambda document: document.update(chat_template=text + "x"))
    with pytest.raises(UserError, match="chat template"):
        check_tokenizer(prepare(config(folder)), fetch=False)


def test_a_run_does_not_go_on_with_another_model_of_the_same_name_or_an_edited_config(folder: Path) -> None:
    assert run(config(folder, save_every=1)) == 0
    shutil.rmtree(folder / "run" / "checkpoints" / "step-000002")
    edit(folder / "tiny" / "config.json", lambda document: document.update(rms_norm_eps=1e-5))
    with pytest.raises(UserError, match=r"saved by another run \(the model's config\.json"):
        run(config(folder))
    edit(
        folder / "tiny" / "config.json",
        lambda document: document.update(rms_norm_eps=1e-6, use_cache=False, dtype="bfloat16"),
    )
    assert run(config(folder)) == 0


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    one = {"a": 1, "b": {"c": 2, "transformers_version": "5"}}
    assert config_digest(one) == config_digest({"b": {"c": 2}, "a": 1}) != config_digest({"b": {"c": 3}, "a": 1})
