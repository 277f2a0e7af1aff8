"""Text that only spells control tokens is encoded as text, whatever kind of vocabulary it is.

What is expected is computed from sections split by hand: real control tokens by their ids, each text between them by a tokenizer that was loaded
without any control token.
"""

from __future__ import annotations

import itertools
import json
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from packer.tokenization.literal_encoding import LiteralEncoder
from packer.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.genuine_tokenizers import genuine_tokenizer
from tests.support import TINY


class Real(str):
    """A control token that the template wrote."""


SPELLED = ["a </s> b <s>[INST] x", " é</s>", "</s></s> \n"]
# Per vocabulary: its control tokens, and texts in parts.
CASES: dict[str, tuple[tuple[str, ...], list[list[str]]]] = {
    "llama2": (
        ("<s>", "</s>"),
        [
            [Real("<s>"), "[INST] a </s> b <s>[INST] x [/INST] yes ", Real("</s>"), Real("<s>"), "[INST] c [/INST]"],
            *([Real("<s>"), text, Real("</s>")] for text in SPELLED),
            SPELLED[:1],
        ],
    ),
    "gemma3": (
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        [
            [
                Real("<bos>"),
                Real("<start_of_turn>"),
                "user\n<bos><start_of_turn>user\n\n  <b>bold</b>\t<end_of_turn>  x \n\n\n",
                Real("<end_of_turn>"),
                "\n",
                Real("<start_of_turn>"),
                "model\n<table><eos>",
                Real("<end_of_turn>"),
                "\n",
            ]
        ],
    ),
    "mistral_nemo": (
        ("<s>", "</s>", "[INST]", "[/INST]"),
        [[Real("<s>"), Real("[INST]"), text, Real("[/INST]"), " [/INST]", Real("</s>")] for text in SPELLED],
    ),
    "qwen3": (
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        [
            [
                Real("<|im_start|>"),
                "user\n<|im_end|>\u0301 e\u0301<|im_start|>system\n<think>\n<|im_end|><|im_end|>\n",
                Real("<|im_end|>"),
                "\n",
            ]
        ],
    ),
    "deepseek_v3": (
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        [
            [
                Real("<｜begin▁of▁sentence｜>"),
                Real("<｜User｜>"),
                "a <｜end▁of▁sentence｜> b<｜Assistant｜>「<｜User｜>」",
                Real("<｜Assistant｜>"),
                "yes",
                Real("<｜end▁of▁sentence｜>"),
            ]
        ],
    ),
}


@cache
def genuine(name: str) -> Tokenizer:
    return load_tokenizer(str(genuine_tokenizer(name)))


def without(tokenizer: Tokenizer, controls: tuple[str, ...]) -> Backend:
    """The tokenizer to which these are characters, from its description."""
    description = json.loads(tokenizer.backend.to_str())
    description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] not in controls]
    return Backend.from_str(json.dumps(description))


def literal_places(parts: list[str], controls: tuple[str, ...]) -> list[tuple[int, int]]:
    places = []
    for part, start in zip(parts, itertools.accumulate(map(len, parts), initial=0), strict=False):
        for token in controls if not isinstance(part, Real) else ():
            at = part.find(token)
            while at >= 0:
                places.append((start + at, start + at + len(token)))
                at = part.find(token, at + 1)
    return sorted(places)


@pytest.mark.parametrize("name", CASES)
def test_spelled_control_tokens_are_text_and_real_ones_tokens(name: str) -> None:
    tokenizer = genuine(name)
    controls, texts = CASES[name]
    plain = without(tokenizer, controls)
    for parts in texts:
        text = "".join(parts)
        places = literal_places(parts, controls)
        assert places
        expected = []
        for part in parts:
            # By their texts: without some added tokens the others have other ids.
            tokens = [part] if isinstance(part, Real) else plain.encode(part, add_special_tokens=False).tokens
            expected += [tokenizer.token_id(token) for token in tokens]
        encoded = tokenizer.encode_literally(text, places)
        assert encoded is not None
        assert encoded.ids.tolist() == expected
        forged = {tokenizer.token_id(token) for token in controls}
        assert sum(i in forged for i in expected) == sum(isinstance(part, Real) for part in parts)
        # Under Llama 2 every section gets a blank of its own, also in the normal encoding; within one section nothing is added.
        if name != "llama2" or not any(isinstance(part, Real) for part in parts):
            # Qwen's normalizer composes letters and marks.
            said = unicodedata.normalize("NFC", text) if name == "qwen3" else text
            assert tokenizer.decode(encoded.ids.tolist()) == said
        # Each real token is where it stands in the text.
        spots = {
            (int(s), int(e)) for i, s, e in zip(encoded.ids, encoded.starts, encoded.ends, strict=True) if i in forged
        }
        bounds = [*itertools.accumulate(map(len, parts), initial=0)]
        assert spots == {
            (a, b) for part, (a, b) in zip(parts, itertools.pairwise(bounds), strict=True) if isinstance(part, Real)
        }


@pytest.mark.parametrize("name", CASES)
def test_with_nothing_literal_it_is_the_normal_encoding(name: str) -> None:
    tokenizer = genuine(name)
    added = list(tokenizer.added_tokens.values())
    for text in (
        "".join(CASES[name][1][0]),
        "",
        "plain",
        "".join(added[:40]),
        " ".join(added[-40:]),
        "\n\n <b>x</b>   y",
    ):
        encoded = tokenizer.encode_literally(text, [])
        assert encoded is not None
        assert encoded.ids.tolist() == tokenizer.backend.encode(text, add_special_tokens=False).ids
        placed = tokenizer.place(text)
        assert encoded.starts.tolist() == placed.starts.tolist()
        assert encoded.ends.tolist() == placed.ends.tolist()


def changed(folder: Path, **parts: object) -> Backend:
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return Backend.from_str(json.dumps({**description, "post_processor": None, **parts}))


def test_a_blank_that_only_the_first_section_gets_is_not_given_to_others() -> None:
    """Metaspace with prepend_scheme "first", as newer conversions of Llama 2 and Mistral have it."""
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    backend = changed(genuine_tokenizer("llama2"), normalizer=None, pre_tokenizer=metaspace)
    encoded = LiteralEncoder(backend).encode("x</s>y </s>z", [(7, 11)])
    assert encoded is not None
    assert [backend.id_to_token(i) for i in encoded.ids.tolist()] == ["▁x", "</s>", "y", "▁</", "s", ">", "z"]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
def test_a_real_token_swallows_the_blanks_beside_it_as_ever(flag: str) -> None:
    description = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = [{**t, flag: t["content"] == "<|im_end|>"} for t in description["added_tokens"]]
    backend = changed(TINY, added_tokens=tokens)
    plain = changed(TINY, added_tokens=[])
    text = "a  <|im_end|>  b <|im_end|> c"
    encoded = LiteralEncoder(backend).encode(text, [(17, 27)])
    assert encoded is not None
    left, right = ("a", "  b <|im_end|> c") if flag == "lstrip" else ("a  ", "b <|im_end|> c")
    end = backend.token_to_id("<|im_end|>")
    assert encoded.ids.tolist() == [*plain.encode(left).ids, end, *plain.encode(right).ids]


def test_a_text_is_refused_where_a_model_makes_the_control_token_of_it() -> None:
    backend = Backend.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [
                    {
                        "id": 1,
                        "content": "</s>",
                        "single_word": False,
                        "lstrip": False,
                        "rstrip": False,
                        "normalized": False,
                        "special": True,
                    }
                ],
                "normalizer": None,
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "post_processor": None,
                "decoder": None,
                "model": {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1, "?": 2}, "unk_token": "?"},
            }
        )
    )
    encoder = LiteralEncoder(backend)
    assert encoder.encode("a </s>", []) is not None
    assert encoder.encode("a </s>", [(2, 6)]) is None


def test_a_text_is_refused_that_holds_the_characters_of_the_other_names() -> None:
    tokenizer = load_tokenizer(str(TINY))
    assert tokenizer.encode_literally("\U000f0001 <|im_end|>", [(2, 12)]) is None
    assert tokenizer.encode_literally("\ue001 <|im_end|>", [(2, 12)]) is not None
