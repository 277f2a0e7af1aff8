"""Contents that are lists of parts: everything in them is in the message, or the row is rejected by name."""

from __future__ import annotations

import json

import pytest

from packer.conversation import Conversation, Rejected
from packer.formats import Layout, canonical

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def read(*messages: object) -> Conversation:
    conversation = canonical({"messages": list(messages)}, Layout())
    assert isinstance(conversation, Conversation)
    return conversation


def rejected(*messages: object) -> Rejected:
    with pytest.raises(Rejected) as caught:
        canonical({"messages": list(messages)}, Layout())
    return caught.value


def answer(*parts: object) -> dict:
    return {"role": "assistant", "content": list(parts)}


@pytest.mark.parametrize(
    "part",
    [
        "a",
        {"type": "text", "text": "a"},
        {"type": "text", "value": "a"},
        {"type": "text", "content": "a"},
        {"type": "text", "text": "a", "value": None},
        {"text": "a"},
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "a"},
        {"type": "refusal", "refusal": "a"},
    ],
)
def test_text_parts_are_text(part: object) -> None:
    conversation = read(USER, answer(part))
    assert conversation.messages == (USER, ANSWER)
    assert conversation.notes == ()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "r"},
        {"type": "thinking", "text": "r"},
        {"type": "reasoning", "reasoning": "r"},
        {"type": "reasoning", "text": "r"},
        {"type": "reasoning", "value": "r"},
    ],
)
def test_reasoning_parts_are_reasoning(part: object) -> None:
    message = read(USER, answer(part, {"type": "text", "text": "a"})).messages[1]
    assert message == {**ANSWER, "reasoning_content": "r", "thinking": "r"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_use", "name": "f", "input": {"x": 1}},
        {"type": "tool_call", "name": "f", "arguments": {"x": 1}},
        {"type": "tool_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"type": "tool_call", "value": {"name": "f", "arguments": '{"x": 1}'}},
        {"type": "tool_call", "tool_call": CALL},
        {"type": "function_call", "name": "f", "arguments": '{"x": 1}'},
    ],
)
def test_call_parts_are_tool_calls(part: object) -> None:
    message = read(USER, answer({"type": "text", "text": "a"}, part)).messages[1]
    assert message == {**ANSWER, "tool_calls": [CALL]}


def test_anthropics_blocks_are_messages_in_their_order() -> None:
    conversation = read(
        USER,
        answer(
            {"type": "thinking", "thinking": "r", "signature": "xyz"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "t2", "name": "g", "input": {}, "cache_control": {"type": "ephemeral"}},
        ),
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "one", "is_error": False},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "two"}]},
                {"type": "text", "text": "and "},
                {"type": "text", "text": "now?"},
            ],
        },
        ANSWER,
    )
    assert conversation.messages == (
        USER,
        {
            **ANSWER,
            "reasoning_content": "r",
            "thinking": "r",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": "t1"},
        {"role": "tool", "content": "two", "tool_call_id": "t2"},
        {"role": "user", "content": "and now?"},
        ANSWER,
    )
    assert conversation.notes == (
        ("unread key of a content part", "thinking.signature"),
        ("unread key of a content part", "tool_use.cache_control"),
    )


def test_a_text_before_a_tool_result_stays_before_it() -> None:
    results = [{"type": "text", "text": "see"}, {"type": "tool_result", "tool_use_id": "t", "content": "r"}]
    roles = [message["role"] for message in read(USER, ANSWER, {"role": "user", "content": results}, ANSWER).messages]
    assert roles == ["user", "assistant", "user", "tool", "assistant"]


def test_messages_before_a_completion_may_be_split_and_joined() -> None:
    results = [{"type": "tool_result", "tool_use_id": name, "content": "r"} for name in "xy"]
    called = [{"role": "tool_call", "content": json.dumps({"name": "f", "arguments": {"x": 1}})}] * 3
    row = {"prompt": [USER, *called, {"role": "user", "content": results}], "completion": [ANSWER]}
    conversation = canonical(row, Layout())
    assert isinstance(conversation, Conversation)
    assert conversation.messages[conversation.first_target :] == (ANSWER,)
    assert conversation.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL] * 3}
    # A completion is a turn of its own, whatever stands before it.
    row = {"prompt": [USER, ANSWER], "completion": called[:1]}
    conversation = canonical(row, Layout())
    assert isinstance(conversation, Conversation)
    assert (len(conversation.messages), conversation.first_target) == (3, 2)


def test_llama_factorys_own_format_is_read() -> None:
    """The sample of its documentation, and a call."""
    conversation = canonical(
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "value": "s"}], "loss_weight": 0.0},
                {"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "value": "r"},
                        {"type": "tool_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                    ],
                    "loss_weight": 0.0,
                },
                {"role": "tool", "content": [{"type": "text", "value": "48."}]},
                {"role": "assistant", "content": [{"type": "text", "value": "a"}], "loss_weight": 1.0},
            ]
        },
        Layout(),
    )
    assert isinstance(conversation, Conversation)
    assert conversation.messages == (
        {"role": "system", "content": "s"},
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "r", "thinking": "r", "tool_calls": [CALL]},
        {"role": "tool", "content": "48."},
        ANSWER,
    )
    assert conversation.masked == {2}


@pytest.mark.parametrize(
    ("part", "reason", "seen"),
    [
        ({"type": "image_url", "value": "x"}, "image_or_audio", "'image_url'"),
        ({"type": "document", "source": {}}, "bad_content", "'document', which is not known"),
        ({"type": "redacted_thinking", "data": "x"}, "bad_content", "'redacted_thinking', which is not known"),
        ({"type": "reasoning", "summary": []}, "bad_content", "'reasoning' without text"),
        ({"type": "tool_use", "input": {}}, "bad_message", "a tool call without a name"),
        ({"type": "tool_call", "value": "f()"}, "bad_message", "its tool calls are text"),
        ({"type": "tool_result", "content": "r"}, "bad_content", "a tool result inside a message of 'assistant'"),
        ({"type": "thinking", "thinking": "late"}, "bad_content", "reasoning behind text"),
    ],
)
def test_a_part_that_has_no_place_is_rejected_by_name(part: object, reason: str, seen: str) -> None:
    caught = rejected(USER, answer({"type": "text", "text": "a"}, part))
    assert caught.reason == reason
    assert seen in caught.detail


def test_an_order_that_templates_do_not_keep_is_rejected() -> None:
    call = {"type": "tool_use", "name": "f", "input": {}}
    assert "text behind a tool call" in rejected(USER, answer(call, {"type": "text", "text": "a"})).detail
    # White space says nothing, wherever it stands.
    assert read(USER, answer({"type": "text", "text": "a"}, call, {"type": "text", "text": "\n"})).messages


def test_what_stands_among_the_parts_and_beside_them_is_rejected() -> None:
    call = {"type": "tool_use", "name": "f", "input": {}}
    assert "tool_calls among the parts" in rejected(USER, {**answer(call), "tool_calls": [CALL]}).detail
    thought = {"type": "thinking", "thinking": "r"}
    assert "reasoning_content among" in rejected(USER, {**answer(thought, "a"), "reasoning_content": "s"}).detail
    assert (
        "is_error"
        in rejected(
            USER,
            ANSWER,
            {"role": "user", "content": [{"type": "tool_result", "content": "r", "is_error": True}]},
            ANSWER,
        ).detail
    )


def test_reasoning_under_two_names_must_be_the_same() -> None:
    same = {**ANSWER, "reasoning": "r", "reasoning_content": "r"}
    assert read(USER, same).messages[1] == {**same, "thinking": "r"}
    assert "reasoning_content and reasoning hold different texts" in rejected(USER, {**same, "reasoning": "s"}).detail
