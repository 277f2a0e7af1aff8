"""What a conversation becomes: token ids with a loss mask; and the policies that decide it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from packer.formats import Layout
from packer.types import BoolArray, Float32Array, Int32Array
from packer.words import Policy, Reasoning, TrainOn


@dataclass(frozen=True, kw_only=True, slots=True)
class Policies:
    """What is read from a row, what is trained on, and what becomes of text that spells a control token."""

    layout: Layout = field(default_factory=Layout)
    train_on: TrainOn = "assistant"
    control_tokens: Policy = "split"
    reasoning: Reasoning = "template"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One conversation as tokens.

    ids int32 [n]. loss_mask bool [n]: true where the token is a target, never on the first. turn_ends int32 [turns]: where the conversation may be
    cut, behind the token that ends an assistant's turn; empty for a document. content_hash: 64 bits of what was said and by whom, whatever the
    tokenizer and template. control_tokens: (role, token) → how often the text spelled it. notes: (kind, detail) → count, for the ledger.
    loss_weights float32 [n]: of each target; None where all are 1. group_hash: of what the eval split keeps together; None where that is the content.
    """

    ids: Int32Array
    loss_mask: BoolArray
    turn_ends: Int32Array
    content_hash: int
    control_tokens: Counter[tuple[str, str]]
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)
    loss_weights: Float32Array | None = None
    group_hash: int | None = None
