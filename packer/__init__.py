"""packer: chat data in, rows of one fixed size out.

    import packer

    corpus = packer.open("data/packed", split="train")
    row = corpus[0]                     # numpy views of the columns of packer/FORMAT.md

`packer.build(config)` is the command `packer build` as a function. Heavy imports wait until one of these is called, so that
`packer --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import UserError

if TYPE_CHECKING:
    from packer.config import BuildConfig
    from packer.manifest import Manifest
    from packer.progress import Progress
    from packer.repacking import RepackConfig
    from packer.shards import Corpus

__version__ = "0.1.0"
__all__ = ["UserError", "build", "open", "repack"]


def build(config: BuildConfig, progress: Progress | None = None) -> Manifest:
    """Builds a folder of packed shards and returns its manifest; raises UserError on wrong input, GateError on too great a loss."""
    from packer.pipeline import build as run_build

    return run_build(config, progress)


def repack(config: RepackConfig, progress: Progress | None = None) -> Manifest:
    """Builds a folder of other rows from another folder's token store and returns its manifest; raises UserError and GateError as `build` does."""
    from packer.repacking import repack as run_repack

    return run_repack(config, progress)


def open(path: str | Path, *, split: str = "train", cache: Path | None = None) -> Corpus:  # noqa: A001  # packer.open reads as it should
    """Opens a folder of packed shards for reading, here or at an address: len(corpus), corpus[i] → Row. cache: where what is fetched is kept."""
    from packer.shards import open_corpus

    return open_corpus(path, split=split, cache=cache)
