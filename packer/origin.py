"""Where the tokens of a build come from, and whether a folder already holds the very build that is asked for.

if (manifest := finished(config, origin)) is not None: ...      # nothing to do
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from packer.intake import enforce_print_limit, hold_loss
from packer.ledger import Books
from packer.manifest import MANIFEST_NAME, Manifest, Source, Tokenizer, load_manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What the tokens are made of and by, as the manifest has it. wants_eval: an eval split was asked for (it may turn out empty)."""

    sources: tuple[Source, ...]
    tokenizer: Tokenizer
    chat_template: str
    method: str
    stop_ids: tuple[int, ...]
    pad_id: int
    vocab_size: int
    wants_eval: bool


def finished(config: BuildConfig, origin: Origin) -> Manifest | None:
    """The manifest in the output folder if it is of this very build; raises UserError if it is of another and --force was not given."""
    if config.force or not (config.out / MANIFEST_NAME).is_file():
        return None
    there = load_manifest(config.out)
    changed = differences(there, config, origin, token_store=(config.out / "tokens").is_dir())
    if changed:
        raise UserError(
            f"{config.out} holds another build (other {', '.join(changed)})",
            "give another folder with -o, or --force to replace it",
        )
    # A folder whose shards are damaged is not this build; opening it holds their sizes against the manifest.
    for split in there.splits:
        packer.open(config.out, split=split)
    books = Books(conversations=dict(there.ledger.conversations), tokens=dict(there.ledger.tokens))
    hold_loss(books, max_loss=config.max_loss, out=config.out)
    enforce_print_limit(there.ledger.notes, encoded=there.ledger.tokens["encoded"], limit=config.max_unprinted)
    for name in ("examples", "tokenizer", "rejects.jsonl", "build-log.json"):
        if not (config.out / name).exists():
            raise UserError(f"{config.out}: {name} is missing from a finished build", "build it again with --force")
    return there


def differences(there: Manifest, config: BuildConfig, origin: Origin, *, token_store: bool) -> list[str]:
    """What is other about a finished build than about the one that is asked for, in words; token_store: whether it has one."""
    options = config.row_options()
    pairs: dict[str, tuple[object, object]] = {
        "packer version": (there.packer_version, packer.__version__),
        "capacity": (there.capacity, config.capacity),
        "shard rows": (there.shard_rows, config.rows_a_shard),
        "align": (there.align, config.align),
        "strategy": (there.strategy, config.strategy),
        "seed": (there.seed, config.seed),
        "tokenizer": (there.tokenizer.digest, origin.tokenizer.digest),
        "chat template": (there.chat_template, origin.chat_template),
        "sources": (_bare(there.sources), _bare(origin.sources)),
        "token store": (token_store, config.token_store),
        **{
            name.replace("_", " "): (there.options.get(name), options.get(name))
            for name in {**there.options, **options}
        },
    }
    return [name for name, (old, new) in pairs.items() if old != new]


def _bare(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    return tuple(replace(source, conversations=0) for source in sources)
