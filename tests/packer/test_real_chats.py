"""1,000 real conversations, exactly right under the stock templates and with the genuine vocabularies of the Qwen family."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from packer.encoders import choose_encoder
from packer.render import Example, Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import load_tokenizer

TEMPLATES = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
QUICK = {("qwen3_8", "qwen3")}


def template_of(name: str) -> str:
    package = importlib.util.find_spec("trl")
    if package is None or package.origin is None:
        pytest.skip("the stock templates come with the dev extra (trl)")
    return (Path(package.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("template", "vocabulary"),
    [
        pytest.param(template, vocabulary, marks=() if (template, vocabulary) in QUICK else pytest.mark.full)
        for template in TEMPLATES
        for vocabulary in ("qwen3", "qwen3_6")
    ],
)
def test_every_real_row_is_exactly_right(
    template: str, vocabulary: str, real_rows: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(vocabulary)
    source = template_of(template)
    ours, theirs = load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)
    rows = [json.loads(line) for line in real_rows.read_text(encoding="utf-8").splitlines()]
    ours.use(choose_encoder("auto", ours.backend).encoder)
    renderer = Renderer(ours, ChatTemplate(source, special_tokens=ours.special_tokens), Policies())
    right = 0
    for row, example in zip(rows, renderer.examples(rows), strict=True):
        assert isinstance(example, Example), example
        wanted = theirs.apply_chat_template(row["messages"], chat_template=source, tokenize=True, return_dict=True)
        assert example.ids.tolist() == wanted["input_ids"]
        said = "".join(
            message["content"] + "<|im_end|>" for message in row["messages"] if message["role"] == "assistant"
        )
        assert theirs.decode(example.ids[example.loss_mask]) == said
        right += 1
    assert right == 1000
