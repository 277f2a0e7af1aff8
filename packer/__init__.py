"""packer: chat data in, rows of one fixed size out.

Build a folder once:

    >>> from pathlib import Path
    >>> import packer
    >>> from packer.config import BuildConfig
    >>> config = BuildConfig(
    ...     datasets=("data/sample/chats.jsonl",),
    ...     tokenizer="data/sample/tiny-hybrid",
    ...     capacity=4096,
    ...     workers=1,
    ...     out=Path("data/packed"),
    ... )
    >>> manifest = packer.build(config)
    >>> manifest.splits["train"].rows, manifest.ledger.conversations["in"]
    (49, 480)

Open it as often as you like; rows are numpy views of a memory map, with the columns of packer/FORMAT.md:

    >>> corpus = packer.open("data/packed", split="train")
    >>> row = corpus[0]
    >>> len(corpus), row.input_ids.shape, str(row.input_ids.dtype)
    (49, (4096,), 'int32')
    >>> all(int(row.loss_mask.sum()) == row.num_supervised for row in corpus)
    True

An example of a row, and what is learnt of it:

    >>> start, end = row.cu_seqlens[:2].tolist()
    >>> ids, targets = row.input_ids[start:end], row.loss_mask[start:end]
    >>> bool(targets[0])                # nothing stands before the first token that could predict it
    False

The same as torch tensors: `trainer.adapters.PackedRows`. Rows of another capacity from the same tokens: `packer.repack`. What is wrong with the
input is a UserError, with a message and a hint; a loss beyond `max_loss` is a GateError, which is one too.

Heavy imports wait until one of these is called, so that `packer --help` answers at once.
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
    """The command `packer build`: builds a folder of packed shards and returns its manifest.

    config: `packer.config.BuildConfig`, whose fields are the command's options. progress: what is told of the work (`packer.progress`); None: nothing. Where
    the folder holds exactly this build already, nothing is written. Raises UserError on wrong input, GateError on too great a loss.
    """
    from packer.pipeline import build as run_build

    return run_build(config, progress)


def repack(config: RepackConfig, progress: Progress | None = None) -> Manifest:
    """The command `packer repack`: builds a folder of other rows from another folder's token store and returns its manifest.

        from packer.repacking import RepackConfig

        packer.repack(RepackConfig(source=Path("data/packed"), out=Path("data/packed-16k"), capacity=16384))

    Raises UserError and GateError as `build` does.
    """
    from packer.repacking import repack as run_repack

    return run_repack(config, progress)


def open(path: str | Path, *, split: str = "train", cache: Path | None = None) -> Corpus:  # noqa: A001  # packer.open reads as it should
    """Opens a folder of packed shards for reading, here or at an address (s3://bucket/packed): len(corpus), corpus[i] → Row.

    split: "train" or "eval". cache: where what is fetched from an address is kept; None is ~/.cache/packer. Cheap: sizes are held against the manifest, and
    nothing is read. Raises UserError where it is not a packed folder, or not whole.
    """
    from packer.shards import open_corpus

    return open_corpus(path, split=split, cache=cache)
