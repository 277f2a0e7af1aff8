"""Text without a chat template: the ids of the tokenizer's own call, then one EOS. Documents (column `text`), and prompts with completions that are texts.

row = render_plain(PlainText(prompt="", completion="Once upon a time"), tokenizer, controls, ...)
flat, spans = add_outer_tokens(flat, spans, tokenizer.outer)      # BOS in front, EOS behind
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.answers import says_nothing
from packer.controls import Controls
from packer.conversation import PlainText, Rejected
from packer.encoders import Flat
from packer.spans import TokenSpans
from packer.tokenizer import OuterTokens, Tokenizer
from packer.turns import Rendered, Turn
from packer.words import EmptyAnswers, Policy

# Beginnings of turns in common templates, whatever the tokenizer.
_MARKERS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainRow:
    """rendered: the text without its BOS and EOS. spelled: (role, token) of control tokens that it spells. notes: for the ledger."""

    rendered: Rendered
    spelled: list[tuple[str, str]]
    notes: tuple[tuple[str, str], ...]


def render_plain(
    text: PlainText, tokenizer: Tokenizer, controls: Controls, *, policy: Policy, empty_answers: EmptyAnswers
) -> PlainRow:
    """Join prompt and completion; the completion and the EOS behind it are trained on.

    A BOS that the text begins with and an EOS that it ends with are taken off: the tokens that `add_outer_tokens` adds stand in their place.
    """
    eos, bos = tokenizer.eos_text, tokenizer.outer.bos_text
    if eos is None:
        raise Rejected("no_terminator", "the tokenizer has no EOS token to close the text with")
    prompt, completion = text.prompt, text.completion.removesuffix(eos)
    if bos is not None:
        prompt, completion = prompt.removeprefix(bos), completion if prompt else completion.removeprefix(bos)
    if empty_answers != "keep" and says_nothing(completion):
        raise Rejected("empty_answer", "the completion is empty but for the token that ends it")
    literal: list[tuple[int, int]] = []
    spelled: list[tuple[str, str]] = []
    if policy != "keep":
        # A prompt is input; a completion is the model's own output, reasoning and calls included.
        for part, role, shift in ((prompt, "prompt", 0), (completion, "assistant", len(prompt))):
            for start, end in controls.places(part, role):
                literal.append((shift + start, shift + end))
                spelled.append(("completion" if shift else role, part[start:end]))
    if spelled and policy == "reject":
        raise Rejected("control_token", f"the {spelled[0][0]} spells {spelled[0][1]}")
    whole = prompt + completion
    rendered = Rendered(text=whole, turns=(Turn(len(prompt), len(whole)),), literal=tuple(literal))
    return PlainRow(rendered=rendered, spelled=spelled, notes=_markup(whole, tokenizer, controls, policy))


def _markup(text: str, tokenizer: Tokenizer, controls: Controls, policy: Policy) -> tuple[tuple[str, str], ...]:
    """A note for each kind of chat markup in a text, which is taken as text or, with "keep", only if the tokenizer has such a token."""
    found = {marker for marker in _MARKERS if marker in text}
    if policy == "keep":
        found -= set(tokenizer.added_tokens.values())
        kind = "text holds chat markup (give such data as messages)"
    else:
        found |= {text[start:end] for start, end in controls.places(text, "prompt")}
        kind = "text holds chat markup (give such data as messages, or add --control-tokens keep)"
    return tuple((kind, marker) for marker in sorted(found))


def add_outer_tokens(flat: Flat, spans: TokenSpans, outer: OuterTokens) -> tuple[Flat, TokenSpans]:
    """Put the tokenizer's BOS in front of every text and an EOS behind it; turns grow by the EOS. spans: one a text."""
    before, after = len(outer.before), len(outer.after)
    count = len(flat.offsets) - 1
    offsets = flat.offsets + np.arange(count + 1) * (before + after)
    ids = np.empty(offsets[-1], dtype=np.int32)
    own = np.ones(len(ids), dtype=bool)
    for places, added in (
        (offsets[:-1, None] + np.arange(before), outer.before),
        (offsets[1:, None] - after + np.arange(after), outer.after),
    ):
        ids[places] = np.array(added, dtype=np.int32)
        own[places] = False
    ids[own] = flat.ids
    shift = spans.text * (before + after) + before
    return Flat(ids=ids, offsets=offsets), TokenSpans(
        text=spans.text, first=spans.first + shift, last=spans.last + shift + after, across=spans.across
    )
