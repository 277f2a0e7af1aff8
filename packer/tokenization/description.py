"""Parts of a tokenizer as its tokenizer.json describes them.

describe(backend.normalizer)      # {"type": "NFC"}
"""

from __future__ import annotations

import json
from typing import Any


def describe(part: object) -> dict[str, Any]:
    """Return one part (normalizer, pre-tokenizer, decoder) as in tokenizer.json; empty if the tokenizer has no such part.

    Part by part: the whole description of a large vocabulary takes a third of a second to parse.
    """
    # Their own way to be pickled is JSON.
    state = part.__getstate__() if part is not None else b"{}"
    found = json.loads(bytes(state)) if isinstance(state, bytes | bytearray) else {}
    return found if isinstance(found, dict) else {}
