"""Tool calls and definitions: one form for templates, whatever form the data has, and the data's own text where it had one."""

from __future__ import annotations

import json

import pytest

from packer.conversation import Conversation, Rejected
from packer.formats import Layout, canonical
from packer.sources.tool_call_forms import with_text_arguments

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
FUNCTION = {"name": "f", "arguments": {"x": 1}}
CALL = {"type": "function", "function": FUNCTION}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}


def read(*messages: object, **columns: object) -> Conversation:
    conversation = canonical({"messages": list(messages), **columns}, Layout())
    assert isinstance(conversation, Conversation)
    return conversation


def calling(calls: object) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    "calls",
    [
        [CALL],
        [FUNCTION],
        [json.dumps(CALL)],
        json.dumps([CALL]),
        json.dumps([FUNCTION]),
        json.dumps(json.dumps([CALL])),
        FUNCTION,
        [{"type": "function", "function": json.dumps(FUNCTION)}],
        [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        [{"type": "function", "function": {"name": "f", "arguments": json.dumps('{"x": 1}')}}],
        [{"name": "f", "parameters": {"x": 1}}],
        # LangChain
        [{"name": "f", "args": {"x": 1}, "type": "tool_call"}],
    ],
)
def test_calls_have_one_form(calls: object) -> None:
    assert read(USER, calling(calls)).messages[1]["tool_calls"] == [CALL]


def test_a_bare_call_keeps_its_id() -> None:
    (call,) = read(USER, calling([{"id": "c1", **FUNCTION}])).messages[1]["tool_calls"]
    assert call == {"id": "c1", **CALL}


@pytest.mark.parametrize("role", ["function_call", "tool_call", "tool-call", "Function_Call"])
@pytest.mark.parametrize("content", [FUNCTION, CALL, [FUNCTION]])
def test_turns_that_are_calls_are_the_assistants(role: str, content: object) -> None:
    conversation = read(
        USER, {"role": role, "content": json.dumps(content)}, {"role": "tool_response", "content": "3"}, ANSWER
    )
    assert conversation.messages == (
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
        ANSWER,
    )


def test_reasoning_before_the_json_of_a_call_is_reasoning() -> None:
    text = f"<think>\nr\n</think>\n\n{json.dumps(FUNCTION)}"
    message = read(USER, {"role": "function_call", "content": text}).messages[1]
    assert message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "r",
        "thinking": "r",
        "tool_calls": [CALL],
    }


def test_calls_in_a_row_are_one_turn_and_go_on_with_the_text_before_them() -> None:
    """As ms-swift joins them: else the model would learn to end its turn after the first."""
    called = {"role": "tool_call", "content": json.dumps(FUNCTION)}
    assert read(USER, called, called).messages[1:] == (
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    )
    assert read(USER, ANSWER, called).messages[1:] == ({**ANSWER, "tool_calls": [CALL]},)
    conversation = read(USER, {**ANSWER, "loss": False}, {**called, "loss": False}, USER, ANSWER)
    assert conversation.masked == {1}
    with pytest.raises(Rejected, match="bad_weight"):
        read(USER, ANSWER, {**called, "loss": False})
    with pytest.raises(Rejected, match="reasoning between"):
        read(USER, ANSWER, {**called, "reasoning_content": "r"})


@pytest.mark.parametrize(
    "calls",
    [
        [{"id": "1", "index": 0, "type": "function", "function": {**FUNCTION, "output": "r"}, "thought": "t"}],
        [{"id": "1", **FUNCTION, "output": "r", "thought": "t"}],
        [json.dumps({**FUNCTION, "thought": "t", "output": "r"})],
        json.dumps([{**CALL, "thought": "t", "output": "r", "content": None}]),
    ],
)
def test_keys_of_a_call_that_nothing_reads_are_noted(calls: object) -> None:
    expected = [("unread key of a tool call", "output"), ("unread key of a tool call", "thought")]
    assert sorted(read(USER, calling(calls)).notes) == expected
    assert read(USER, calling([{"id": "1", "index": 0, **CALL}])).notes == ()


def test_keys_of_a_spelled_call_and_of_a_part_that_nothing_reads_are_noted() -> None:
    spelled = {"from": "function_call", "value": json.dumps({**FUNCTION, "thought": "I need f"})}
    result = {"from": "observation", "value": "3"}
    row = {"conversations": [{"from": "human", "value": "q"}, spelled, result, {"from": "gpt", "value": "a"}]}
    assert canonical(row, Layout()).notes == (("unread key of a tool call", "thought"),)
    part = {"type": "tool_call", "id": "c1", "tool_call": {**CALL, "thought": "t"}}
    assert sorted(read(USER, {"role": "assistant", "content": [part]}).notes) == [
        ("unread key of a content part", "tool_call.id"),
        ("unread key of a tool call", "thought"),
    ]


@pytest.mark.parametrize("arguments", ['{"a":1,"a":2}', '{"b": {"a": 1, "a": 1}}', json.dumps('{"a":1,"a":2}')])
def test_arguments_with_a_key_twice_stay_the_text_they_are(arguments: str) -> None:
    for call in ({"name": "f", "arguments": arguments}, {"function": {"name": "f", "arguments": arguments}}):
        for calls in ([call], json.dumps([call])):
            (found,) = read(USER, calling(calls)).messages[1]["tool_calls"]
            assert found["function"]["arguments"] == arguments


@pytest.mark.parametrize(
    "message",
    [
        {"role": "function_call", "content": '{"name": "f", "arguments": {"a": 1, "a": 2}}'},
        calling('[{"name": "f", "arguments": {"a": 1, "a": 2}}]'),
        calling(['{"name": "f", "arguments": {"a": 1, "a": 2}}']),
        calling([{"function": '{"name": "f", "arguments": {"a": 1, "a": 2}}'}]),
    ],
)
def test_a_call_that_is_text_with_a_key_twice_is_rejected(message: dict) -> None:
    with pytest.raises(Rejected, match="bad_message"):
        read(USER, message)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"content": "", "reasoning_content": "r"}, "gives reasoning but no answer"),
        ({"content": " ", "thinking": "r"}, "gives reasoning but no answer"),
        ({"content": "<think>r</think>\n"}, "gives reasoning but no answer"),
        ({"content": [{"type": "reasoning", "text": "r"}]}, "gives reasoning but no answer"),
        ({"content": "<think>\n</think>\n"}, "says nothing"),
        ({"content": "", "reasoning_content": " "}, "says nothing"),
        ({"content": ""}, "says nothing"),
    ],
)
def test_an_empty_answer_is_named_as_what_it_is(message: dict, says: str) -> None:
    with pytest.raises(Rejected) as caught:
        read(USER, {"role": "assistant", **message})
    assert (caught.value.reason, caught.value.detail) == ("empty_answer", f"message 1: the assistant {says}")


def test_joining_calls_leaves_the_row_as_it_was() -> None:
    row = {"messages": [USER, dict(ANSWER), {"role": "tool_call", "content": json.dumps(FUNCTION)}]}
    before = json.dumps(row)
    canonical(row, Layout())
    assert json.dumps(row) == before


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("ai", "assistant"),
        ("AI", "assistant"),
        ("chatbot", "assistant"),
        ("prompter", "user"),
        ("tool_result", "tool"),
        ("function_response", "tool"),
        ("function-response", "tool"),
        ("observation", "tool"),
    ],
)
def test_roles_of_other_tools(role: str, expected: str) -> None:
    assert read(USER, ANSWER, {"role": role, "content": "x"}, ANSWER).messages[2]["role"] == expected


@pytest.mark.parametrize(
    "tools",
    [
        [TOOL],
        json.dumps([TOOL]),
        [json.dumps(TOOL)],
        json.dumps([json.dumps(TOOL)]),
        json.dumps(json.dumps([TOOL])),
        [{"type": "function", "function": json.dumps(TOOL["function"])}],
        [{"type": "function", "function": {"name": "f", "parameters": json.dumps(TOOL["function"]["parameters"])}}],
        [
            {
                "type": "function",
                "function": {"name": "f", "parameters": {"type": "object", "properties": '{"x": {"type": "integer"}}'}},
            }
        ],
    ],
)
def test_tools_are_objects_however_they_are_stored(tools: object) -> None:
    assert read(USER, ANSWER, tools=tools).tools == [TOOL]


def test_functions_are_tools_under_their_older_name() -> None:
    for functions in ([TOOL["function"]], json.dumps([TOOL["function"]])):
        assert read(USER, ANSWER, functions=functions).tools == [TOOL]
    with pytest.raises(Rejected, match="column 'functions' is text, not a list"):
        read(USER, ANSWER, functions="search")


@pytest.mark.parametrize("nothing", ["", " ", "[]", [], {}, None])
def test_no_tools_are_none(nothing: object) -> None:
    assert read(USER, ANSWER, tools=nothing).tools is None


@pytest.mark.parametrize(
    ("tools", "detail"),
    [
        ("search", "tools is text, but not JSON of a list of tools"),
        (["search"], "a tool is text, not an object"),
        (TOOL, "tools is an object, not a list"),
        (7, "tools is a number, not a list"),
    ],
)
def test_tools_that_are_none_are_rejected_by_name(tools: object, detail: str) -> None:
    with pytest.raises(Rejected) as caught:
        read(USER, ANSWER, tools=tools)
    assert (caught.value.reason, caught.value.detail) == ("bad_message", detail)


def test_arguments_can_be_had_as_text_again_and_as_the_datas_own() -> None:
    spelled = '{"b":1,  "a": "\\u00fc"}'
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": spelled}},
        {"type": "function", "function": {"name": "g", "arguments": {"a": "ü", "b": None}}},
        {"type": "function", "function": {"name": "h", "arguments": "no JSON"}},
        {"type": "function", "function": {"name": "i"}},
    ]
    conversation = read(USER, calling(calls))
    functions = [call["function"] for call in conversation.messages[1]["tool_calls"]]
    assert functions[0]["arguments"] == {"b": 1, "a": "ü"}
    user, message = with_text_arguments(conversation.messages)
    assert user is conversation.messages[0]
    assert [call["function"].get("arguments") for call in message["tool_calls"]] == [
        spelled,
        '{"a": "ü", "b": null}',
        "no JSON",
        None,
    ]
    # What it is made from stays as it was.
    assert functions[0]["arguments"] == {"b": 1, "a": "ü"}
