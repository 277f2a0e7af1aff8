"""What a person can mend.

A `UserError` says what happened (with the place: file and line, shard and row) and what to do about it. The command line shows the two as two
lines and exits with status 2; every other exception is a bug of ours and keeps its traceback.

    >>> str(UserError("chats.jsonl: no such file", "give the path of a .jsonl file"))
    'chats.jsonl: no such file'
"""

from __future__ import annotations


class UserError(Exception):
    """Wrong use or wrong input.

    message: what happened and where, one line. hint: what to do, one line.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.add_note(f"hint: {hint}")  # a traceback shows it, where a caller from Python lets the error through

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str]]:
        """Keeps both lines when the error crosses from a worker process."""
        return type(self), (self.message, self.hint)


class GateError(UserError):
    """A check that was asked for said no (exit status 1): the input is readable, but what came of it is not acceptable."""
