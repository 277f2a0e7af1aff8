"""The parts of a step by name, for one who watches: `trainer profile`.

    with phase("forward"):
        ...

Otherwise they are `unnamed`: the same empty context every time, which costs a call and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Phase = Callable[[str], AbstractContextManager[object]]
_NOTHING = nullcontext()


def unnamed(name: str) -> AbstractContextManager[object]:  # noqa: ARG001  # the name is for those who watch
    """No part is named."""
    return _NOTHING
