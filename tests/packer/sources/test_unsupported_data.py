"""Data that is more than conversations to learn from is rejected by name, whatever stands beside it."""

from __future__ import annotations

import pytest

from packer.conversation import Conversation, Rejected
from packer.formats import Layout, canonical

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
PAIR = {"chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}}


def rejected(row: object, layout: Layout | None = None) -> Rejected:
    with pytest.raises(Rejected) as caught:
        canonical(row, layout or Layout())
    return caught.value


@pytest.mark.parametrize(
    "row",
    [
        # LLaMA-Factory: what stands before the pair is a chat by itself.
        {
            "conversations": [
                {"from": "human", "value": "x"},
                {"from": "gpt", "value": "y"},
                {"from": "human", "value": "z"},
            ],
            **PAIR,
        },
        # TRL, with an explicit and an implicit prompt, as text and as messages
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]},
        {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]},
        {"messages": [USER, ANSWER], "chosen": [USER, ANSWER], "rejected": [USER, ANSWER], "score_chosen": 1.0},
        {"instruction": "q", "output": "a", "rejected": "b"},
        # ms-swift, OpenAI
        {"messages": [USER, ANSWER], "rejected_response": "b"},
        {"messages": [USER, ANSWER], "rejected_messages": [USER, ANSWER]},
        {"input": {"messages": [USER]}, "preferred_output": [ANSWER], "non_preferred_output": [ANSWER]},
        # KTO: TRL and ms-swift, LLaMA-Factory
        {"prompt": "q", "completion": "a", "label": False},
        {"messages": [USER, ANSWER], "label": True},
        {"messages": [USER, ANSWER], "kto_tag": True},
    ],
)
@pytest.mark.parametrize("form", ["auto", "sharegpt", "messages"])
def test_preferences_are_rejected_by_name(row: dict, form: str) -> None:
    caught = rejected(row, Layout(format=form))
    assert caught.reason == "preference_data"
    assert "cannot be trained on" in caught.detail


def test_answers_that_are_named_are_read_from_preferences() -> None:
    pair = {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "b"}]}
    for layout in (Layout(map=(("messages", "chosen"),)), Layout(column="chosen")):
        conversation = canonical(pair, layout)
        assert isinstance(conversation, Conversation)
        assert (conversation.messages, conversation.notes) == ((USER, ANSWER), (("unread column", "rejected"),))


def test_columns_that_only_share_a_name_with_preferences_are_unread_columns() -> None:
    row = {"messages": [USER, ANSWER], "rejected": False, "chosen": None, "label": 3}
    assert canonical(row, Layout()).notes == (("unread column", "rejected"), ("unread column", "label"))
    assert canonical({"text": "t", "label": True}, Layout()).notes == (("unread column", "label"),)


@pytest.mark.parametrize("label", [0, 1, -1, 0.0, 1.0, "True", "false", "FALSE", " true", "0", "1"])
def test_a_label_beside_an_answer_is_one_however_its_boolean_is_stored(label: object) -> None:
    for row in (
        {"prompt": "q", "completion": "a"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"question": "q", "answer": "a"},
        {"instruction": "q", "output": "a"},
    ):
        for column in ("label", "kto_tag"):
            caught = rejected({**row, column: label})
            assert caught.reason == "preference_data"
            assert f"column {column!r} says whether the answer is a good one (KTO)" in caught.detail
    assert rejected({"messages": [USER, ANSWER], "kto_tag": label}).reason == "preference_data"


def test_the_class_of_a_conversation_is_an_unread_column() -> None:
    for label in (0, 1, 3, "sports", "1", None):
        canonical({"messages": [USER, ANSWER], "label": label}, Layout())
    for label in (2, 0.5, "sports", "", ["x"]):
        note = ("unread column", "label")
        assert canonical({"prompt": "q", "completion": "a", "label": label}, Layout()).notes == (note,)
    assert rejected({"messages": [USER, ANSWER], "label": "True"}).reason == "preference_data"


@pytest.mark.parametrize("column", ["image", "images", "audio", "audios", "video", "videos"])
@pytest.mark.parametrize(
    "chat",
    [
        {"messages": [{"role": "user", "content": "<image>2+2?"}, ANSWER]},
        {"instruction": "<image>what?", "output": "a"},
        {"text": "<image>"},
        {"prompt": "q", "completion": "a"},
    ],
)
def test_pictures_and_sound_are_rejected_by_name(chat: dict, column: str) -> None:
    for value in (["a.png"], "a.png", {"bytes": b"x", "path": None}, [{"path": "a.png"}]):
        caught = rejected({**chat, column: value})
        assert caught.reason == "image_or_audio"
        assert repr(column) in caught.detail
    for value in ([], None, ""):
        canonical({**chat, column: value}, Layout())


def test_pictures_of_one_message_are_rejected_by_name() -> None:
    """As Ollama's format has them."""
    caught = rejected({"messages": [{**USER, "images": ["aGk="]}, ANSWER]})
    assert (caught.reason, caught.detail) == (
        "image_or_audio",
        "message 0: 'images' holds what is not text; only text can be packed",
    )
    canonical({"messages": [{**USER, "images": []}, ANSWER]}, Layout())
