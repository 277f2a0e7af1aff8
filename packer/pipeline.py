"""`packer build`: sources → token store → plan → shards → manifest.

    manifest = build(BuildConfig(datasets=("chats.jsonl",), tokenizer="path/to/tokenizer", out=Path("data/packed"), capacity=4096))

The stages meet only on disk and in 9 bytes an example: memory does not grow with the text. Every stage is made of tasks that write a file each, whole
or not at all; a build that was killed takes the files of an earlier one that were decided by the same, and makes the others.
"""

from __future__ import annotations

import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import replace

from packer.account import Account
from packer.assemble import assemble
from packer.buildlog import LOG_NAME, build_log
from packer.config import BuildConfig
from packer.encode import make_part_writer, part_writer
from packer.encoders import EncoderDiffersError, reference
from packer.engine import Engine, LocalEngine
from packer.errors import UserError
from packer.files import write_text
from packer.folder import claim, set_aside, settle
from packer.inputs import Inputs, changed_source, encode_settings, origin, provenance, resolve, token_keys
from packer.intake import Weighted
from packer.manifest import MANIFEST_NAME, Manifest
from packer.origin import finished
from packer.parts import Parts, raw_parts
from packer.progress import Progress
from packer.source import size
from packer.tokenizer import TEMPLATE_NAME, TOOL_TEMPLATE_NAME

# Below this, starting processes takes longer than they save: two seconds of tokenizing, which a fast encoder fills with more text.
_SMALL_BYTES = 10 << 20
_SMALL_BYTES_FAST = 44 << 20
_MEGABYTE = 1e6


def build(config: BuildConfig, progress: Progress | None = None) -> Manifest:
    """Builds the folder and returns its manifest; where the folder already holds exactly this build, returns that manifest and writes nothing.

    Raises UserError on wrong input, GateError where more than `max_loss` was lost (no manifest is written then, but rejects.jsonl is).
    """
    progress = progress or Progress()
    started = time.time()
    inputs = resolve(config)
    for line in inputs.not_read:
        progress.say(line)
    for spec in inputs.sources:
        progress.detail(
            f"source: {spec.file or f'{spec.name} (split {spec.split}, revision {spec.revision})'} × {spec.weight}"
        )
    progress.detail(f"tokenizer: {inputs.tokenizer.folder}; encoder: {inputs.encoder.name} ({inputs.encoder.reason})")
    settle(config.out)
    if (manifest := finished(config, origin(config, inputs))) is not None:
        progress.say(f"{config.out} already holds this build: nothing to do")
        return manifest
    try:
        with _engine(config) as engine, claim(config.out):
            return _build(config, inputs, engine, progress, started)
    except OSError as error:
        raise UserError(
            f"{config.out}: cannot be written ({error.strerror or error})",
            "free some space or mend the folder's permissions, and run the same command again: what is finished is kept",
        ) from None


def _engine(config: BuildConfig) -> AbstractContextManager[Engine]:
    if config.engine == "ray":
        from packer.engine_ray import RayEngine

        return RayEngine(address=config.ray_address, workers=config.worker_count, folder=config.out)
    return LocalEngine(workers=config.worker_count, folder=config.out)


def _build(config: BuildConfig, inputs: Inputs, engine: Engine, progress: Progress, started: float) -> Manifest:
    inputs.tokenizer.save(config.out / "tokenizer")
    for name, text in zip((TEMPLATE_NAME, TOOL_TEMPLATE_NAME), inputs.templates, strict=False):
        (config.out / "tokenizer" / name).parent.mkdir(exist_ok=True)
        write_text(config.out / "tokenizer" / name, text)
    try:
        account = _tokenize(config, inputs, engine, progress)
    except EncoderDiffersError as difference:
        progress.say(f"{difference}: starting over with tokenizers")
        engine.settle()
        shutil.rmtree(config.out / "tokens")
        inputs = replace(inputs, encoder=reference(inputs.tokenizer.backend, str(difference)))
        inputs.tokenizer.use(inputs.encoder.encoder)
        account = _tokenize(config, inputs, engine, progress)
    tokenized = time.time()
    manifest = assemble(config, origin(config, inputs), account, config.out / "tokens", engine, progress)
    seconds = {
        "first_part": (account.first_part or tokenized) - started,
        "tokenize": tokenized - started,
        "all": time.time() - started,
    }
    log = build_log(config, provenance(config, inputs), started=started, seconds=seconds)
    write_text(config.out / LOG_NAME, log)
    set_aside(config.out, ["plan"] if config.token_store else ["plan", "tokens"])
    write_text(config.out / MANIFEST_NAME, manifest.to_json())
    return manifest


def _tokenize(config: BuildConfig, inputs: Inputs, engine: Engine, progress: Progress) -> Account:
    """Sources → token store; raises EncoderDiffersError where a fast encoder is caught giving other ids than the reference."""
    whole = None if config.limit else size(inputs.sources)
    account = Account(config, [Weighted(name=one.name, weight=one.weight) for one in inputs.sources])
    small = _SMALL_BYTES if inputs.encoder.name == "tokenizers" else _SMALL_BYTES_FAST
    parts = Parts(
        config.out / "tokens",
        raw_parts(inputs.sources, token_keys(config, inputs), config.policies.layout.columns, limit=config.limit),
    )
    unit, total = ("MB", whole / _MEGABYTE) if whole else ("conversations", None)
    with progress.stage("tokenize", unit=unit, total=total) as advance:
        made = engine.map(
            make_part_writer,
            encode_settings(config, inputs),
            parts.due(),
            here=part_writer(inputs.renderer, config.out / "tokens"),
            alone=whole is not None and whole < small and not config.workers,
        )
        account.take(
            config.out,
            parts.in_order(made),
            lambda head: advance(head.size / _MEGABYTE if whole else head.rows),
        )
    if (changed := changed_source(inputs)) is not None:
        # Its parts are called after a digest that may not be of what was read.
        shutil.rmtree(config.out / "tokens")
        raise UserError(
            f"{changed}: changed while it was read", "run the same command again, when nothing writes to it"
        )
    if parts.kept:
        progress.say(f"{parts.kept} of {parts.count} parts of the token store were there: not tokenized again")
    return account
