"""Every row gets a verdict of its own: canonical messages, or a named reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.conversation import Conversation, PlainText, Rejected
from packer.errors import UserError
from packer.formats import Layout, canonical
from packer.readers import read_file
from packer.sources.arrow_rows import without_nulls

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
        ({"messages": [USER, {**ANSWER, "tool_calls": ["f()"]}]}, "bad_message"),
        ({"messages": [USER, {**ANSWER, "tool_calls": [{"function": None}]}]}, "bad_message"),
        ({"messages": [USER, {**ANSWER, "function_call": "f()"}]}, "bad_message"),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "bad_message"),
        ({"conversations": [{"from": "function_call", "value": "[]"}]}, "bad_message"),
        ({"messages": [USER, {**ANSWER, "reasoning_content": 7}]}, "bad_content"),
        ({"messages": [USER, {**ANSWER, "thinking": ["r"]}]}, "bad_content"),
        ({"messages": [USER, {"role": "assistant", "content": "\u200b \ufeff"}]}, "empty_answer"),
        ({"messages": [USER, {"role": "assistant", "content": "<think>\nr\n</think>\n\n"}]}, "empty_answer"),
        ({"messages": [USER, {"role": "assistant", "content": "r\n</think>"}]}, "empty_answer"),
        ({"prompt": "p", "completion": "\u200b"}, "empty_answer"),
        ({"text": "\n\u200b"}, "empty"),
        ({"messages": [USER, ANSWER], "system": 7}, "bad_content"),
        ({"messages": [], "system": "s"}, "empty"),
    ],
)
def test_a_row_that_cannot_go_in_has_a_named_reason(row: object, expected: str) -> None:
    assert reason(row) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "image_or_audio"),
        ({"type": "input_audio", "input_audio": {}}, "image_or_audio"),
        ({"type": "video", "text": "a caption"}, "image_or_audio"),
        ({"text": "a caption", "image": "x.png"}, "image_or_audio"),
        ({"type": "text"}, "bad_content"),
        ({"type": "text", "text": 7}, "bad_content"),
        ({"type": "thinking", "thinking": "r"}, "bad_content"),
        (["a"], "bad_content"),
        (None, "bad_content"),
    ],
)
def test_a_part_that_is_not_text_is_not_left_out_in_silence(part: object, expected: str) -> None:
    assert (
        reason({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}, ANSWER]}) == expected
    )


@pytest.mark.parametrize("empty", ["", " ", "\u200b", "<think>\n\n</think>\n\n"])
def test_where_empty_answers_are_masked_something_must_be_left_to_train_on(empty: str) -> None:
    nothing = {"role": "assistant", "content": empty}
    mask = Layout(empty_answers="mask")
    read = canonical({"messages": [USER, nothing, USER, ANSWER]}, mask)
    assert isinstance(read, Conversation)
    assert read.masked == {1}
    for row in (
        {"messages": [USER, nothing]},
        {"prompt": [USER, ANSWER, USER], "completion": [nothing]},
    ):
        with pytest.raises(Rejected, match="empty_answer"):
            canonical(row, mask)


def test_an_answer_behind_thoughts_or_about_them_is_an_answer() -> None:
    for text in ("<think>r</think>a", "r</think>a", "write <think>r</think>", "<think>r", "<think><think>a</think>"):
        assert messages_of({"messages": [USER, {"role": "assistant", "content": text}]})[1] == ("assistant", text)


@pytest.mark.parametrize("role", ["human", "Human ", "USER", " user"])
def test_roles_go_by_their_usual_names_in_any_case(role: str) -> None:
    assert canonical({"messages": [{"role": role, "content": "q"}, ANSWER]}, Layout()).messages[0]["role"] == "user"


@pytest.mark.parametrize("role", ["tool", "function", "observation", "ipython", "Tool "])
def test_what_a_tool_answers_is_a_tools_whatever_it_is_called(role: str) -> None:
    row = {"messages": [USER, ANSWER, {"role": role, "content": "3 C"}, ANSWER]}
    assert messages_of(row)[2] == ("tool", "3 C")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b", "image": None}, "c"]
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
            "function_call": json_values,
            "reasoning": json_values,
            "value": json_values,
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
        {"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"from": "human", "content": "q"}, {"role": "gpt", "value": "a"}]},
        {"prompt": [{"from": "human", "value": "q"}], "completion": [{"from": "gpt", "value": "a"}]},
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


@pytest.mark.parametrize("role", ["system", "System ", "developer"])
@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_a_system_prompt_in_a_column_of_its_own_goes_first_and_once(column: str, role: str) -> None:
    assert messages_of({"system": "s", column: [USER, ANSWER]}) == [("system", "s"), ("user", "q"), ("assistant", "a")]
    row = {"system": "s", column: [{"role": role, "content": "own"}, USER, ANSWER]}
    assert [text for _, text in messages_of(row)] == ["own", "q", "a"]


def test_a_system_prompt_of_its_own_moves_what_a_completion_is_trained_on() -> None:
    read = canonical({"system": "s", "prompt": [USER, ANSWER, USER], "completion": [ANSWER]}, Layout())
    assert isinstance(read, Conversation)
    assert (read.messages[0]["role"], read.first_target) == ("system", 4)


def test_calls_and_tools_under_their_older_names_are_calls_and_tools() -> None:
    function = {"name": "f", "arguments": '{"x": 1}'}
    definition = {"name": "f", "parameters": {"type": "object"}}
    answered = [{"role": "function", "name": "f", "content": "2"}, ANSWER]
    for row in (
        {"messages": [USER, {"role": "assistant", "content": None, "function_call": function}, *answered]},
        {"conversations": [USER, {"from": "function_call", "value": json.dumps(function)}, *answered]},
        {"conversations": [USER, {"from": "function_call", "value": json.dumps([function])}, *answered]},
    ):
        read = canonical({**row, "functions": [definition]}, Layout())
        assert isinstance(read, Conversation)
        assert read.tools == [{"type": "function", "function": definition}]
        (call,) = read.messages[1]["tool_calls"]
        assert call.get("function", call) == {"name": "f", "arguments": {"x": 1}}
        assert (read.messages[1]["role"], read.messages[1]["content"]) == ("assistant", "")
        assert read.messages[2]["role"] == "tool"
        assert "function_call" not in read.messages[1]


@pytest.mark.parametrize("form", ["prompt-completion", "instruction"])
def test_a_column_is_not_named_for_a_format_that_reads_several(form: str) -> None:
    with pytest.raises(UserError, match=rf"--column x: --format {form} reads several columns"):
        Layout(format=form, column="x")


@pytest.mark.parametrize("known", [None, "a prompt, and no completion"])
def test_a_row_of_a_table_names_every_column_that_the_table_has(tmp_path, known: str | None) -> None:
    pq.write_table(pa.table({"chat": ["x"], "prompt": [known], "id": [7]}), tmp_path / "rows.parquet")
    (row,) = read_file(str(tmp_path / "rows.parquet"), Layout().columns)
    with pytest.raises(Rejected, match="no column 'messages'; the row has: chat, prompt, id"):
        canonical(row.value, Layout())


def test_an_empty_completion_goes_in_where_empty_answers_are_kept() -> None:
    row = {"prompt": "a", "completion": " "}
    assert canonical(row, Layout(empty_answers="keep")) == PlainText(prompt="a", completion=" ")
    with pytest.raises(Rejected, match="empty_answer"):
        canonical(row, Layout(empty_answers="mask"))


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
    text, pair = canonical(row, Layout(format="text")), canonical(row, Layout(format="prompt-completion"))
    assert isinstance(text, PlainText)
    assert isinstance(pair, PlainText)
    assert (text.prompt, text.completion) == ("", "t")
    assert (pair.prompt, pair.completion) == ("p", "c")
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
