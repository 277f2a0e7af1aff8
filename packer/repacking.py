"""`packer repack`: rows of another capacity from a folder's token store, without tokenizing again.

    manifest = repack(RepackConfig(source=Path("data/packed"), out=Path("data/packed-16k"), capacity=16384))

What comes of it is, byte for byte, what `packer build` with these options makes of the sources: the same parts of the token store go through the same code.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import packer
from packer.account import Account
from packer.assemble import assemble
from packer.build_options import options_of, weights_of
from packer.buildlog import LOG_NAME, build_log, provenance_of
from packer.config import BuildConfig
from packer.engine import LocalEngine
from packer.errors import UserError
from packer.files import remove_temporary, sync_folder, temporary_name, write_text
from packer.folder import claim, keep_only, set_aside, settle
from packer.manifest import MANIFEST_NAME, Manifest, load_manifest
from packer.origin import Origin, finished
from packer.progress import Progress
from packer.token_part import part_paths, read_part
from packer.words import Overlong, Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class RepackConfig:
    """What to repack, and where to. None: as the source folder was built. token_store: link its tokens into the new folder. shard_rows 0: about 256 MB
    a shard. max_segments: "auto", 0 (no cap) or a number, the pad tail counted.
    """

    source: Path
    out: Path
    capacity: int
    max_segments: str | int | None = None
    align: int | None = None
    strategy: Strategy | None = None
    overlong: Overlong | None = None
    seed: int | None = None
    shard_rows: int = 0
    max_loss: Fraction = Fraction(1, 100)
    workers: int = 0
    token_store: bool = True
    force: bool = False


def repack(config: RepackConfig, progress: Progress | None = None) -> Manifest:
    """Writes the new folder and returns its manifest; where it already holds exactly these rows, returns that manifest and writes nothing.

    Raises UserError where the source folder is not a finished one, has no whole token store, or is the folder to write; GateError where more than
    `max_loss` was lost.
    """
    progress = progress or Progress()
    started = time.time()
    there = load_manifest(config.source)
    _refuse(config, there)
    options, origin = _options(config, there), _origin(there)
    settle(options.out)
    if (manifest := finished(options, origin)) is not None:
        progress.say(f"{options.out} already holds these rows: nothing to do")
        return manifest
    try:
        with LocalEngine(workers=options.worker_count, folder=options.out) as engine, claim(options.out):
            tokens = config.source / "tokens"
            account = _account(options, there, tokens, progress)
            manifest = assemble(options, origin, account, tokens, engine, progress)
            shutil.copytree(config.source / "tokenizer", options.out / "tokenizer")
            if config.token_store:
                _link(tokens, options.out / "tokens")
            seconds = {"all": time.time() - started}
            log = build_log(options, provenance_of(config.source), started=started, seconds=seconds)
            write_text(options.out / LOG_NAME, log)
            set_aside(options.out, ["plan"] if config.token_store else ["plan", "tokens"])
            write_text(options.out / MANIFEST_NAME, manifest.to_json())
            return manifest
    except OSError as error:
        raise UserError(
            f"{options.out}: cannot be written ({error.strerror or error})",
            "free some space or mend the folder's permissions, and run the same command again: what is finished is kept",
        ) from None


def _options(config: RepackConfig, there: Manifest) -> BuildConfig:
    """The options that `packer build` would have to be given for the same rows; raises UserError where one cannot be."""
    built = options_of(there, config.source)
    segments = built.max_segments if config.max_segments is None else config.max_segments
    return replace(
        built,
        out=config.out,
        capacity=config.capacity,
        max_segments=None if segments == "auto" else segments,  # type: ignore[arg-type]  # the only word there is
        align=built.align if config.align is None else config.align,
        strategy=config.strategy or built.strategy,
        overlong=config.overlong or built.overlong,
        seed=built.seed if config.seed is None else config.seed,
        shard_rows=config.shard_rows,
        max_loss=config.max_loss,
        workers=config.workers,
        token_store=config.token_store,
        force=config.force,
    )


def _refuse(config: RepackConfig, there: Manifest) -> None:
    source, out = config.source.resolve(), config.out.resolve()
    if out.is_relative_to(source) or source.is_relative_to(out):
        raise UserError(
            f"{config.out}: lies in the folder that is read, or around it ({config.source})",
            "give another folder with -o",
        )
    if there.packer_version != packer.__version__:
        raise UserError(
            f"{config.source}: was built by packer {there.packer_version}, and this is {packer.__version__}: its tokens need not be those of today",
            "build it again from its sources, or repack with the packer that built it",
        )
    if not part_paths(config.source / "tokens"):
        raise UserError(
            f"{config.source}: has no token store (it was built with --no-token-store)",
            f"build from the sources: packer build … --capacity {config.capacity} -o {config.out}",
        )


def _origin(there: Manifest) -> Origin:
    return Origin(
        sources=there.sources,
        tokenizer=there.tokenizer,
        chat_template=there.chat_template,
        method=there.masking.method,
        stop_ids=there.stop_ids,
        pad_id=there.pad_id,
        vocab_size=there.vocab_size,
        wants_eval="eval" in there.splits,
    )


def _account(options: BuildConfig, there: Manifest, tokens: Path, progress: Progress) -> Account:
    """Goes through the store; raises UserError where a part is damaged, or parts are missing."""
    account = Account(options, weights_of(there, tokens.parent))
    total = sum(source.conversations for source in there.sources)
    with progress.stage("read tokens", unit="conversations", total=total) as advance:
        account.take(options.out, _whole_parts(tokens), lambda head: advance(head.rows))
    expected = [source.conversations for source in there.sources]
    if account.intake.read != expected:
        raise UserError(
            f"{tokens}: holds {sum(account.intake.read)} conversations, but {sum(expected)} were read: parts are missing",
            "restore the folder from a copy, or build it again",
        )
    return account


def _whole_parts(tokens: Path) -> Iterator[Path]:
    for path in part_paths(tokens):
        head, part = read_part(path, validate=True)
        if part.digest() != head.digest:
            raise UserError(
                f"{path}: its tokens are not those that were written (digest differs)",
                "restore the folder from a copy, or build it again",
            )
        yield path


def _link(tokens: Path, to: Path) -> None:
    """The parts in another folder too: the same files where the file system can, else copies. packer never writes into a part, it replaces it."""
    to.mkdir(exist_ok=True)
    remove_temporary(to)
    paths = part_paths(tokens)
    keep_only(to, {path.name for path in paths})
    for path in paths:
        temporary = to / temporary_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(to / path.name)
    sync_folder(to)
