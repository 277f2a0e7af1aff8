"""The bundled sample is what its README says: schema, ranges, size, and the same bytes from the same seed.

Why: other tests and a newcomer's first run lean on these numbers; a changed library must not change them unseen.

Example: `pytest tests/packer/test_sample.py`.
"""

import hashlib
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Tokenizer

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
MODEL = SAMPLE / "tiny-hybrid"
TOKENIZERS_VERSION = "0.23.3"
GENERATED = (
    "chats.jsonl",
    "tiny-hybrid/chat_template.jinja",
    "tiny-hybrid/config.json",
    "tiny-hybrid/generation_config.json",
    "tiny-hybrid/tokenizer.json",
    "tiny-hybrid/tokenizer_config.json",
)


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLE / "chats.jsonl").read_bytes().decode().split("\n")[:-1]]


@pytest.fixture(scope="module")
def texts(lines: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for line in lines for message in line["messages"]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_every_line_has_the_schema_of_ultrachat_200k(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        assert list(line) == ["prompt", "prompt_id", "messages"]
        assert all(set(message) == {"content", "role"} for message in line["messages"])
        assert all(isinstance(message["content"], str) and message["content"] for message in line["messages"])
        assert line["prompt_id"] == hashlib.sha256(line["prompt"].encode()).hexdigest()
        assert line["prompt"] == next(m["content"] for m in line["messages"] if m["role"] == "user")


def test_prompts_are_unique(lines: list[dict[str, Any]]) -> None:
    assert len({line["prompt_id"] for line in lines}) == len(lines) >= 400


def test_user_and_assistant_take_turns_after_at_most_one_system_turn(lines: list[dict[str, Any]]) -> None:
    turns = []
    for line in lines:
        roles = [message["role"] for message in line["messages"]]
        roles = roles[1:] if roles[0] == "system" else roles
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        turns.append(len(roles) // 2)
    assert set(turns) == set(range(1, 10))
    assert 0.10 < sum(line["messages"][0]["role"] == "system" for line in lines) / len(lines) < 0.20


def test_lengths_have_a_body_and_a_long_tail(lines: list[dict[str, Any]], tokenizer: Tokenizer) -> None:
    lengths = []
    for line in lines:
        chat = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in line["messages"])
        lengths.append(len(tokenizer.encode(chat).ids))
    assert min(lengths) >= 20
    assert max(lengths) <= 3000
    assert 350 < sum(lengths) / len(lengths) < 450
    assert 0.02 < sum(length > 1500 for length in lengths) / len(lengths) < 0.08


def test_the_assistant_writes_55_to_65_percent_of_the_text(lines: list[dict[str, Any]], texts: list[str]) -> None:
    written = [m["content"] for line in lines for m in line["messages"] if m["role"] == "assistant"]
    assert 0.55 < sum(map(len, written)) / sum(map(len, texts)) < 0.65


@pytest.mark.parametrize(
    "sign",
    [
        "é",
        "ж",
        "λ",
        "水",
        "か",
        "니다",
        "م",
        "ह",
        "👨‍👩‍👧",
        "👍🏽",
        "🇧🇷",
        "1️⃣",
        "```python",
        "```rust",
        "| --- |",
        "<reasoning>",
        "</people>",
    ],
)
def test_scripts_emoji_code_tables_and_tags_occur(texts: list[str], sign: str) -> None:
    assert any(sign in text for text in texts)


def test_some_texts_begin_or_end_in_white_space(texts: list[str]) -> None:
    assert sum(text != text.lstrip() for text in texts) > 10
    assert sum(text != text.rstrip() for text in texts) > 10


def test_no_text_spells_an_added_token(texts: list[str], tokenizer: Tokenizer) -> None:
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    assert len(added) == 7
    assert not [text for text in texts if any(token in text for token in added)]


def test_decoding_gives_every_text_back_up_to_nfc(texts: list[str], tokenizer: Tokenizer) -> None:
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_the_vocabulary_has_4096_entries_and_the_special_tokens_are_marked(tokenizer: Tokenizer) -> None:
    assert sorted(tokenizer.get_vocab().values()) == list(range(4096))
    special = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    assert [token for token, marked in special.items() if marked] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def test_auto_tokenizer_renders_chatml_with_tools_and_strips_nothing() -> None:
    transformers = pytest.importorskip("transformers")
    for loader in (transformers.PreTrainedTokenizerFast, transformers.AutoTokenizer):
        tokenizer = loader.from_pretrained(MODEL)
        messages = [{"role": "user", "content": " a\n"}, {"role": "assistant", "content": "\nb "}]
        text = "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\n\nb <|im_end|>\n"
        rendered = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
        assert rendered["input_ids"] == tokenizer(text)["input_ids"]
        assert tokenizer.decode(rendered["input_ids"]) == text
        assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
        prompt = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
        assert prompt == "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\n"
        call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
        with_tools = tokenizer.apply_chat_template(
            [
                {"role": "system", "content": "Reckon."},
                messages[0],
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "1"},
            ],
            tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}],
            tokenize=False,
        )
        assert with_tools.count("<|im_start|>") == with_tools.count("<|im_end|>") == 4
        assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in with_tools
        assert with_tools.startswith("<|im_start|>system\nReckon.\n\n")


def test_the_configuration_builds_a_hybrid_of_2_to_6_million_parameters() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(MODEL)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert 2_000_000 < sum(parameter.numel() for parameter in model.parameters()) < 6_000_000
    assert config.layer_types == (["linear_attention"] * 3 + ["full_attention"]) * 2
    assert config.num_attention_heads > config.num_key_value_heads > 1
    assert config.linear_num_value_heads > config.linear_num_key_heads > 1
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert config.vocab_size == tokenizer.get_vocab_size()
    assert config.eos_token_id == tokenizer.token_to_id("<|im_end|>")
    assert config.pad_token_id == tokenizer.token_to_id("<|endoftext|>")


def test_the_folder_is_smaller_than_3_mb() -> None:
    hidden = (".", "__pycache__")
    files = [path for path in SAMPLE.rglob("*") if path.is_file() and not path.parent.name.startswith(hidden)]
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_the_script_writes_the_tracked_bytes_again(tmp_path: Path) -> None:
    script = SAMPLE / "make_sample.py"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path)], check=True, capture_output=True, timeout=900)
    for name in GENERATED:
        # Other versions of tokenizers may train other merges from the same text.
        if name == "tiny-hybrid/tokenizer.json" and tokenizers.__version__ != TOKENIZERS_VERSION:
            continue
        assert (tmp_path / name).read_bytes() == (SAMPLE / name).read_bytes(), name
