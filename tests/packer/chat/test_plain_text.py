"""Documents, and prompts with completions that are texts: ids as transformers' own call gives them, one EOS behind them, targets counted by hand."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import packer
from packer.config import BuildConfig
from packer.render import Example, Policies, Renderer
from packer.report import print_build
from packer.template import ChatTemplate
from packer.token_part import part_paths, read_part
from packer.tokenizer import Tokenizer, load_tokenizer
from packer.verify import verify
from packer.words import Overlong, Policy
from tests.fixtures.genuine_tokenizers import genuine_tokenizer
from tests.support import TINY, chat, write_jsonl

# Whether the tokenizer's own call puts a BOS in front, as its tokenizer.json says.
ADDS_BOS = {
    "llama3_1": True,
    "gemma3": True,
    "llama2": True,
    "mistral_nemo": True,
    "qwen3": False,
    "deepseek_v3": False,
}
TEXTS = ("Once upon a time", "日本語 é\n\n x \n", "<b>bold</b>\tand 😀 ", "x")


def renderer(tokenizer: Tokenizer, template: str | None = None, control_tokens: Policy = "split") -> Renderer:
    source = template or tokenizer.chat_template or ""
    compiled = ChatTemplate(source, special_tokens=tokenizer.special_tokens)
    return Renderer(tokenizer, compiled, Policies(control_tokens=control_tokens))


def genuine(name: str) -> tuple[Renderer, object, Tokenizer]:
    folder = genuine_tokenizer(name)
    ours, theirs = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    # Some templates print today's date; of plain text no template prints anything.
    simple = "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
    return renderer(ours, simple), theirs, ours


def only(outcomes: list) -> Example:
    (example,) = outcomes
    assert isinstance(example, Example), example
    return example


@pytest.mark.parametrize("name", ADDS_BOS)
def test_a_document_has_the_ids_of_the_tokenizers_own_call_and_one_eos(name: str) -> None:
    ours, theirs, _ = genuine(name)
    for text in TEXTS:
        expected = theirs(text)["input_ids"]
        assert (expected[0] == theirs.bos_token_id) == ADDS_BOS[name]
        example = only(ours.examples([{"text": text}]))
        assert example.ids.tolist() == [*expected, theirs.eos_token_id]
        # A token has to stand before a target. Where that is a BOS, no token of the text is without.
        assert example.loss_mask.tolist() == [False] + [True] * len(expected)


@pytest.mark.parametrize("name", ADDS_BOS)
def test_documents_in_one_batch_with_chats_keep_their_own_tokens(name: str) -> None:
    ours, theirs, _ = genuine(name)
    rows = [{"text": TEXTS[0]}, chat("hi", "ho"), {"text": TEXTS[1]}, {"prompt": "a ", "completion": "b"}]
    alone = [only(ours.examples([row])) for row in rows]
    for together, single in zip(ours.examples(rows), alone, strict=True):
        assert isinstance(together, Example)
        assert together.ids.tolist() == single.ids.tolist()
        assert together.loss_mask.tolist() == single.loss_mask.tolist()
    assert alone[0].ids.tolist() == [*theirs(TEXTS[0])["input_ids"], theirs.eos_token_id]


@pytest.mark.parametrize("name", ADDS_BOS)
@pytest.mark.parametrize(
    ("prompt", "completion"), [("Is 2 even? Answer: ", "Yes"), ("2+2=", "4"), ("é日", "本 x"), ("one ", " two\n")]
)
def test_a_completion_is_trained_on_from_the_token_across_the_seam_through_its_eos(
    name: str, prompt: str, completion: str
) -> None:
    ours, theirs, _ = genuine(name)
    encoded = theirs(prompt + completion, return_offsets_mapping=True)
    example = only(ours.examples([{"prompt": prompt, "completion": completion}]))
    assert example.ids.tolist() == [*encoded["input_ids"], theirs.eos_token_id]
    is_target = [end > len(prompt) for _, end in encoded["offset_mapping"]]
    assert example.loss_mask.tolist() == [*is_target, True]


@pytest.mark.parametrize("name", ADDS_BOS)
@pytest.mark.parametrize("policy", ["split", "keep"])
def test_a_bos_and_an_eos_that_the_text_spells_are_not_there_twice(name: str, policy: Policy) -> None:
    _, theirs, tokenizer = genuine(name)
    simple = "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
    ours = renderer(tokenizer, simple, policy)
    whole = TEXTS[0] + theirs.eos_token
    if ADDS_BOS[name]:
        whole = theirs.bos_token + whole
    expected = [*theirs(TEXTS[0])["input_ids"], theirs.eos_token_id]
    assert only(ours.examples([{"text": whole}])).ids.tolist() == expected
    start = len(whole) - len(TEXTS[0]) - len(theirs.eos_token)
    pair = {"prompt": whole[: start + 5], "completion": whole[start + 5 :]}
    assert only(ours.examples([pair])).ids.tolist() == expected


def test_a_tokenizer_that_adds_an_eos_itself_is_given_no_second(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    shutil.copytree(TINY, folder)
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    bos, eos = (
        next(t["id"] for t in described["added_tokens"] if t["content"] == c) for c in ("<think>", "<|im_end|>")
    )
    pieces = [{"SpecialToken": {"id": "<think>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    described["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*pieces, {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
        "pair": pieces,
        "special_tokens": {
            content: {"id": content, "ids": [token_id], "tokens": [content]}
            for content, token_id in (("<think>", bos), ("<|im_end|>", eos))
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(folder)
    example = only(renderer(load_tokenizer(str(folder))).examples([{"text": "one two"}]))
    assert example.ids.tolist() == theirs("one two")["input_ids"]
    assert (example.ids[0], example.ids[-1]) == (bos, eos)
    assert example.loss_mask.tolist() == [False] + [True] * (len(example.ids) - 1)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(str(TINY))


def markup(example: Example) -> dict[str, int]:
    return {
        detail: count for (kind, detail), count in example.notes.items() if kind.startswith("text holds chat markup")
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>", ["<|im_end|>", "<|im_start|>"]),
        ("<s>[INST] hi [/INST] ho", ["[INST]"]),
        ("<start_of_turn>user\nhi<end_of_turn>", ["<start_of_turn>"]),
        ("<|start_header_id|>user<|end_header_id|>hi", ["<|start_header_id|>"]),
        ("an ordinary text, a [list] and a <b>tag</b>", []),
    ],
)
def test_chat_markup_in_a_text_is_noted_once_a_row_with_the_way_out(
    tiny: Tokenizer, text: str, found: list[str]
) -> None:
    for row in ({"text": text}, {"prompt": text, "completion": "x"}):
        example = only(renderer(tiny).examples([row]))
        assert markup(example) == dict.fromkeys(found, 1)
        assert all("--control-tokens keep" in kind for kind, _ in example.notes if "markup" in kind)


def test_kept_control_tokens_are_tokens_and_only_markup_of_others_is_noted(tiny: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(TINY)
    text = "<|im_start|>user\nhi<|im_end|>\n[INST]"
    example = only(renderer(tiny, control_tokens="keep").examples([{"text": text}]))
    assert example.ids.tolist() == [*theirs(text)["input_ids"], theirs.eos_token_id]
    assert markup(example) == {"[INST]": 1}


def built(out: Path, rows: list[dict], **options: object) -> packer.manifest.Manifest:
    data = write_jsonl(out.with_suffix(".jsonl"), rows)
    values = {"datasets": (str(data),), "tokenizer": str(TINY), "capacity": 64, "workers": 1, "max_loss": 1}
    return packer.build(BuildConfig(out=out, **{**values, **options}))  # type: ignore[arg-type]


def document_of(length: int) -> str:
    """A text that is `length` tokens with its EOS."""
    theirs = AutoTokenizer.from_pretrained(TINY)
    words = "a"
    while len(theirs(words)["input_ids"]) < length - 1:
        words += " a"
    assert len(theirs(words)["input_ids"]) == length - 1
    return words


def pieces_of(folder: Path) -> dict[int, list[tuple[list[int], list[bool]]]]:
    """By conversation, its pieces in order, read from the rows."""
    (table,) = [packer.examples.read_examples(folder)]
    corpus = packer.open(folder, split="train")
    found: dict[int, dict[int, tuple[list[int], list[bool]]]] = {}
    for row in (corpus[number] for number in range(len(corpus))):
        for segment in range(row.num_examples):
            start, end = int(row.cu_seqlens[segment]), int(row.cu_seqlens[segment + 1])
            example = int(row.example_ids[segment])
            tokens = row.input_ids[start:end].tolist(), row.loss_mask[start:end].tolist()
            found.setdefault(int(table.row[example]), {})[int(table.piece[example])] = tokens
    return {row: [pieces[number] for number in sorted(pieces)] for row, pieces in found.items()}


@pytest.mark.parametrize("length", [64, 65, 66, 127, 128, 129, 130, 1000])
def test_a_document_longer_than_a_row_is_split_and_no_token_is_lost(tmp_path: Path, length: int) -> None:
    text = document_of(length)
    manifest = built(tmp_path / "packed", [{"text": text}, chat("hi", "ho")])
    assert manifest.ledger.conversations == {"read": 2, "in": 2}
    assert manifest.ledger.in_part == {}
    pieces = pieces_of(tmp_path / "packed")[0]
    theirs = AutoTokenizer.from_pretrained(TINY)
    expected = [*theirs(text)["input_ids"], theirs.eos_token_id]
    assert [token for ids, _ in pieces for token in ids] == expected
    assert all(mask == [False] + [True] * (len(ids) - 1) for ids, mask in pieces)
    assert all(2 <= len(ids) <= 64 for ids, _ in pieces)
    assert len(pieces) == -(-length // 64)
    split = {"longer than a row, split": {"documents": 1, "pieces": len(pieces)}} if length > 64 else {}
    assert manifest.ledger.notes == split
    assert not verify(tmp_path / "packed", deep=True).findings


def test_by_default_documents_are_split_and_chats_and_completions_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = document_of(100)
    rows = [{"text": long}, chat("hi", long), {"prompt": "q ", "completion": long}, {"prompt": "", "completion": long}]
    manifest = built(tmp_path / "packed", rows)
    assert manifest.ledger.conversations == {"read": 4, "in": 2, "overlong": 2}
    print_build(manifest, tmp_path / "packed")
    said = " ".join(capsys.readouterr().out.split())
    assert "longer than a row, split: documents 2, pieces 4" in said
    assert manifest.options["overlong"] == "auto"


@pytest.mark.parametrize(("policy", "inside"), [("drop", 1), ("split", 4), ("truncate", 1)])
def test_a_policy_that_is_asked_for_is_that_of_documents_too(tmp_path: Path, policy: Overlong, inside: int) -> None:
    long = document_of(100)
    rows = [{"text": long}, chat("hi", long), {"prompt": "q ", "completion": long}, chat("hi", "ho")]
    manifest = built(tmp_path / "packed", rows, overlong=policy)
    assert manifest.ledger.conversations["in"] == inside
    assert manifest.ledger.tokens["encoded"] == sum(
        count for name, count in manifest.ledger.tokens.items() if name != "encoded"
    )


def test_the_store_tells_documents_from_chats_without_a_turn(tmp_path: Path) -> None:
    """Under --train-on all a chat may go in whose template tags nothing of it."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content != 'untagged' and m.role == 'assistant' %}"
        "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    (tmp_path / "tagged.jinja").write_text(template, encoding="utf-8")
    rows = [{"text": "one two"}, chat(document_of(100), "untagged"), chat("hi", "ho")]
    manifest = built(tmp_path / "packed", rows, chat_template=tmp_path / "tagged.jinja", train_on="all")
    assert Counter(manifest.ledger.conversations) == {"read": 3, "in": 2, "overlong": 1}
    _, part = read_part(part_paths(tmp_path / "packed" / "tokens")[0])
    assert (np.diff(part.turn_offsets) == 0).tolist() == [True, False, False]
