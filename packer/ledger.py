"""The account of everything that came in: what went into rows, and what did not, by reason. It adds up or the build fails.

>>> books = Books()
>>> books.take(tokens=10); books.lose("overlong", tokens=90); books.reject("not_json")
>>> books.conversations
{'read': 3, 'in': 1, 'overlong': 1, 'not_json': 1}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from packer.sources.raw_row import BlankLineError

NOT_DRAWN = "not_drawn"
# Counted, and no loss.
_NO_LOSS = frozenset({"read", "in", NOT_DRAWN, BlankLineError.reason})


@dataclass(kw_only=True, slots=True)
class Books:
    """Counts of conversations and of tokens; the first word of each ("read", "encoded") is the sum of the others. in_part: of the conversations that
    went in, those with tokens cut off, by the reason of the tokens."""

    conversations: dict[str, int] = field(default_factory=lambda: {"read": 0, "in": 0})
    tokens: dict[str, int] = field(default_factory=lambda: {"encoded": 0, "in_rows": 0})
    in_part: dict[str, int] = field(default_factory=dict)

    def take(self, *, tokens: int, conversations: int = 1) -> None:
        """Conversations that go in whole, with all their tokens."""
        self._count(self.conversations, "read", "in", conversations)
        self._count(self.tokens, "encoded", "in_rows", tokens)

    def reject(self, reason: str) -> None:
        """A conversation that never became tokens."""
        self._count(self.conversations, "read", reason, 1)

    def lose(self, reason: str, *, tokens: int) -> None:
        """A conversation that became tokens and does not go in."""
        self._count(self.conversations, "read", reason, 1)
        self._count(self.tokens, "encoded", reason, tokens)

    def leave_out(self, *, conversations: int) -> None:
        """Conversations that a weight below 1 did not draw: counted, and no loss."""
        reason = NOT_DRAWN
        if conversations:
            self._count(self.conversations, "read", reason, conversations)

    def lose_part(self, reason: str, *, tokens: int) -> None:
        """Tokens cut off a conversation that goes in."""
        self._count(self.tokens, "encoded", reason, tokens)
        self.in_part[reason] = self.in_part.get(reason, 0) + 1

    def lost_conversations(self) -> dict[str, int]:
        """Conversations lost, by reason."""
        return {name: count for name, count in self.conversations.items() if name not in _NO_LOSS}

    def lost_tokens(self) -> dict[str, int]:
        """Tokens lost, by reason."""
        return {name: count for name, count in self.tokens.items() if name not in ("encoded", "in_rows")}

    def loss(self) -> Fraction:
        """The larger of conversations lost ÷ read and tokens lost ÷ encoded; 0 where nothing was read."""
        lost, encoded = sum(self.lost_conversations().values()), self.tokens["encoded"]
        read = lost + self.conversations["in"]
        return max(
            Fraction(lost, read) if read else Fraction(0),
            Fraction(sum(self.lost_tokens().values()), encoded) if encoded else Fraction(0),
        )

    def check(self) -> None:
        """Raises RuntimeError where the books do not add up: a bug, never to be written down as a result."""
        for name, counts in (("conversations", self.conversations), ("tokens", self.tokens)):
            (whole, total), *parts = counts.items()
            if total != sum(count for _, count in parts):
                raise RuntimeError(f"the ledger of {name} does not add up: {whole} {total}, parts {dict(parts)}")

    @staticmethod
    def _count(counts: dict[str, int], whole: str, part: str, by: int) -> None:
        counts[whole] += by
        counts[part] = counts.get(part, 0) + by
