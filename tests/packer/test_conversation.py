"""Every row gets a verdict of its own: canonical messages, or a named reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.conversation import Conversation, PlainText, Rejected
from packer.formats import Layout, canonical
from packer.readers import without_nulls

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def reason(row: object) -> str:
    with pytest.raises(Rejected) as caught:
        canonical(row, Layout())
    return caught.value.reason


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("text", "not_an_object"),
        ([], "not_an_object"),
        (None, "not_an_object"),
        ({}, "no_messages"),
        ({"title": "x"}, "no_messages"),
        ({"messages": None}, "no_messages"),
        ({"messages": "hi"}, "bad_message"),
        ({"messages": {"role": "user"}}, "bad_message"),
        ({"messages": []}, "empty"),
        ({"messages": [None]}, "bad_message"),
        ({"messages": ["hi"]}, "bad_message"),
        ({"messages": [{"content": "hi"}]}, "bad_role"),
        ({"messages": [{"role": 3, "content": "hi"}]}, "bad_role"),
        ({"messages": [{"role": "narrator", "content": "hi"}]}, "bad_role"),
        ({"messages": [USER]}, "no_answer"),
        ({"messages": [{"role": "system", "content": "s"}]}, "no_answer"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "bad_content"),
        ({"messages": [USER, {"role": "assistant"}]}, "bad_content"),
        ({"messages": [USER, {"role": "assistant", "content": 7}]}, "bad_content"),
        ({"messages": [USER, {"role": "assistant", "content": "\ud800"}]}, "bad_content"),
        ({"messages": [USER, {"role": "assistant", "content": " \n"}]}, "empty_answer"),
        ({"messages": [USER, {"role": "assistant", "content": ""}, USER, ANSWER]}, "empty_answer"),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "image", "url": "x"}]}]}, "image_or_audio"),
        ({"messages": [USER, {**ANSWER, "tool_calls": "f()"}]}, "bad_message"),
    ],
)
def test_a_row_that_cannot_go_in_has_a_named_reason(row: object, expected: str) -> None:
    assert reason(row) == expected


@pytest.mark.parametrize("role", ["human", "Human ", "USER", " user"])
def test_roles_go_by_their_usual_names_in_any_case(role: str) -> None:
    assert canonical({"messages": [{"role": role, "content": "q"}, ANSWER]}, Layout()).messages[0]["role"] == "user"


@pytest.mark.parametrize("role", ["tool", "function", "observation", "Tool "])
def test_what_a_tool_answers_is_a_tools_whatever_it_is_called(role: str) -> None:
    row = {"messages": [USER, ANSWER, {"role": role, "content": "3 C"}, ANSWER]}
    assert messages_of(row)[2] == ("tool", "3 C")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"text": "b"}, "c"]
    assert (
        canonical({"messages": [USER, {"role": "assistant", "content": parts}]}, Layout()).messages[1]["content"]
        == "abc"
    )


def test_null_content_beside_a_tool_call_is_empty_text() -> None:
    row = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    assert messages_of(row)[1] == ("assistant", "")


def test_tool_arguments_are_the_same_from_a_string_and_from_an_object() -> None:
    as_text = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"x": 1})}}
    both = [canonical({"messages": [USER, {**ANSWER, "tool_calls": [call]}]}, Layout()) for call in (CALL, as_text)]
    assert both[0] == both[1]


def test_a_row_reads_the_same_from_json_and_from_parquet(tmp_path) -> None:
    """Arrow gives every message every key that any of them has."""
    rows = [{"messages": [USER, {**ANSWER, "tool_calls": [CALL]}]}, {"messages": [USER, ANSWER]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert "tool_calls" in read[1]["messages"][0], "the round trip should have added null keys"
    assert [canonical(without_nulls(row), Layout()) for row in read] == [canonical(row, Layout()) for row in rows]


def test_the_row_given_is_left_as_it_was() -> None:
    row = {"messages": [USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}
    before = json.dumps(row)
    canonical(row, Layout())
    assert json.dumps(row) == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "messages", "tool_calls", "text", "x"]), inner)
    ),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "assistant", "tool", "gpt", "x"]) | json_values,
            "content": json_values,
            "tool_calls": json_values,
        },
    ),
    max_size=4,
)


@given(json_values | st.fixed_dictionaries({"messages": messages}))
def test_any_json_value_gets_a_verdict(row: object) -> None:
    try:
        kept = canonical(row, Layout())
    except Rejected as rejected:
        seen = (rejected.reason, rejected.detail)
        assert all(seen)  # a verdict, and what it must have
        return
    if isinstance(kept, Conversation):
        assert all(isinstance(message["content"], str) and message["role"] for message in kept.messages)
    else:
        assert isinstance(kept, PlainText)
        assert kept.completion


def messages_of(row: dict, layout: Layout | None = None) -> list[tuple[str, str]]:
    read = canonical(row, layout or Layout())
    assert isinstance(read, Conversation)
    return [(str(message["role"]), str(message["content"])) for message in read.messages]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"from": "Human", "value": "q"}, {"from": "GPT ", "value": "a"}]},
        {"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]},
        {"conversations": [{"role": "user", "content": "q"}, {"role": "bot", "content": "a"}]},
        {"instruction": "q", "input": "", "output": "a"},
        {"instruction": "q", "response": "a"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"prompt": [USER], "completion": "a"},
        {"messages": None, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    ],
)
def test_every_known_format_gives_the_same_conversation(row: dict) -> None:
    assert messages_of(row) == [("user", "q"), ("assistant", "a")]


def test_instructions_carry_their_input_and_system() -> None:
    row = {"instruction": "translate", "input": "Hund", "output": "dog", "system": "be brief"}
    assert messages_of(row) == [("system", "be brief"), ("user", "translate\n\nHund"), ("assistant", "dog")]
    assert messages_of(
        {"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    )[0] == ("system", "s")


def test_prompt_and_completion_as_text_stay_text() -> None:
    assert canonical({"prompt": "a", "completion": "b"}, Layout()) == PlainText(prompt="a", completion="b")
    assert canonical({"text": "a"}, Layout()) == PlainText(prompt="", completion="a")


def test_where_columns_compete_the_documented_order_decides_and_can_be_overruled() -> None:
    row = {
        "messages": [USER, ANSWER],
        "prompt": "p",
        "completion": "c",
        "text": "t",
        "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}],
    }
    assert messages_of(row)[0] == ("user", "q")
    assert messages_of(row, Layout(format="sharegpt"))[0] == ("user", "x")
    assert canonical(row, Layout(format="text")) == PlainText(prompt="", completion="t")
    assert canonical(row, Layout(format="prompt-completion")) == PlainText(prompt="p", completion="c")
    assert canonical({"messages": "a plain text"}, Layout(format="text", column="messages")) == PlainText(
        prompt="", completion="a plain text"
    )
    assert messages_of({"chat": [USER, ANSWER], "messages": []}, Layout(column="chat"))[1] == ("assistant", "a")


def test_only_the_completion_of_a_prompt_is_trained_on() -> None:
    read = canonical({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]}, Layout())
    assert isinstance(read, Conversation)
    assert read.first_target == 3
    assert reason({"prompt": [USER, ANSWER], "completion": [USER]}) == "no_answer"


def test_a_null_that_json_wrote_into_arguments_stays() -> None:
    call = {"function": {"name": "f", "arguments": {"x": None}}}
    read = canonical({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}, Layout())
    assert read.messages[1]["tool_calls"] == [call]


def test_tools_may_be_json_text() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for given_tools in (tools, json.dumps(tools)):
        assert canonical({"messages": [USER, ANSWER], "tools": given_tools}, Layout()).tools == tools
    assert reason({"messages": [USER, ANSWER], "tools": "{"}) == "bad_message"
