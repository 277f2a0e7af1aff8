"""The token store gone through once, part by part: what goes into rows, what does not, and what all of it is.

account = Account(config, sources)
account.take(out, paths, advance=lambda head: None)      # writes examples/
account.examples.lengths, account.intake.books, account.digest
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from packer.config import BuildConfig
from packer.digest import digest_words
from packer.intake import Intake, Weighted
from packer.listing import Examples, Listed, write_table
from packer.token_part import PartHead, read_part


class Account:
    """first_part: the time at which the first part was there; 0 before that."""

    def __init__(self, config: BuildConfig, sources: Sequence[Weighted]) -> None:
        self.intake = Intake(config, sources)
        self.examples = Examples()
        self.first_part = 0.0
        self._digests: list[str] = []

    def take(self, out: Path, paths: Iterable[Path], advance: Callable[[PartHead], None]) -> None:
        """Reads the parts in order, as they come, and writes the table of examples."""
        write_table(out, self._listed(paths, advance))

    @property
    def digest(self) -> str:
        """Of all tokens, in order."""
        return digest_words(self._digests)

    def _listed(self, paths: Iterable[Path], advance: Callable[[PartHead], None]) -> Iterator[Listed]:
        for path in paths:
            head, part = read_part(path)
            self.first_part = self.first_part or time.time()
            self._digests.append(head.digest)
            yield self.examples.add(self.intake.take(head, part))
            advance(head)
