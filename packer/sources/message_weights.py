"""Loss weights that the data gives its messages, under the keys of OpenAI, axolotl, ms-swift and LLaMA-Factory.

A weight of 0 (or false) takes a message of the assistant out of the loss, 1 (or true) changes nothing, any other is kept as a number.

>>> message = {"role": "assistant", "content": "a", "weight": 0}
>>> take_weight(message, "message 1")
('weight=0', 0.0)
>>> message
{'role': 'assistant', 'content': 'a'}
"""

from __future__ import annotations

import json
import math

from packer.sources.json_values import Json, Message, kind_of
from packer.sources.rejected import Rejected

# OpenAI's `weight`; ms-swift's `loss_scale`; LLaMA-Factory's `loss_weight`.
_NUMBERS = ("weight", "loss_scale", "loss_weight")
# axolotl's `train` and `training`, ms-swift's `loss`, and one that other tools use: true or false, or 1 or 0 where a table stores no booleans.
_SWITCHES = ("train", "training", "trainable", "loss")
# These set the loss of any message in the tool that defines them. The others are defined for the assistant alone, and ignored elsewhere by it.
_OF_ANY_ROLE = ("train", "training", "trainable", "loss_weight")
_UNCLEAR = {
    "mask": "is true for what is trained in one tool and for what is not in another",
    "masked": "is true for what is trained in one tool and for what is not in another",
    "loss_mask": "is 1 for what is trained in one tool and for what is not in another",
    "train_detail": "sets the loss of parts of a message, which is not supported",
    "training_detail": "sets the loss of parts of a message, which is not supported",
}
_KEYS = (*_NUMBERS, *_SWITCHES)
# Weights are stored as float32; beyond these bounds one is a mistake, or rounds to nothing.
_SMALLEST, _LARGEST = 1e-6, 1e3


def take_weight(message: Message, where: str) -> tuple[str, float] | None:
    """Remove the keys that set a loss weight.

    Returns:
        The key with its value as it was written, and the weight; None without such a key.

    Raises:
        Rejected: "bad_weight", if a value is not understood or two keys disagree.
    """
    if unclear := next((key for key in _UNCLEAR if key in message), None):
        raise Rejected(
            "bad_weight",
            f"{where}: {unclear!r}: {_shown(message[unclear])} {_UNCLEAR[unclear]}; write 'weight': 0 or 1 instead",
        )
    keys = [key for key in _KEYS if key in message]
    if not keys:
        return None
    named = {key: message.pop(key) for key in keys}
    weights = {key: _weight(key, value, where) for key, value in named.items()}
    # A switch that is on says nothing of how much: a number beside it does.
    telling = [key for key in keys if key in _NUMBERS or not weights[key]] or keys[:1]
    first = telling[0]
    for key in keys:
        agrees = weights[key] == weights[first] if key in telling else bool(weights[first])
        if not agrees:
            raise Rejected(
                "bad_weight",
                f"{where}: {first!r}: {_shown(named[first])} and {key!r}: {_shown(named[key])} disagree",
            )
    return f"{first}={_shown(named[first])}", weights[first]


# The kind of note on a message that the model does not write and that the data gives weight 0.
UNTRAINED = "loss weight of a message that the model does not write"


def hold_other_role(role: str, name: str, weight: float, where: str) -> tuple[str, str]:
    """Judge the weight of a message that the model does not write.

    Returns:
        A note for the ledger: a weight of 1 is not applied; a weight of 0 is what such a message has, unless every message is trained on.

    Raises:
        Rejected: "bad_weight", if the data asks to train on the message.
    """
    if weight == 0:
        return UNTRAINED, f"{role} {name}"
    if weight == 1 and name.partition("=")[0] not in _OF_ANY_ROLE:
        return "loss weight not applied", f"{role} {name}"
    raise Rejected(
        "bad_weight",
        f"{where}: {name} asks to train on a message of {role!r}, which the model does not write; remove the key",
    )


def _weight(key: str, value: Json, where: str) -> float:
    if not isinstance(value, bool | int | float):
        raise Rejected("bad_weight", f"{where}: {key!r} is {kind_of(value)}, not a number or a boolean")
    if key in _SWITCHES and value not in (0, 1):
        raise Rejected("bad_weight", f"{where}: {key!r}: {_shown(value)} is neither true nor false")
    if isinstance(value, float) and not math.isfinite(value):
        raise Rejected("bad_weight", f"{where}: {key!r}: {_shown(value)} is not a finite number")
    if value < 0 or (value and not _SMALLEST <= value <= _LARGEST):
        raise Rejected(
            "bad_weight",
            f"{where}: {key!r}: {_shown(value)} is not 0, nor from {_SMALLEST:g} to {_LARGEST:g}",
        )
    return float(value)


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
