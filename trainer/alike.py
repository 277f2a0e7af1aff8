"""What all ranks of a run must have alike, held together before anything is trained: options, shards, model, checkpoint and the run's folder.

Each rank opens shards and folders by itself. Where they differ (an old copy of the shards on one machine, an `--out` on its own disk, a variable set
on one of them) each computes on rows that the others count otherwise, or waits for ranks that are somewhere else: a loss without meaning, or a hang.

    refuse_unlike(prepared, found, config_digest=digest, ranks=ranks)
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers

from packer.errors import UserError
from packer.files import write_text
from trainer.config import option
from trainer.prepare import Prepared
from trainer.ranks import Ranks

# Of these the content is compared and not the path, which may be another on each machine.
_PATHS = ("shards", "eval_shards", "cache", "model", "out", "resume")
_TOKEN = ".all-ranks-see-this"
# A disk shared over a network may show a new file this late.
_SHOWN_WITHIN_S = 10.0


def refuse_unlike(prepared: Prepared, found: Path | None, *, config_digest: str, ranks: Ranks) -> None:
    """Raises UserError, on every rank, which names the first thing that two ranks have otherwise. found: the checkpoint to go on from.

    Every rank calls it, once rank 0 has made the run's folder.
    """
    if ranks.world == 1:
        return
    refuse_difference(ranks.gather_objects(_facts(prepared, config_digest)))
    token = ranks.gather_objects(secrets.token_hex(16))[0]
    path = prepared.folder / _TOKEN
    ranks.together(lambda: _leave(path, token) if ranks.first else None)
    try:
        ranks.together(lambda: _see(path, token, ranks))
    finally:
        if ranks.first:
            path.unlink(missing_ok=True)
    # Last: what ranks see of a folder that they do not share is another matter.
    name = "none" if found is None else found.name
    refuse_difference(ranks.gather_objects({"host": socket.gethostname(), "checkpoint to go on from": name}))


def refuse_difference(facts: Sequence[Mapping[str, str]]) -> None:
    """Raises UserError where a rank's facts, in the order of the ranks, are not those of rank 0. "host" may differ."""
    first = facts[0]
    for rank, other in enumerate(facts):
        for name in first:
            if name != "host" and other[name] != first[name]:
                raise UserError(
                    f"ranks do not have the same {name}: {first[name]} on rank 0 ({first['host']}), {other[name]} on rank {rank} ({other['host']})",
                    "start every rank with the same options, packages, shards and model, on every machine",
                )


def _facts(prepared: Prepared, config_digest: str) -> dict[str, str]:
    evaluated = prepared.eval_corpus
    options = {option(name): str(value) for name, value in prepared.config.options().items() if name not in _PATHS}
    return {
        "host": socket.gethostname(),
        **options,
        "--shards (their digest)": prepared.corpus.manifest.corpus_digest,
        "--eval-shards (their digest)": "none" if evaluated is None else evaluated.manifest.corpus_digest,
        "config.json of the model (its digest)": config_digest,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _leave(path: Path, token: str) -> None:
    try:
        write_text(path, token)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written ({error.strerror})", "give another --out") from None


def _see(path: Path, token: str, ranks: Ranks) -> None:
    until = time.monotonic() + _SHOWN_WITHIN_S
    while True:
        try:
            if path.read_text(encoding="utf-8") == token:
                return
        except (OSError, UnicodeDecodeError):
            pass  # not there yet, or half there
        if time.monotonic() > until:
            raise UserError(
                f"{path.parent}: rank {ranks.rank} ({socket.gethostname()}) does not see what rank 0 writes there",
                "give an --out on a disk that all ranks share: each writes its part of a checkpoint there",
            )
        time.sleep(0.2)
