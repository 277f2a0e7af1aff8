"""Option values that more than one command takes, as they are typed.

share("1%", "--max-loss"), segments("auto"), choice(Strategy)
"""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import click

from packer.errors import UserError


def choice(words: object) -> click.Choice[str]:
    """One word of a `Literal` of `packer.words`."""
    return click.Choice(get_args(words))


def share(text: str, option: str) -> Fraction:
    """A share such as "1%", "0.01" or "1/100", exactly."""
    try:
        number = Fraction(text.strip().removesuffix("%").strip())
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{option} {text}: not a share", f"write it as {option} 1% or {option} 0.01") from None
    return number / 100 if text.strip().endswith("%") else number


def segments(text: str) -> int | None:
    """ "auto" → None, otherwise a number."""
    if text.strip().lower() == "auto":
        return None
    if not (text.strip().isascii() and text.strip().isdecimal()):
        raise UserError(f"--max-segments {text}: must be auto or a number", "try --max-segments auto")
    return int(text)
