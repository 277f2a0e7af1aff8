"""The verdict on a row that does not go in.

>>> raise Rejected("no_answer", "no message of the assistant to train on")
Traceback (most recent call last):
packer.sources.rejected.Rejected: no_answer: no message of the assistant to train on
"""

from __future__ import annotations


class Rejected(Exception):  # noqa: N818  # a verdict, not an error
    """A conversation that does not go in. reason: a short name that is counted; detail: what was seen, for rejects.jsonl."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
