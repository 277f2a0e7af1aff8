"""Columns under other people's names: in the conversation, named as unread, or rejected by name."""

from __future__ import annotations

import json

import pytest

from packer.conversation import Conversation, PlainText, Rejected
from packer.errors import UserError
from packer.formats import Layout, canonical
from packer.sources.column_map import parse_map

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def read(row: object, **layout: object) -> Conversation:
    conversation = canonical(row, Layout(**layout))  # type: ignore[arg-type]
    assert isinstance(conversation, Conversation)
    return conversation


def said(row: object, **layout: object) -> list[tuple[str, str]]:
    return [(str(message["role"]), str(message["content"])) for message in read(row, **layout).messages]


def rejected(row: object, **layout: object) -> Rejected:
    with pytest.raises(Rejected) as caught:
        canonical(row, Layout(**layout))  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("instruction", "output"),
        ("instruction", "response"),
        ("question", "answer"),
        ("question", "response"),
        ("query", "response"),
        ("prompt", "response"),
        ("prompt", "answer"),
        ("input", "output"),
        ("input", "response"),
        ("input", "answer"),
        ("prompt", "output"),
        ("question", "output"),
        ("query", "output"),
        ("query", "answer"),
        ("instruction", "answer"),
    ],
)
def test_the_common_pairs_are_a_question_and_an_answer(question: str, answer: str) -> None:
    conversation = read({question: "q", answer: "a"})
    assert conversation.messages == (USER, ANSWER)
    assert conversation.notes == ()
    assert said({"system": "s", question: "q", answer: "a", "context": "c"}) == [
        ("system", "s"),
        ("user", "q\n\nc"),
        ("assistant", "a"),
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # Dolly
        (
            {"instruction": "When?", "context": "In 1999.", "response": "1999", "category": "qa"},
            [("user", "When?\n\nIn 1999."), ("assistant", "1999")],
        ),
        # Alpaca with LLaMA-Factory's history: its answers are trained on as well
        (
            {"instruction": "c", "input": "", "output": "d", "history": [["a", "b"], ["x", "y"]]},
            [("user", "a"), ("assistant", "b"), ("user", "x"), ("assistant", "y"), ("user", "c"), ("assistant", "d")],
        ),
        (
            {"instruction": "c", "output": "d", "system": "s", "history": '[["a", "b"]]'},
            [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
        ),
        ({"instruction": "c", "output": "d", "history": []}, [("user", "c"), ("assistant", "d")]),
        # OpenOrca
        (
            {"id": "1", "system_prompt": "s", "question": "q", "response": "a"},
            [("system", "s"), ("user", "q"), ("assistant", "a")],
        ),
        ({"system": "s", "prompt": "q", "completion": "a"}, [("system", "s"), ("user", "q"), ("assistant", "a")]),
        ({"prompt": "q", "input": "i", "completion": "a"}, [("user", "q\n\ni"), ("assistant", "a")]),
        ({"instruction": "", "input": "i", "output": "a"}, [("user", "i"), ("assistant", "a")]),
        ({"instruction": None, "input": "i", "output": "a"}, [("user", "i"), ("assistant", "a")]),
    ],
)
def test_all_of_a_row_that_belongs_to_the_conversation_is_in_it(row: dict, expected: list) -> None:
    assert said(row) == expected
    assert read(row).first_target == 0


@pytest.mark.parametrize("answer", ["output", "response", "answer"])
def test_an_input_is_the_context_of_the_first_question_beside_it(answer: str) -> None:
    for question in ("instruction", "question", "query", "prompt"):
        conversation = read({"input": "i", question: "q", answer: "a"})
        assert conversation.messages == ({"role": "user", "content": "q\n\ni"}, ANSWER)
        assert conversation.notes == ()
    several = {"prompt": "p", "query": "y", "input": "i", answer: "a"}
    assert said(several) == [("user", "y\n\ni"), ("assistant", "a")]
    assert read(several).notes == (("unread column", "prompt"),)
    # A null is no question.
    assert said({"prompt": None, "input": "i", answer: "a"}) == [("user", "i"), ("assistant", "a")]


SYSTEM = {"role": "system", "content": "s"}
OTHER = {"role": "user", "content": "other"}


@pytest.mark.parametrize(
    ("prompt", "chosen", "first_target"),
    [
        ([USER], [USER, ANSWER], 1),
        ([SYSTEM, USER], [SYSTEM, USER, ANSWER], 2),
        ([USER, ANSWER, OTHER], [USER, ANSWER, OTHER, ANSWER, USER, ANSWER], 3),
        (json.dumps([USER]), json.dumps([USER, ANSWER]), 1),
        # What is the same in the answer and in the prompt is no repetition of the prompt.
        ([USER, ANSWER], [ANSWER], 2),
    ],
)
def test_a_completion_that_repeats_its_prompt_is_the_whole_conversation(
    prompt: object, chosen: object, first_target: int
) -> None:
    for row, layout in (
        ({"prompt": prompt, "completion": chosen}, {}),
        ({"prompt": prompt, "chosen": chosen}, {"map": (("completion", "chosen"),)}),
    ):
        conversation = read(row, **layout)
        whole = json.loads(chosen) if isinstance(chosen, str) else chosen
        expected = whole if whole[0] != ANSWER else [*prompt, *whole]  # type: ignore[misc]
        assert (list(conversation.messages), conversation.first_target) == (expected, first_target)


@pytest.mark.parametrize(
    ("prompt", "chosen"),
    [
        ([USER], [OTHER, ANSWER]),
        ([SYSTEM, USER], [USER, ANSWER]),
        ([USER], [SYSTEM, USER, ANSWER]),
        ([USER], [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]),
        ([USER], [json.dumps(OTHER), json.dumps(ANSWER)]),
    ],
)
def test_a_completion_that_begins_with_another_message_is_rejected_by_name(prompt: list, chosen: list) -> None:
    caught = rejected({"prompt": prompt, "chosen": chosen}, map=(("completion", "chosen"),))
    assert caught.reason == "bad_role"
    assert caught.detail.startswith("column 'chosen' begins with a message of ")
    assert caught.detail.endswith("and does not repeat what is asked (prompt)")


def test_a_list_behind_a_text_begins_with_the_assistant_too() -> None:
    whole = {"system": "s", "prompt": "q", "completion": [USER, ANSWER]}
    assert said(whole) == [("system", "s"), ("user", "q"), ("assistant", "a")]
    assert rejected({**whole, "prompt": "p"}).reason == "bad_role"
    assert said({"prompt": [], "completion": [USER, ANSWER]}) == [("user", "q"), ("assistant", "a")]


def test_prompt_and_completion_that_are_read_as_a_chat_are_counted() -> None:
    row = {"system": "s", "prompt": "q", "completion": "a"}
    assert read(row).notes == (("prompt and completion read as a chat", "system"),)
    for nothing in ({}, {"system": None}, {"tools": []}, {"tools": "[]"}, {"tools": ""}):
        assert canonical({"prompt": "q", "completion": "a", **nothing}, Layout()) == PlainText(
            prompt="q", completion="a"
        )


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({"instruction": "q", "output": "a", "history": [["x"]]}, "column 'history' holds a list that is not"),
        ({"instruction": "q", "output": "a", "history": "earlier"}, "column 'history' is text, not a list"),
        ({"instruction": "q", "output": "a", "context": ["x"]}, "column 'context' is a list, not text"),
        ({"question": "q", "answer": {"text": "a"}}, "column 'answer' is an object, not text"),
    ],
)
def test_what_cannot_be_read_beside_a_pair_is_rejected_by_name(row: dict, detail: str) -> None:
    assert detail in rejected(row).detail


def test_columns_that_nothing_reads_are_noted() -> None:
    ultrachat = {"prompt": "q", "prompt_id": "7", "messages": [USER, ANSWER]}
    assert read(ultrachat).notes == (("unread column", "prompt"), ("unread column", "prompt_id"))
    # A null is nothing; but of a column that is no known one, a reader of tables leaves the values out.
    assert read({"messages": [USER, ANSWER], "prompt": None, "tools": None, "other": None}).notes == (
        ("unread column", "other"),
    )
    assert canonical({"text": "t", "system": "s", "id": 1}, Layout()).notes == (
        ("unread column", "system"),
        ("unread column", "id"),
    )
    own_system = {"system": "s", "messages": [{"role": "system", "content": "own"}, USER, ANSWER]}
    assert read(own_system).notes == (("unread column", "system"),)
    two_answers = {"instruction": "q", "output": "a", "response": "b"}
    assert read(two_answers).notes == (("unread column", "response"),)


def test_rows_with_the_same_columns_and_other_nulls_are_read_each_by_itself() -> None:
    layout = Layout()
    rows = [
        {"messages": None, "text": "t"},
        {"messages": [USER, ANSWER], "text": "t"},
        {"messages": [USER, ANSWER], "text": None},
    ]
    kept = [canonical(row, layout) for row in rows * 2]
    assert [type(one).__name__ for one in kept] == ["PlainText", "Conversation", "Conversation"] * 2
    assert [one.notes for one in kept[:3]] == [(), (("unread column", "text"),), ()]


def test_a_map_names_columns_and_goes_before_the_common_names() -> None:
    row = {"q": "x", "a": "y", "sys": "s", "messages": [USER, ANSWER]}
    chat = parse_map(["instruction=q", "output=a", "system=sys"])
    assert said(row, map=chat) == [("system", "s"), ("user", "x"), ("assistant", "y")]
    assert read(row, map=chat).notes == (("unread column", "messages"),)
    text = canonical(row, Layout(map=parse_map(["prompt=q", "completion=a"])))
    assert isinstance(text, PlainText)
    assert (text.prompt, text.completion) == ("x", "y")
    assert said({"chat": [USER, ANSWER], "messages": "x"}, map=(("messages", "chat"),)) == [
        ("user", "q"),
        ("assistant", "a"),
    ]
    # One field of a pair; the other has its common name.
    assert said({"q": "x", "response": "y"}, map=(("instruction", "q"),)) == [("user", "x"), ("assistant", "y")]
    # `input` completes an instruction, or is the question itself.
    assert said({"instruction": "q", "ctx": "c", "output": "a"}, map=(("input", "ctx"),))[0] == ("user", "q\n\nc")
    assert said({"i": "q", "o": "a", "prompt": "p"}, map=(("input", "i"), ("output", "o")))[0] == ("user", "q")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert read({"messages": [USER, ANSWER], "fns": json.dumps(tools)}, map=(("tools", "fns"),)).tools == tools


def test_a_mapped_column_that_is_missing_is_named() -> None:
    row = {"question": "x", "answer": "y"}
    caught = rejected(row, map=parse_map(["prompt=question", "completion=anwser"]))
    assert (caught.reason, caught.detail) == ("no_messages", "no column 'anwser'; the row has: question, answer")
    # Of a field that a row need not have it is noted, and the build ends if no row has it.
    noted = read(row, map=(("system", "sys"),)).notes
    assert noted == (("mapped column not read", "system=sys"),)
    assert read({**row, "sys": None}, map=(("system", "sys"),)).notes == ()
    unused = read({"messages": [USER, ANSWER], "ctx": "c"}, map=(("context", "ctx"),)).notes
    assert unused == (("unread column", "ctx"), ("mapped column not read", "context=ctx"))


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        (["promt=x"], "--map promt: no such choice", "did you mean --map prompt?"),
        (["prompt"], "--map prompt: no column", "write --map prompt=COLUMN"),
        (["prompt="], "--map prompt=: no column", "write --map prompt=COLUMN"),
        (["prompt=x", "prompt=y"], "--map prompt=y: prompt was given before, as x", "give one of them"),
    ],
)
def test_a_map_that_cannot_be_is_two_lines(texts: list[str], message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_map(texts)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_column_and_a_map_are_not_given_together() -> None:
    with pytest.raises(UserError) as caught:
        Layout(column="chat", map=(("system", "s"),))
    assert caught.value.hint == "write --map messages=chat instead of --column"


def test_cells_that_hold_json_text_are_decoded() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    expected = [("user", "q"), ("assistant", "a")]
    assert said({"messages": json.dumps(messages)}) == expected
    assert said({"messages": json.dumps(json.dumps(messages))}) == expected
    assert said({"messages": [json.dumps(message) for message in messages]}) == expected
    shared = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    assert said({"conversations": json.dumps(shared)}) == expected
    conversation = read({"prompt": json.dumps(messages[:1]), "completion": json.dumps(messages[1:])})
    assert (conversation.messages, conversation.first_target) == ((USER, ANSWER), 1)
    # Text that only looks like it stays text.
    assert canonical({"prompt": "[1, 2", "completion": "[3]"}, Layout()) == PlainText(prompt="[1, 2", completion="[3]")
    # As pandas writes a list into CSV.
    caught = rejected({"messages": str(messages)})
    assert "column 'messages' is text that is not JSON of a list of messages" in caught.detail


def test_a_rows_own_arguments_go_to_the_template_and_are_counted() -> None:
    for value in ({"enable_thinking": False, "effort": "low"}, '{"enable_thinking": false, "effort": "low"}'):
        conversation = read({"messages": [USER, ANSWER], "chat_template_kwargs": value})
        assert conversation.template_args == {"enable_thinking": False, "effort": "low"}
        assert conversation.notes == (
            ("template argument", "enable_thinking=false"),
            ("template argument", 'effort="low"'),
        )
    for value in ("fast", ["x"], 1, {"messages": []}, {"add_generation_prompt": True}):
        assert rejected({"messages": [USER, ANSWER], "chat_template_kwargs": value}).reason == "bad_template_args"
