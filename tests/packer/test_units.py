"""Tokens as units of text: nothing lost, characters whole."""

from __future__ import annotations

import numpy as np
import pytest

from packer.tokenizer import Tokenizer, load_tokenizer
from packer.units import units
from tests.support import TINY

TEXTS = ["plain words, and more", "日本語と emoji 🤷🏽‍♀️ и кириллица", "𓀀𓀁 a rare plane", "tab\tand\nline", "� itself"]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(str(TINY))


@pytest.mark.parametrize("text", TEXTS)
def test_units_are_the_text_in_order_with_whole_characters(tiny: Tokenizer, text: str) -> None:
    ids = np.array(tiny.encode([text]).ids, dtype=np.int32)
    found = list(units(tiny, ids, 0, len(ids)))
    assert "".join(unit.text for unit in found) == text
    assert [one for unit in found for one in unit.ids] == ids.tolist()
    assert all(len(unit.ids) == 1 or len(unit.text) == 1 or not unit.text.isascii() for unit in found)


def test_some_characters_need_several_tokens(tiny: Tokenizer) -> None:
    ids = np.array(tiny.encode(["𓀀"]).ids, dtype=np.int32)
    assert len(ids) > 1
    assert [unit.text for unit in units(tiny, ids, 0, len(ids))] == ["𓀀"]


def test_a_control_token_is_its_own_text(tiny: Tokenizer) -> None:
    (name, token) = next((text, number) for number, text in tiny.added_tokens.items())
    ids = np.array([token, *tiny.encode(["hi"]).ids], dtype=np.int32)
    assert next(units(tiny, ids, 0, len(ids))).text == name


def test_half_a_character_is_shown_as_broken_and_lost_to_nobody(tiny: Tokenizer) -> None:
    ids = np.array(tiny.encode(["𓀀"]).ids, dtype=np.int32)
    found = list(units(tiny, ids, 1, len(ids)))
    assert [one for unit in found for one in unit.ids] == ids[1:].tolist()
    assert "\ufffd" in found[0].text
