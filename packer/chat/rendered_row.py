"""A row's text on its way to tokens, and what was said in it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from packer.chat.prepared_template import PreparedTemplate
from packer.conversation import Conversation
from packer.turns import Rendered, Unprinted


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedRow:
    """One example's text, which waits for its tokens. row: its row's place among those given; bundle: what rendered it, None for plain text."""

    row: int
    rendered: Rendered
    bundle: PreparedTemplate | None
    content_hash: int
    control_tokens: Counter[tuple[str, str]]
    notes: Counter[tuple[str, str]]
    left_out: tuple[tuple[str, Unprinted], ...] = ()


def said(conversation: Conversation) -> str:
    """Who said what, as `json.dumps` writes a list of [role, content]; by its parts, which is twice as fast."""
    quoted = json.encoder.encode_basestring_ascii
    return "[" + ", ".join([f'["{m["role"]}", {quoted(str(m["content"]))}]' for m in conversation.messages]) + "]"
