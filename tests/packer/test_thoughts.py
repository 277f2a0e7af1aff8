"""What a model wrote itself comes out of the template as it was written, thoughts and all, or is refused."""

from __future__ import annotations

import pytest

from packer.conversation import Rejected
from packer.render import Example, Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer, load_tokenizer
from tests.support import TINY, chat

_TURN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}THOUGHTS{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
# Qwen3.8's way, and that of a template that knows no thoughts and shuts them off.
OWN_FIELD = _TURN.replace("THOUGHTS", "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}")
NO_FIELD = _TURN.replace("THOUGHTS", "{{ '<think>\\n\\n</think>\\n\\n' }}")
AS_WRITTEN = _TURN.replace("THOUGHTS", "")


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(str(TINY))


def outcome(tiny: Tokenizer, source: str, answer: str) -> Example | Rejected:
    template = ChatTemplate(source, special_tokens=tiny.special_tokens)
    return Renderer(tiny, template, Policies()).examples([chat("q", answer)])[0]


@pytest.mark.parametrize("opening", ["", "<think>\n", "<think>", "\n<think>\n"])
def test_raw_output_comes_back_as_it_was_written_and_is_learnt_from_where_the_prompt_ends(
    tiny: Tokenizer, opening: str
) -> None:
    template = ChatTemplate(OWN_FIELD, special_tokens=tiny.special_tokens)
    prompt = template.run([{"role": "user", "content": "q"}], tools=None, add_generation_prompt=True)
    written = "r\n</think>\n\na"
    example = outcome(tiny, OWN_FIELD, opening + written)
    assert isinstance(example, Example)
    assert tiny.decode(example.ids.tolist()) == f"{prompt}{written}<|im_end|>\n"
    assert tiny.decode(example.ids[example.loss_mask].tolist()) == f"{written}<|im_end|>"


def test_thoughts_that_have_no_place_in_the_template_are_refused_and_other_answers_are_not(tiny: Tokenizer) -> None:
    refused = outcome(tiny, NO_FIELD, "r\n</think>\n\na")
    assert isinstance(refused, Rejected)
    assert refused.reason == "bad_content"
    assert isinstance(outcome(tiny, NO_FIELD, "a"), Example)


@pytest.mark.parametrize("source", [OWN_FIELD, AS_WRITTEN])
def test_text_about_thoughts_stays_where_it_stands(tiny: Tokenizer, source: str) -> None:
    text = "write <think>r</think>, then a"
    example = outcome(tiny, source, text)
    assert isinstance(example, Example)
    assert tiny.decode(example.ids.tolist()).endswith(f"{text}<|im_end|>\n")


def test_a_conversation_has_one_hash_under_every_template(tiny: Tokenizer) -> None:
    examples = [outcome(tiny, source, "r\n</think>\n\na") for source in (OWN_FIELD, AS_WRITTEN)]
    assert len({example.content_hash for example in examples if isinstance(example, Example)}) == 1
