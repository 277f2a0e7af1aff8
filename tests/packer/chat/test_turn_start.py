"""Where turns begin, by hand: ‸ stands where the model begins to write, « before the turn's first text that comes from the data."""

from __future__ import annotations

import pytest

from packer.chat.turn_start import start_after_header, turn_start

_CHATML = "<|im_end|>\n<|im_start|>assistant\n"
_THINKS = _CHATML + "<think>\n"
_THINKS_NOT = _CHATML + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("prompt", "rendered"),
    [
        pytest.param(_CHATML, _CHATML + "‸<think>\n«r\n</think>\n\na", id="qwen3, reasoning"),
        pytest.param(_CHATML, _CHATML + "<think>\n\n</think>\n\n‸«a", id="qwen3, empty block"),
        pytest.param(_CHATML, _CHATML + "‸«a", id="qwen3, older turn"),
        pytest.param(_CHATML, _CHATML + "‸«<think>\nr\n</think>\n\na", id="qwen3, reasoning in the text"),
        pytest.param(_THINKS, _THINKS + "‸«r\n</think>\n\na", id="qwen3.5 thinks, reasoning"),
        pytest.param(_THINKS, _THINKS_NOT + "‸«a", id="qwen3.5 thinks, empty block"),
        pytest.param(_THINKS, _CHATML + "‸«a", id="qwen3.5 thinks, older turn"),
        pytest.param(_THINKS, _CHATML + "«<think>\n‸r\n</think>\n\na", id="qwen3.5 thinks, the text has the tag"),
        pytest.param(_THINKS, _CHATML + "‸«<table>", id="qwen3.5 thinks, the text has another tag"),
        pytest.param(_THINKS_NOT, _THINKS_NOT + "‸«a", id="qwen3.5 thinks not, empty block"),
        pytest.param(_THINKS_NOT, _CHATML + "‸«a", id="qwen3.5 thinks not, older turn"),
        pytest.param(_CHATML + "<think></think>", _CHATML + "<think></think>‸«a", id="nemotron thinks not"),
        pytest.param(_THINKS, _CHATML + "<think></think>‸«a", id="nemotron thinks, empty block"),
        pytest.param(_THINKS, _THINKS + "‸«r\n</think>\na", id="nemotron thinks, reasoning"),
        pytest.param("<|assistant|>", "<|assistant|>\n<think></think>\n‸«a", id="glm, empty block"),
        pytest.param("<|assistant|>", "<|assistant|>‸\n<think>«r</think>\na", id="glm, reasoning"),
        pytest.param("<|end|><|start|>assistant", "<|end|><|start|>assistant‸<|channel|>final<|message|>«a", id="gptoss"),
        pytest.param("<|start|>assistant", "<|start|>assistant‸<|channel|>analysis<|message|>«r<|end|>", id="gptoss, reasoning"),
        pytest.param("<|start|>assistant", "<|start|>assistant‸ to=functions.f<|channel|>commentary json<|message|>«{}", id="gptoss, call"),
        pytest.param(" [/INST]", " [/INST]‸ «a </s>", id="llama2"),
        pytest.param("<start_of_turn>model\n", "<start_of_turn>model\n‸«a", id="gemma"),
        pytest.param(_CHATML, _CHATML + "‸Sure: <think>«r</think>a", id="more than an empty block"),
    ],
)  # fmt: skip
def test_a_turn_begins_behind_what_the_prompt_supplies(prompt: str, rendered: str) -> None:
    content = rendered.replace("‸", "").index("«")
    start = rendered.replace("«", "").index("‸")
    assert turn_start(prompt, rendered.replace("«", "").replace("‸", ""), content=content) == start


@pytest.mark.parametrize(
    ("prompt", "rendered", "content"),
    [
        (_CHATML, "<|im_end|>\n<|im_start|>bot\na", 27),
        (_CHATML + "In short: ", _CHATML + "a", len(_CHATML)),
        (_THINKS_NOT, _THINKS + "r\n</think>\n\na", len(_THINKS)),
        ("<|start|>assistant<|channel|>final<|message|>", "<|start|>assistant<|channel|>analysis<|message|>r", 48),
    ],
    ids=["another role", "a prefix", "closes reasoning before it", "another channel"],
)
def test_a_prompt_that_does_not_lead_to_the_turn_gives_no_start(prompt: str, rendered: str, content: int) -> None:
    assert turn_start(prompt, rendered, content=content) is None


@pytest.mark.parametrize("thinks", ["", "<think>\n", "<think>\n\n</think>\n\n", "</think>"])
def test_an_assistant_that_speaks_first_begins_behind_the_header(thinks: str) -> None:
    header = "<|im_start|>assistant\n"
    text = header + "Hello!<|im_end|>\n"
    assert start_after_header(text, header + thinks, content=len(header)) == len(header)
    supplied = header + thinks
    assert start_after_header(supplied + "Hi", supplied, content=len(supplied)) == len(supplied)


def test_without_a_header_before_the_text_there_is_no_start() -> None:
    assert start_after_header("Hello!", "<|im_start|>assistant\n", content=0) is None
    assert start_after_header("Hello!", "", content=0) is None
