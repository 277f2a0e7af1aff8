"""The document that `trainer compare --json` prints, as its readers in Python see it.

document: Document = json.loads(text)
document["loss"]["equivalent"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict


class Rung(TypedDict):
    """One way to train: what it reached, and its ratio to the first rung."""

    name: str
    useful_tokens_per_s: float | None
    slots_per_useful: float | None
    steps: int | None
    ops_per_useful_token: float | None
    graphs_compiled: int | None
    peak_memory_bytes: int | None
    ratio: float | None


class Held(TypedDict):
    """Held-out loss over seeds."""

    mean: float
    std: float | None
    per_seed: list[float]


class Loss(TypedDict):
    """difference_per_seed: packed less padded. equivalent: None with fewer than 3 seeds."""

    padded: Held
    packed: Held
    difference_per_seed: list[float]
    interval_95: list[float] | None
    margin: float | None
    replicate_floor: float | None
    equivalent: bool | None


class Run(TypedDict):
    """The loss of one run at some of its steps."""

    seed: int
    steps: list[int]
    loss: list[float | None]


class Document(TypedDict):
    """What `trainer compare --json` prints. curves: by rung. setting: versions, model, corpus, whatever a reader needs to do it again."""

    ladder: list[Rung]
    loss: Loss
    curves: NotRequired[dict[str, list[Run]]]
    setting: NotRequired[Mapping[str, object]]
