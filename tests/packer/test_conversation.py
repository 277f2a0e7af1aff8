"""Every row gets a verdict of its own: canonical messages, or a named reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.conversation import Rejected, canonical

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def reason(row: object) -> str:
    with pytest.raises(Rejected) as caught:
        canonical(row, column="messages")
    return caught.value.reason


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("text", "not_an_object"),
        ([], "not_an_object"),
        (None, "not_an_object"),
        ({}, "no_messages"),
        ({"text": "x"}, "no_messages"),
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
    assert canonical({"messages": [{"role": role, "content": "q"}, ANSWER]}, column="messages")[0]["role"] == "user"


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"text": "b"}, "c"]
    assert (
        canonical({"messages": [USER, {"role": "assistant", "content": parts}]}, column="messages")[1]["content"]
        == "abc"
    )


def test_null_content_beside_a_tool_call_is_empty_text() -> None:
    messages = canonical(
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}, column="messages"
    )
    assert messages[1]["content"] == ""


def test_tool_arguments_are_the_same_from_a_string_and_from_an_object() -> None:
    as_text = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"x": 1})}}
    both = [
        canonical({"messages": [USER, {**ANSWER, "tool_calls": [call]}]}, column="messages") for call in (CALL, as_text)
    ]
    assert both[0] == both[1]


def test_a_row_reads_the_same_from_json_and_from_parquet(tmp_path) -> None:
    """Arrow gives every message every key that any of them has."""
    rows = [{"messages": [USER, {**ANSWER, "tool_calls": [CALL]}]}, {"messages": [USER, ANSWER]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert "tool_calls" in read[1]["messages"][0], "the round trip should have added null keys"
    assert [canonical(row, column="messages") for row in read] == [canonical(row, column="messages") for row in rows]


def test_the_row_given_is_left_as_it_was() -> None:
    row = {"messages": [USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}
    before = json.dumps(row)
    canonical(row, column="messages")
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
        kept = canonical(row, column="messages")
    except Rejected as rejected:
        kept = []
        seen = (rejected.reason, rejected.detail)
        assert all(seen)  # a verdict, and what it must have
    assert all(isinstance(message["content"], str) and message["role"] for message in kept)
