"""Where an assistant turn begins in the rendered conversation: behind what the generation prompt supplies.

At inference the model is given the conversation so far with `add_generation_prompt=True` and writes the rest of the turn: channel headers, the tag that
opens reasoning, the blank before an answer. All of that is trained on. The prompt is rendered per turn and laid against the whole conversation at the end
of the message before the turn, since templates may print earlier messages in another way once the conversation goes on.

One exception: an *empty* reasoning block that the template inserts by itself is not trained on; a reasoning model would learn not to reason.

    >>> turn_start("</s>bot: ", "</s>bot: hi", content=9)
    9
    >>> turn_start("<|im_start|>bot\\n<think>\\n", "<|im_start|>bot\\n<think>\\n\\n</think>\\n\\nhi", content=35)
    35
"""

from __future__ import annotations

import re

# An empty reasoning block, whole or without its opening tag (which the prompt has supplied), and the white space around it.
_OPENS = r"(?:<[^<>/]*(?:think|thought|reason)[^<>/]*>|\[THINK\]|<\|channel\|>analysis<\|message\|>|<\|channel>thought)"
_CLOSES = r"(?:</[^<>]*(?:think|thought|reason)[^<>]*>|<[^<>]*END_THINKING[^<>]*>|\[/THINK\]|<\|end\|>|<channel\|>)"
_EMPTY_BLOCK = re.compile(rf"\s*{_OPENS}\s*{_CLOSES}", re.IGNORECASE)
_BLOCK_TAIL = re.compile(rf"\s*{_CLOSES}", re.IGNORECASE)
_BEGUN_TAG = re.compile(r"(?:<[^<>\s]*|\[/?[A-Z_]*)\Z")
_CLOSING = re.compile(_CLOSES, re.IGNORECASE)
_OPEN_TAIL = re.compile(rf"{_OPENS}\s*\Z", re.IGNORECASE)
# What a prompt may write behind the header that all answers have.
_AFTER_HEADER = re.compile(rf"(?:{_OPENS}\s*)?(?:{_CLOSES}\s*)?\Z", re.IGNORECASE)
# What a prompt may supply and a turn without reasoning lack: tags of reasoning, or the rest of one.
_REASONING_TAIL = re.compile(rf"(?:[^<\s]*>)?(?:\s|{_OPENS}|{_CLOSES})*", re.IGNORECASE)


def turn_start(prompt: str, rendered: str, *, content: int, block: str = "") -> int | None:
    """Return the offset in `rendered` at which the model's own text begins; None where that is not what such a prompt leads to.

    Args:
        prompt: The generation prompt, from the end of the message before the turn.
        rendered: The whole conversation's text from the same place, at least through what the prompt may supply.
        content: Offset in `rendered` of the turn's first text that comes from the data.
        block: The empty reasoning block that the template is known to write before a plain answer.
    """
    common = common_length(prompt, rendered)
    if common == len(prompt) and common >= content:
        return common
    start = before_tag(rendered, prompt, min(common, content))
    if not only_reasoning(prompt[start:]) or closed_before_reasoning(
        prompt[start:], rendered[:start], rendered[start:content]
    ):
        return None
    return start + empty_block(rendered[:start], rendered[start:content], block)


def before_tag(rendered: str, prompt: str, common: int) -> int:
    """Return how much a prompt supplies of a text that agrees with it for `common` characters: no tag of which only the beginning agrees."""
    if common in (len(prompt), len(rendered)):
        return common
    begun = _BEGUN_TAG.search(rendered[:common])
    return begun.start() if begun else common


def only_reasoning(rest: str) -> bool:
    """Whether this end of a generation prompt does no more than open reasoning, or close it at once."""
    return _REASONING_TAIL.fullmatch(rest) is not None


def closed_before_reasoning(rest: str, supplied: str, written: str) -> bool:
    """Whether the prompt goes on to close a reasoning block that the turn fills: nothing then leads from one to the other.

    Args:
        rest: What the prompt has beyond the turn's text.
        supplied: What both have.
        written: What the turn has up to its first text from the data.
    """
    opened = _OPEN_TAIL.search(supplied) is not None
    return opened and _CLOSING.search(rest) is not None and _CLOSING.search(written) is None


def start_after_header(text: str, prompt: str, *, content: int, block: str = "") -> int | None:
    """Return where a turn begins whose own prompt cannot be rendered: behind the last header in front of it.

    Args:
        text: What follows the message before.
        prompt: What the template writes before answers.
        content: Where the turn's first text begins.
        block: As in `turn_start`.
    """
    header = _AFTER_HEADER.sub("", prompt)
    found = text.rfind(header, 0, content) if header else -1
    start = None if found < 0 else turn_start(prompt, text[found:], content=content - found, block=block)
    return None if start is None else found + start


def common_length(a: str, b: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    if b.startswith(a):
        return len(a)
    return next((n for n, (mine, other) in enumerate(zip(a, b, strict=False)) if mine != other), min(len(a), len(b)))


def empty_block(supplied: str, written: str, block: str) -> int:
    """Return how many characters of `written` are an empty reasoning block at its beginning.

    Args:
        supplied: What stands before, which may hold the block's opening tag.
        block: The block as the template is known to write it; where it is another here, no more than its tags and what is between them.
    """
    pattern = _BLOCK_TAIL if _OPEN_TAIL.search(supplied) else _EMPTY_BLOCK
    found = pattern.match(written)
    if found is None:
        return 0
    if not written[found.end() :].strip():
        # The answer follows at once: white space before it is the block's.
        return len(written)
    return len(block) if block and written.startswith(block) else found.end()
