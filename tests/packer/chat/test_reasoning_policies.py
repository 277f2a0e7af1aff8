"""Reasoning in every turn of real chats under the templates of reasoning models: each policy trains on what it says, and what is left out is counted.

What is right is worked out from the texts alone: every thought is a sentence of its own, so it can be found again in what is decoded.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from packer.chat.load_renderer import make_renderer
from packer.conversation import Rejected
from packer.errors import GateError, UserError
from packer.intake import enforce_print_limit
from packer.render import Example, Policies, Renderer
from packer.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.chat_oracle import DATE, fixed_date
from tests.fixtures.genuine_tokenizers import chat_template, genuine_tokenizer

_TRL = importlib.util.find_spec("trl")
_FOLDER = Path(next(iter(_TRL.submodule_search_locations))) / "chat_templates" if _TRL else Path("missing")
# Of reasoning models, all on ChatML's tokens; the first is the vocabulary's own.
_TEMPLATES = ("qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(str(genuine_tokenizer("qwen3")))


def source_of(name: str) -> str:
    if name == "qwen3":
        return chat_template(genuine_tokenizer("qwen3"))
    file = _FOLDER / f"{name}.jinja"
    if not file.is_file():
        pytest.skip("trl, whose templates these are, is not installed")
    return file.read_text(encoding="utf-8")


def renderer(tokenizer: Tokenizer, name: str, reasoning: str, **args: object) -> Renderer:
    date = datetime.date(2026, 1, 31)
    return make_renderer(tokenizer, [source_of(name)], Policies(reasoning=reasoning), date=date, args=args)


def thoughtful(lines: Iterator[str], *, inline: bool = False) -> list[dict]:
    """Real chats with a thought of its own before each answer."""
    rows = []
    for number, line in enumerate(lines):
        messages = json.loads(line)["messages"]
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                thought = f"Thought {turn} of chat {number} is about {message['content'][:40].split()[:4]}."
                if inline:
                    message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
                else:
                    message["reasoning_content"] = thought
        rows.append({"messages": messages})
    return rows


def thoughts_of(row: dict) -> list[str]:
    return [
        message.get("reasoning_content") or message["content"].partition("\n</think>")[0].removeprefix("<think>\n")
        for message in row["messages"]
        if message["role"] == "assistant"
    ]


def trained_text(tokenizer: Tokenizer, example: Example) -> str:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], example.loss_mask.astype(int), [0]]))).reshape(-1, 2)
    return "\0".join(tokenizer.decode(example.ids[start:end].tolist()) for start, end in edges)


@pytest.fixture(params=[pytest.param(25, id="some"), pytest.param(1, id="all", marks=pytest.mark.full)])
def lines(request: pytest.FixtureRequest, real_rows: Path) -> list[str]:
    return real_rows.read_text(encoding="utf-8").splitlines()[:: request.param]


@pytest.mark.parametrize("inline", [False, True], ids=["field", "text"])
@pytest.mark.parametrize("name", _TEMPLATES)
def test_every_turn_trains_on_each_thought_once(
    tokenizer: Tokenizer, lines: list[str], name: str, inline: bool
) -> None:
    rows = thoughtful(iter(lines), inline=inline)
    made = renderer(tokenizer, name, "every-turn").all_examples(rows)
    for row, outcome in zip(rows, made, strict=True):
        assert not isinstance(outcome, Rejected), outcome
        thoughts = thoughts_of(row)
        assert len(outcome) == len(thoughts)
        for example, thought in zip(outcome, thoughts, strict=True):
            assert trained_text(tokenizer, example).count(thought) == 1
        trained = "\0".join(trained_text(tokenizer, example) for example in outcome)
        assert Counter({thought: trained.count(thought) for thought in thoughts}) == Counter(dict.fromkeys(thoughts, 1))


@pytest.mark.parametrize("inline", [False, True], ids=["field", "text"])
@pytest.mark.parametrize("name", _TEMPLATES)
def test_what_the_template_prints_and_what_it_leaves_out_is_all(
    tokenizer: Tokenizer, lines: list[str], name: str, inline: bool
) -> None:
    rows = thoughtful(iter(lines), inline=inline)
    made = renderer(tokenizer, name, "template").examples(rows)
    printed = missing = missing_tokens = 0
    notes: Counter[tuple[str, str]] = Counter()
    for row, example in zip(rows, made, strict=True):
        assert isinstance(example, Example), example
        text, trained = tokenizer.decode(example.ids.tolist()), trained_text(tokenizer, example)
        notes.update(example.notes)
        for thought in thoughts_of(row):
            assert text.count(thought) == trained.count(thought)
            if thought in text:
                printed += 1
            else:
                missing += 1
                missing_tokens += len(tokenizer.place(thought).ids)
    assert printed + missing == sum(len(thoughts_of(row)) for row in rows)
    assert printed
    assert notes["not printed by the template (messages)", "reasoning"] == missing
    if not inline:
        # In the text, line ends between tag and thought are counted with it.
        assert notes["not printed by the template (tokens)", "reasoning"] == missing_tokens


@pytest.mark.parametrize("inline", [False, True], ids=["field", "text"])
@pytest.mark.parametrize("name", _TEMPLATES)
def test_context_prints_thoughts_and_trains_on_none(
    tokenizer: Tokenizer, real_rows: Path, name: str, inline: bool
) -> None:
    rows = thoughtful(iter(real_rows.read_text(encoding="utf-8").splitlines()[:25]), inline=inline)
    plain = renderer(tokenizer, name, "template").examples(rows)
    for row, whole, example in zip(rows, plain, renderer(tokenizer, name, "context").examples(rows), strict=True):
        assert isinstance(example, Example), example
        assert example.ids.tolist() == whole.ids.tolist()
        trained = trained_text(tokenizer, example)
        assert "Thought" not in trained
        assert "think>" not in trained
        assert all(
            m["content"].split("</think>")[-1].strip()[:30] in trained
            for m in row["messages"]
            if m["role"] == "assistant"
        )


@pytest.mark.parametrize("inline", [False, True], ids=["field", "text"])
def test_strip_gives_the_ids_of_rows_without_thoughts(tokenizer: Tokenizer, real_rows: Path, inline: bool) -> None:
    lines = real_rows.read_text(encoding="utf-8").splitlines()[:25]
    rows = thoughtful(iter(lines), inline=inline)
    bare = renderer(tokenizer, "qwen3", "template").examples(
        [{"messages": json.loads(line)["messages"]} for line in lines]
    )
    for row, other, example in zip(rows, bare, renderer(tokenizer, "qwen3", "strip").examples(rows), strict=True):
        assert (example.ids.tolist(), example.loss_mask.tolist()) == (other.ids.tolist(), other.loss_mask.tolist())
        assert example.notes["removed (messages)", "reasoning"] == len(thoughts_of(row))


def test_an_answer_that_speaks_of_the_tag_keeps_its_words(tokenizer: Tokenizer) -> None:
    row = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The </think> tag closes it."}]
    }
    for reasoning in ("template", "strip"):
        (example,) = renderer(tokenizer, "qwen3_8", reasoning).examples([row])
        assert "The </think> tag closes it." in trained_text(tokenizer, example)
        assert not example.notes


def test_an_example_per_turn_has_the_ids_that_inference_sees(tokenizer: Tokenizer, real_rows: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(genuine_tokenizer("qwen3"))
    rows = thoughtful(iter(real_rows.read_text(encoding="utf-8").splitlines()[:10]))
    for row, outcome in zip(rows, renderer(tokenizer, "qwen3", "every-turn").all_examples(rows), strict=True):
        places = [n for n, message in enumerate(row["messages"]) if message["role"] == "assistant"]
        for place, example in zip(places, outcome, strict=True):
            prompt = theirs.apply_chat_template(
                row["messages"][:place], tokenize=True, add_generation_prompt=True, return_dict=False
            )
            assert example.ids[: len(prompt)].tolist() == prompt
            assert not example.loss_mask[: len(prompt)].any()
            assert example.loss_mask[len(prompt)]


def test_template_arguments_reach_the_template(tokenizer: Tokenizer) -> None:
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (low,) = renderer(tokenizer, "qwen3_8", "template", reasoning_effort="low").examples([row])
    (own,) = renderer(tokenizer, "qwen3_8", "template").examples(
        [{**row, "chat_template_kwargs": {"reasoning_effort": "low"}}]
    )
    (default,) = renderer(tokenizer, "qwen3_8", "template").examples([row])
    assert low.ids.tolist() == own.ids.tolist() != default.ids.tolist()
    assert "xhigh" in renderer(tokenizer, "qwen3_8", "template").written_first
    (unknown,) = renderer(tokenizer, "qwen3_8", "template").examples([{**row, "chat_template_kwargs": {"zeal": 1}}])
    assert isinstance(unknown, Rejected)
    assert (unknown.reason, "zeal" in unknown.detail) == ("template_argument", True)
    with pytest.raises(UserError, match="never reads it"):
        renderer(tokenizer, "qwen3", "template", enable_thinkin=False)


def test_rows_with_tools_take_the_template_for_tools(tokenizer: Tokenizer) -> None:
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    both = ["plain " + chatml, "tools {{ tools|tojson }} " + chatml]
    made = make_renderer(tokenizer, both, Policies(), date=None, args={})
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    plain, tools = made.examples([row, {**row, "tools": [{"type": "function", "function": {"name": "f"}}]}])
    assert tokenizer.decode(plain.ids.tolist()).startswith("plain <|im_start|>")
    assert tokenizer.decode(tools.ids.tolist()).startswith('tools [{"type"')


@pytest.mark.parametrize(
    ("limit", "left_out", "fails"),
    [
        (None, {"tools": 9}, False),
        (None, {"tools": 11}, True),
        (None, {"reasoning": 500}, False),
        ("1%", {"reasoning": 500}, True),
        ("100%", {"tools": 500}, False),
    ],
)
def test_what_a_template_may_leave_out_has_a_limit(limit: str | None, left_out: dict[str, int], fails: bool) -> None:
    from fractions import Fraction

    share = None if limit is None else Fraction(int(limit[:-1]), 100)
    notes = {"not printed by the template (tokens)": left_out}
    if fails:
        with pytest.raises(GateError, match="leaves out"):
            enforce_print_limit(notes, encoded=1000, limit=share)
    else:
        enforce_print_limit(notes, encoded=1000, limit=share)


def test_a_turn_stands_behind_the_prompt_of_inference_where_the_template_drops_what_came_before() -> None:
    """gpt-oss leaves out the reasoning of a call once it has been answered; when the answer is to be written, it is there."""
    from transformers import AutoTokenizer

    folder = genuine_tokenizer("gptoss")
    ours, theirs = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    made = make_renderer(ours, [chat_template(folder)], Policies(reasoning="every-turn"), date=DATE.date(), args={})
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "k"}}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "thinking": "t1", "tool_calls": [call]},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "content": "m", "thinking": "t2"},
        {"role": "user", "content": "the end of it"},
    ]
    ((first, second),) = made.all_examples([{"messages": messages}])
    for example, before in ((first, 1), (second, 3)):
        with fixed_date():
            prompt = theirs.apply_chat_template(
                messages[:before], tokenize=True, add_generation_prompt=True, return_dict=False
            )
        assert example.ids[: len(prompt)].tolist() == prompt
        assert not example.loss_mask[: len(prompt)].any()
    assert "t1" in ours.decode(second.ids.tolist())
    assert "t1" not in trained_text(ours, second)
    assert trained_text(ours, second).endswith("m<|return|>")
    assert first.notes["after the last turn trained on (messages)", "text of user"] == 1
