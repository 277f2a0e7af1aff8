"""The stress text of a tokenizer shows every class of difference that an encoder may have: those seen in the wild, and planted ones."""

from __future__ import annotations

import itertools
import json
import random
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import numpy as np
import pytest

from packer import encoders
from packer.encoders import Chosen, Flat, Reference, choose_encoder
from packer.errors import UserError
from packer.tokenization.stress_text import REPRESENTATIVES, _de_bruijn, stress_texts
from packer.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.genuine_tokenizers import GENUINE, genuine_tokenizer
from tests.support import TINY

CASES = ("「・」is it? (・)and", "_・'s", "(・-F", "\u1dfa\u0345", "\u1dfa\U00010d27", "\U00016d63\U00016d67\U00016d67")
CHARACTERS = "".join(REPRESENTATIVES.values())


@cache
def tiny() -> Tokenizer:
    return load_tokenizer(str(TINY))


@cache
def tiny_texts() -> tuple[str, ...]:
    return stress_texts(tiny().backend)


def ids_of(flat: Flat) -> list[list[int]]:
    return [flat.ids[start:end].tolist() for start, end in itertools.pairwise(flat.offsets)]


class Planted:
    """The reference, but with a wrong last id for texts of which a condition holds."""

    def __init__(self, tokenizer: Tokenizer, condition: Callable[[str], object]) -> None:
        self._reference = Reference(tokenizer.backend)
        self._condition = condition

    def encode(self, texts: Sequence[str]) -> Flat:
        flat = self._reference.encode(texts)
        ids = flat.ids.copy()
        for number, text in enumerate(texts):
            if text and self._condition(text):
                ids[flat.offsets[number + 1] - 1] += 1
        return Flat(ids=ids, offsets=flat.offsets)


def choose_planted(monkeypatch: pytest.MonkeyPatch, condition: Callable[[str], object]) -> Chosen:
    pytest.importorskip("splintr")
    monkeypatch.setitem(encoders._MAKERS, "splintr", lambda _: Planted(tiny(), condition))
    return choose_encoder("splintr", tiny().backend)


def test_an_encoder_that_is_equal_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_planted(monkeypatch, lambda _: False).name == "splintr"


def test_kana_punctuation_under_deepseek_is_encoded_as_tokenizers_do_or_the_encoder_refused() -> None:
    """As of splintr 0.22: refused, by a text in which that punctuation meets what its third expression takes as a whole."""
    pytest.importorskip("splintr")
    backend = load_tokenizer(str(genuine_tokenizer("deepseek_v3"))).backend
    expected = [backend.encode(text, add_special_tokens=False).ids for text in CASES]
    assert ids_of(choose_encoder("auto", backend).encoder.encode(CASES)) == expected
    if ids_of(encoders.Splintr(backend).encode(CASES)) != expected:
        with pytest.raises(UserError, match=r"--encoder splintr differs from tokenizers on .*・"):
            choose_encoder("splintr", backend)


@pytest.mark.full
@pytest.mark.parametrize("name", GENUINE)
@pytest.mark.parametrize("encoder", ["splintr", "fastokens"])
def test_a_fast_encoder_that_is_used_is_equal_on_random_texts(
    name: str, encoder: Literal["splintr", "fastokens"]
) -> None:
    pytest.importorskip(encoder)
    backend = load_tokenizer(str(genuine_tokenizer(name))).backend
    try:
        chosen = choose_encoder(encoder, backend)
    except UserError:
        return
    choice = random.Random(5).choice
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    pieces = [*CHARACTERS, "'s", "'LL", "  ", "\r\n", "and", *added]
    texts = [*CASES, *("".join(choice(pieces) for _ in range(1 + number % 12)) for number in range(2000))]
    expected = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids_of(chosen.encoder.encode(texts)) == expected


@pytest.mark.parametrize("name", ["splintr", "fastokens"])
def test_without_a_route_for_what_it_encodes_differently_an_encoder_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: Literal["splintr", "fastokens"]
) -> None:
    """Texts that NFC changes (splintr), and a long s behind an apostrophe (both)."""
    pytest.importorskip(name)
    assert choose_encoder(name, tiny().backend).name == name
    monkeypatch.setattr(encoders._Fast, "_differs", lambda *_: False)
    with pytest.raises(UserError, match="differs from tokenizers on"):
        choose_encoder(name, tiny().backend)


def test_texts_that_nfc_changes_keep_their_places_among_the_others() -> None:
    pytest.importorskip("splintr")
    texts = ["e\u0301", "plain", "'ſक", "", "a\u1dfa\u0345b", "é", "\U00016d63\U00016d67\U00016d67", "e\u0301 e\u0301"]
    expected = [tiny().backend.encode(text, add_special_tokens=False).ids for text in texts]
    for some in (texts, texts[::-1], texts[:1], texts[1:3], texts[2:4]):
        wanted = [expected[texts.index(text)] for text in some]
        assert ids_of(encoders.Splintr(tiny().backend).encode(some)) == wanted


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_a_difference_in_one_pair_of_any_class_is_caught(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Each class with itself and with another, in either order: all pairs of characters stand in some text."""
    joined = "\uffff".join(tiny_texts())
    for one, other in itertools.product(REPRESENTATIVES[kind], CHARACTERS):
        assert one + other in joined
        assert other + one in joined
    last = REPRESENTATIVES[kind][-1]
    with pytest.raises(UserError, match="--encoder splintr differs from tokenizers on"):
        choose_planted(monkeypatch, lambda text: last + "Σ" in text)


def test_every_triple_of_classes_of_a_pre_tokenizer_stands_in_some_text() -> None:
    """The classes by hand, of the expression in tiny-hybrid's tokenizer.json."""
    expression = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"]["pretokenizers"][0]
    assert set(re.findall(r"\\p\{.\}|\\s|\\r\\n", expression["pattern"]["Regex"])) == {
        r"\p{L}",
        r"\p{M}",
        r"\p{N}",
        r"\s",
        r"\r\n",
    }

    def class_of(character: str) -> str:
        if character in "\r\n":
            return "R"
        if character.isspace():
            return " " if character == " " else "B"
        found = unicodedata.category(character)[0]
        return found if found in "LMN" else "O"

    classes = ["".join(map(class_of, text)) for text in tiny_texts()]
    missing = {
        triple
        for triple in map("".join, itertools.product("R BLMNO", repeat=3))
        if not any(triple in text for text in classes)
    }
    assert not missing


@pytest.mark.parametrize(
    "condition",
    [
        *(re.compile(rf"(?<!\d)\d{{{length}}}(?!\d)") for length in range(1, 8)),
        re.compile(r" {16}[a-z]"),
        re.compile(r"\n{15}[0-9]"),
        re.compile(r" \n \n[a-z]"),
        re.compile("(\r\n){4}"),
        re.compile(r"'LL"),
        re.compile(r"[a-z]’s"),
        re.compile(r"'ſ"),
        re.compile(r"^\u0301"),
        re.compile(r"\u0301$"),
        re.compile(r"👩\u200d👩"),
        re.compile(r"🇩🇪"),
        re.compile(r"(.)\1{500}", re.DOTALL),
        re.compile(r"[a-z]{1000}"),
        re.compile(r"<\|im_end\|><\|im_end\|>"),
        re.compile(r"[a-z]<\|im_end\|>"),
        re.compile(r"<\|im_end\|>[a-z]"),
        re.compile(r" <\|im_end\|>\n"),
        re.compile(r"<\|im_end\|(?!>)"),
        re.compile(r"(?<!<)\|im_end\|>"),
        re.compile(r"^<\|im_end\|>$"),
        re.compile(r"[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]"),
        re.compile(r"ﬁ"),
    ],
    ids=lambda pattern: pattern.pattern.encode("unicode_escape").decode(),
)
def test_a_difference_in_one_kind_of_text_is_caught(
    monkeypatch: pytest.MonkeyPatch, condition: re.Pattern[str]
) -> None:
    with pytest.raises(UserError, match="differs from tokenizers on"):
        choose_planted(monkeypatch, condition.search)


def test_a_difference_in_the_longest_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = sorted(tiny().backend.get_vocab(with_added_tokens=False), key=len)
    longest = tiny().decode([tiny().backend.token_to_id(vocabulary[-1])])
    assert len(longest) > 8
    with pytest.raises(UserError, match="differs from tokenizers on"):
        choose_planted(monkeypatch, lambda text: longest in text)


def test_the_text_is_quoted_around_the_first_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one two three four five six seven " + "z" * 100
    monkeypatch.setattr(encoders, "stress_texts", lambda _: (text,))
    with pytest.raises(UserError) as refused:
        choose_planted(monkeypatch, lambda _: True)
    quoted = re.search(r"on (…)?'(.*)'(…)?$", str(refused.value))
    assert quoted is not None
    assert quoted[1]
    # The planted id is the text's last.
    assert text.endswith(quoted[2]) or quoted[3]
    assert len(quoted[2]) <= 24


def test_the_texts_are_always_the_same_and_few() -> None:
    assert stress_texts(load_tokenizer(str(TINY)).backend) == tiny_texts()
    # What a start may cost: some 60 ms of the reference, which encodes about a million characters a second.
    assert sum(map(len, tiny_texts())) < 40_000


@pytest.mark.parametrize(("count", "length"), [(1, 2), (2, 3), (3, 2), (5, 3), (4, 4)])
def test_a_de_bruijn_sequence_holds_every_word_once(count: int, length: int) -> None:
    cyclic = _de_bruijn(count, length)
    assert len(cyclic) == count**length
    doubled = cyclic + cyclic
    words = {tuple(doubled[start : start + length]) for start in range(len(cyclic))}
    assert words == set(itertools.product(range(count), repeat=length))
    assert np.bincount(cyclic).tolist() == [count ** (length - 1)] * count
