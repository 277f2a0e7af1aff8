"""How a fast path's package fails: when it is imported, built for another torch, Triton or Python, and when it is first called, on a GPU it does not suit.

    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except FAILURES as error:
        raise UserError(f"the fused gated delta rule cannot be loaded: {said(error)}", "…") from error

None of it is taken for "not installed" or passed over: a person has to see the package's own words.
"""

from __future__ import annotations

import sys

import torch

# An undefined symbol is an ImportError, a missing CUDA library an OSError, an operator registered twice a RuntimeError, a name that another Triton had an
# AttributeError, an assertion on versions an AssertionError.
FAILURES = (
    ImportError,
    OSError,
    RuntimeError,
    AttributeError,
    NameError,
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    SyntaxError,
)
_MOST_CHARACTERS = 300


def failures_of_a_call() -> tuple[type[Exception], ...]:
    """What a kernel raises that cannot run here: torch's errors of the device are RuntimeErrors, Triton's are of a kind of their own."""
    of_triton = getattr(sys.modules.get("triton.errors"), "TritonError", None)
    return (RuntimeError, of_triton) if isinstance(of_triton, type) else (RuntimeError,)


def said(error: BaseException) -> str:
    """The kind and the words of an error on one line, and the torch that it met."""
    words = " ".join(str(error).split())
    if len(words) > _MOST_CHARACTERS:
        words = f"{words[: _MOST_CHARACTERS - 1]}…"
    return f"{type(error).__name__}: {words} (torch {torch.__version__})"
