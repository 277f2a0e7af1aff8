"""From places in the text to places among the tokens."""

from __future__ import annotations

import numpy as np

from packer.marks import Rendered
from packer.tokenizer import Encoded
from packer.types import Int64Array


def token_spans(rendered: Rendered, encoded: Encoded) -> Int64Array:
    """Turns as spans of tokens, int64 [turns, 2]: the tokens that lie wholly inside.

    A token that begins before the turn's text holds text that the model is given, not text that it writes, so it is left out.
    """
    text = rendered.text
    bounds = np.array([(turn.start, turn.end) for turn in rendered.turns], dtype=np.int64).reshape(-1, 2)
    if encoded.unit == "byte" and not text.isascii():
        bounds = np.array([[len(text[:at].encode()) for at in span] for span in bounds], dtype=np.int64).reshape(-1, 2)
    first = np.searchsorted(encoded.starts, bounds[:, 0], side="left")
    last = np.searchsorted(encoded.ends, bounds[:, 1], side="right")
    return np.stack([first, np.maximum(first, last)], axis=1)
