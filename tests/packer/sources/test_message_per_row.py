"""Data sets with one message per row, such as OpenAssistant's trees laid flat: no row is a document to train on."""

from __future__ import annotations

import pytest

from packer.conversation import PlainText, Rejected
from packer.formats import Layout, canonical

ROW = {"message_id": "1", "parent_id": None, "role": "prompter", "text": "What is the tallest tree?"}


def test_a_message_is_not_taken_for_a_document() -> None:
    with pytest.raises(Rejected) as caught:
        canonical(ROW, Layout())
    assert (caught.value.reason, "role" in caught.value.detail) == ("message_per_row", True)


def test_whoever_asks_for_text_gets_text() -> None:
    document = canonical(ROW, Layout(format="text"))
    assert isinstance(document, PlainText)
    assert document.completion == ROW["text"]
