"""Loss weights in the data: honoured as the tool that defines the key honours it, or rejected by name."""

from __future__ import annotations

import math

import pytest

from packer.conversation import Conversation, Rejected
from packer.formats import Layout, canonical

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def read(*messages: object, layout: Layout | None = None, **columns: object) -> Conversation:
    conversation = canonical({"messages": list(messages), **columns}, layout or Layout())
    assert isinstance(conversation, Conversation)
    return conversation


def rejected(*messages: object, **columns: object) -> Rejected:
    with pytest.raises(Rejected) as caught:
        read(*messages, **columns)
    return caught.value


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"weight": 0}, "weight=0"),
        ({"weight": 0.0}, "weight=0.0"),
        ({"train": False}, "train=false"),
        ({"training": False}, "training=false"),
        ({"trainable": 0}, "trainable=0"),
        ({"loss": False}, "loss=false"),
        ({"loss_scale": 0.0}, "loss_scale=0.0"),
        ({"loss_weight": 0.0}, "loss_weight=0.0"),
        ({"loss": False, "loss_scale": 0}, "loss_scale=0"),
    ],
)
def test_an_answer_that_the_data_takes_out_of_the_loss_is_masked_and_counted(keys: dict, note: str) -> None:
    conversation = read(USER, {**ANSWER, **keys}, USER, ANSWER)
    assert conversation.masked == {1}
    assert conversation.weights == {}
    assert conversation.notes == (("loss weight", note),)
    # The template sees no trace of the keys.
    assert conversation.messages == (USER, ANSWER, USER, ANSWER)


@pytest.mark.parametrize(
    ("keys", "weights"),
    [
        ({"weight": 1}, {}),
        ({"train": True}, {}),
        ({"loss": True}, {}),
        ({"loss_weight": 1.0}, {}),
        ({"loss_scale": 0.25}, {1: 0.25}),
        ({"weight": 2}, {1: 2.0}),
        # A switch that is on says nothing of how much.
        ({"loss": True, "loss_scale": 0.5}, {1: 0.5}),
        ({"weight": 0.5, "loss_weight": 0.5}, {1: 0.5}),
    ],
)
def test_an_answer_with_another_weight_keeps_it(keys: dict, weights: dict) -> None:
    conversation = read(USER, {**ANSWER, **keys})
    assert (conversation.masked, conversation.weights) == (frozenset(), weights)
    assert [kind for kind, _ in conversation.notes] == ["loss weight"]
    assert conversation.messages == (USER, ANSWER)


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        ({"weight": "0"}, "'weight' is text"),
        ({"weight": [0]}, "'weight' is a list"),
        ({"weight": -1}, "'weight': -1"),
        ({"weight": math.nan}, "'weight': NaN"),
        ({"loss_scale": math.inf}, "'loss_scale': Infinity"),
        ({"loss_weight": 1e9}, "'loss_weight': 1000000000.0"),
        ({"loss_weight": 10**400}, "'loss_weight': 1000"),
        ({"loss_weight": 1e-300}, "'loss_weight': 1e-300"),
        ({"train": 0.5}, "'train': 0.5"),
        ({"loss": 0.53}, "'loss': 0.53"),
        ({"weight": 1, "loss_weight": 0}, "'weight': 1 and 'loss_weight': 0 disagree"),
        ({"weight": 1, "train": False}, "'weight': 1 and 'train': false disagree"),
        ({"train": True, "loss": False}, "disagree"),
        ({"weight": 0.5, "loss_scale": 0.25}, "disagree"),
        ({"mask": True}, "'mask': true is true for what is trained in one tool"),
        ({"loss_mask": 1}, "'loss_mask': 1 is 1 for what is trained in one tool"),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 8, "train": False}]}, "parts of a message"),
    ],
)
def test_a_weight_that_is_not_understood_is_rejected_by_name(keys: dict, seen: str) -> None:
    caught = rejected(USER, {**ANSWER, **keys})
    assert caught.reason == "bad_weight"
    assert caught.detail.startswith("message 1: ")
    assert seen in caught.detail


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_a_weight_of_what_the_model_does_not_write_may_only_be_none(role: str) -> None:
    other = {"role": role, "content": "x"}
    for keys in ({"weight": 0}, {"train": False}, {"loss_weight": 0.0}, {"loss": None}):
        conversation = read(USER, {**other, **keys}, USER, ANSWER)
        assert conversation.masked == frozenset()
        # Counted, since `--train-on all` cannot follow it.
        kinds = [kind for kind, _ in conversation.notes]
        assert kinds == ([] if keys == {"loss": None} else ["loss weight of a message that the model does not write"])
        assert conversation.messages[1] == other
    # OpenAI and ms-swift define these for the assistant alone: a 1 on every message is what a table fills in.
    conversation = read(USER, {**other, "weight": 1}, USER, ANSWER)
    assert conversation.notes == (("loss weight not applied", f"{role} weight=1"),)
    # axolotl and LLaMA-Factory would train on it, and anybody's fraction is meant.
    for keys in ({"train": True}, {"loss_weight": 1.0}, {"weight": 0.5}):
        caught = rejected(USER, {**other, **keys}, USER, ANSWER)
        assert caught.reason == "bad_weight"
        assert f"asks to train on a message of '{role}'" in caught.detail


def test_a_conversation_of_masked_answers_alone_is_rejected_with_the_true_reason() -> None:
    masked = {**ANSWER, "weight": 0}
    for caught in (
        rejected(USER, masked, USER, masked),
        rejected(USER, ANSWER, USER, masked, messages=None, prompt=[USER, ANSWER, USER], completion=[masked]),
    ):
        assert caught.reason == "no_answer"
        assert "loss weight 0" in caught.detail


def test_an_empty_answer_that_is_masked_by_the_data_takes_nothing_out() -> None:
    empty = {"role": "assistant", "content": "", "weight": 0}
    assert read(USER, empty, USER, ANSWER).masked == {1}
    assert read(USER, empty, USER, ANSWER, layout=Layout(empty_answers="mask")).masked == {1}
    also = {"role": "assistant", "content": ""}
    assert read(USER, empty, USER, also, USER, ANSWER, layout=Layout(empty_answers="mask")).masked == {1, 3}


def test_places_of_weights_are_those_of_the_messages_that_go_in() -> None:
    """A system prompt in a column of its own moves them, and so does an Anthropic message that holds two results."""
    assert read(USER, {**ANSWER, "weight": 0}, USER, ANSWER, system="s").masked == {2}
    results = [{"type": "tool_result", "tool_use_id": name, "content": "r"} for name in "xy"]
    calls = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in "xy"]
    conversation = read(
        USER,
        {"role": "assistant", "content": calls, "loss_weight": 0.0},
        {"role": "user", "content": results},
        {**ANSWER, "loss_weight": 0.5},
    )
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert (conversation.masked, conversation.weights) == ({1}, {4: 0.5})


def test_weights_of_parts_are_those_of_their_message_where_all_agree() -> None:
    def answer(*weights: object, **keys: object) -> dict:
        parts = [{"type": "text", "value": "x", **({} if w is None else {"loss_weight": w})} for w in weights]
        return {"role": "assistant", "content": parts, **keys}

    assert read(USER, answer(0.0, 0.0), USER, ANSWER).masked == {1}
    assert read(USER, answer(0.5, 0.5, loss_weight=0.5)).weights == {1: 0.5}
    assert read(USER, answer(1.0, None)).weights == {}
    for message in (answer(0.0, 1.0), answer(0.0, None), answer(0.0, 0.0, loss_weight=1.0)):
        assert rejected(USER, message, USER, ANSWER).reason == "bad_weight"


def test_the_row_given_keeps_its_weights() -> None:
    row = {"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]}
    canonical(row, Layout())
    assert row["messages"][1] == {**ANSWER, "weight": 0}
