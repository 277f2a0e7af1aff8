"""Which tokens end a turn, by hand, under templates that close turns as those of the families named do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from packer.chat.turn_end import TurnEnds, find_turn_ends
from packer.errors import UserError
from packer.template import ChatTemplate


class Case(NamedTuple):
    """added: the tokenizer's added tokens, those that are not special behind a `~`. prompt: what the template appends for a model to go on from."""

    added: str
    template: str
    prompt: str
    stops: str
    closers: str
    appended: str = ""


_ASK = "{% if add_generation_prompt %}PROMPT{% endif %}"
CASES = {
    "chatml": Case(
        "<|endoftext|> <|im_start|> <|im_end|> ~<think> ~</think>",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        "<|im_end|>",
    ),
    "llama3, whose template always appends the next header": Case(
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>",
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "",
        "<|eot_id|>",
        "<|eot_id|>",
    ),
    "gemma, to which white space is an added token": Case(
        "<bos> <eos> <start_of_turn> <end_of_turn> ~\n ~\n\n",
        "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}",
        "<start_of_turn>model\n",
        "<end_of_turn>",
        "<end_of_turn>",
    ),
    "gptoss": Case(
        "<|start|> <|channel|> <|message|> <|end|> <|return|> <|call|>",
        "{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %} to=functions.weather<|channel|>commentary json<|message|>"
        "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content }}"
        "{{ '<|return|>' if m.role == 'assistant' and loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}{% endfor %}",
        "<|start|>assistant",
        "<|return|> <|call|>",
        "<|call|> <|end|> <|return|>",
    ),
    "glm, which the next role ends": Case(
        "<|endoftext|> <|user|> <|assistant|> <|observation|> ~<think> ~</think> ~<tool_call> ~</tool_call>",
        "{% for m in messages %}{{ {'user': '<|user|>\n', 'assistant': '<|assistant|>\n<think></think>\n', 'tool': '<|observation|>\n'}[m.role] }}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.city }}</tool_call>{% endfor %}{% endfor %}",
        "<|assistant|>",
        "<|user|> <|observation|>",
        "<|observation|> <|user|>",
        "<|user|>",
    ),
    "cohere, with a run of two tokens": Case(
        "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|CHATBOT_TOKEN|> <|USER_TOKEN|> <|START_RESPONSE|> <|END_RESPONSE|>",
        "{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m.role == 'assistant' %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>"
        "{% else %}<|USER_TOKEN|>{{ m.content }}{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
    ),
    "gemma4, whose calls wait for a result": Case(
        "<bos> <|turn> <turn|> <|tool_call> <tool_call|> <|tool_response> <tool_response|>",
        "{% for m in messages %}{% if m.role == 'tool' %}{{ m.content }}<tool_response|>{% else %}<|turn>{{ m.role }}\n{{ m.content }}"
        "{% if m.tool_calls %}<|tool_call>{{ m.tool_calls[0].function.arguments.city }}<tool_call|><|tool_response>{% else %}<turn|>\n{% endif %}"
        "{% endif %}{% endfor %}",
        "<|turn>model\n",
        "<turn|> <|tool_response>",
        "<turn|> <|tool_response>",
    ),
}  # fmt: skip


def ends_of(case: Case, *, generation_eos: str = "") -> tuple[TurnEnds, dict[str, int]]:
    names = case.added.split(" ")
    id_of = {name.removeprefix("~"): number for number, name in enumerate(names, start=100)}
    tokenizer: Any = SimpleNamespace(
        added_tokens={number: text for text, number in id_of.items()},
        special_added=frozenset(name for name in names if not name.startswith("~")),
        generation_eos=frozenset(id_of[name] for name in generation_eos.split()),
    )
    template = ChatTemplate(case.template + _ASK.replace("PROMPT", case.prompt), special_tokens={})
    ends = find_turn_ends(tokenizer, template, prompt=case.prompt, name="the chat template", hint="give another")
    return ends, id_of


@pytest.mark.parametrize("name", CASES)
def test_the_tokens_that_end_a_turn(name: str) -> None:
    case = CASES[name]
    ends, id_of = ends_of(case)
    assert ends.stop_ids == tuple(id_of[text] for text in case.stops.split())
    assert sorted(ends.closers) == sorted(case.closers.split())
    assert ends.appended == case.appended
    assert not ends.remarks


def test_of_a_run_the_token_that_the_generation_config_names_is_where_generation_stops() -> None:
    case = CASES["cohere, with a run of two tokens"]
    ends, id_of = ends_of(case, generation_eos="<|END_RESPONSE|>")
    assert ends.stop_ids == (id_of["<|END_RESPONSE|>"],)


def test_a_generation_config_that_stops_elsewhere_is_remarked_on() -> None:
    ends, id_of = ends_of(CASES["chatml"], generation_eos="<|endoftext|>")
    assert ends.stop_ids == (id_of["<|im_end|>"],)
    (remark,) = ends.remarks
    assert "<|im_end|>" in remark
    assert "<|endoftext|>" in remark


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}",
    ],
    ids=["no token", "a header alone, the same for all"],
)
def test_turns_that_no_token_ends_are_refused(template: str) -> None:
    with pytest.raises(UserError, match="never learn to stop"):
        ends_of(CASES["chatml"]._replace(template=template))
