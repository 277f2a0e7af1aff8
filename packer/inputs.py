"""Everything that decides the bytes of a build, found and checked before anything is written.

inputs = resolve(config)
if (manifest := finished(config, inputs)) is not None: ...      # the folder already holds exactly this build
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import packer
from packer import source as sources
from packer.config import BuildConfig
from packer.digest import digest_words
from packer.encode import EncodeSettings
from packer.encoders import Chosen, choose_encoder
from packer.errors import UserError
from packer.intake import hold_loss
from packer.keys import token_key
from packer.ledger import Books
from packer.manifest import MANIFEST_NAME, Manifest, Source, SourceFile, load_manifest
from packer.readers import digest
from packer.render import Renderer
from packer.source import SourceSpec
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Everything that decides the bytes, found and checked before anything is written. stamps: of each source's file, taken before its digest."""

    sources: tuple[SourceSpec, ...]
    entries: tuple[Source, ...]
    tokenizer: Tokenizer
    template: str
    renderer: Renderer
    encoder: Chosen
    stamps: tuple[tuple[int, ...], ...]

    def wants_eval(self, config: BuildConfig) -> bool:
        """Whether an eval split was asked for (it may turn out empty)."""
        return bool(config.eval_fraction) or any(spec.is_eval for spec in self.sources)


def resolve(config: BuildConfig) -> Inputs:
    """Finds sources, tokenizer and template, and holds the template against the probe conversation."""
    found = sources.open_sources(
        config.sources, split=config.split, eval_split=config.eval_split, revision=config.revision
    )
    tokenizer = load_tokenizer(config.tokenizer)
    if config.chat_template is not None:
        try:
            template: str | None = config.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"--chat-template {config.chat_template}: cannot be read ({why})",
                "give a jinja template as a text file",
            ) from None
    else:
        template = tokenizer.chat_template
    if not template:
        raise UserError(f"--tokenizer {config.tokenizer}: has no chat template", "give one with --chat-template FILE")
    chat_template = ChatTemplate(template, special_tokens=tokenizer.special_tokens, date=config.template_date)
    renderer = Renderer(tokenizer, chat_template, config.policies)
    for spec in found:
        if spec.file:
            # A file that cannot be opened is told before anything is begun.
            next(sources.read(spec, config.policies.layout.columns), None)
    stamps = tuple(_stamp(spec) for spec in found)
    entries = tuple(
        Source(
            name=spec.name,
            revision=spec.revision or "",
            split=spec.split,
            files=(SourceFile(file=spec.name, xxh3_128=digest(spec.file)),) if spec.file else (),
            weight=str(spec.weight),
            conversations=0,
        )
        for spec in found
    )
    _keep_apart(config, tokenizer, found)
    chosen = choose_encoder(config.encoder, tokenizer.backend)
    tokenizer.use(chosen.encoder)
    return Inputs(
        sources=tuple(found),
        entries=entries,
        tokenizer=tokenizer,
        template=template,
        renderer=renderer,
        encoder=chosen,
        stamps=stamps,
    )


def _keep_apart(config: BuildConfig, tokenizer: Tokenizer, found: Sequence[SourceSpec]) -> None:
    """Raises UserError where something that is read lies in the folder that is written: clearing it would take the input away."""
    out = config.out.resolve()
    read = [Path(spec.file) for spec in found if spec.file and "://" not in spec.file]
    for path in [*read, tokenizer.folder, *([config.chat_template] if config.chat_template else [])]:
        if path.resolve().is_relative_to(out):
            raise UserError(f"{path} lies in the output folder {config.out}", "give another folder with -o")


def finished(config: BuildConfig, inputs: Inputs) -> Manifest | None:
    """The manifest in the output folder if it is of this very build; raises UserError if it is of another and --force was not given."""
    if config.force or not (config.out / MANIFEST_NAME).is_file():
        return None
    there = load_manifest(config.out)
    pairs: dict[str, tuple[object, object]] = {
        "packer version": (there.packer_version, packer.__version__),
        "capacity": (there.capacity, config.capacity),
        "shard rows": (there.shard_rows, config.rows_a_shard),
        "strategy": (there.strategy, config.strategy),
        "seed": (there.seed, config.seed),
        "tokenizer": (there.tokenizer.digest, inputs.tokenizer.digest),
        "chat template": (there.chat_template, digest_words([inputs.template])),
        "sources": (tuple(replace(entry, conversations=0) for entry in there.sources), inputs.entries),
        "token store": ((config.out / "tokens").is_dir(), config.token_store),
        **{name.replace("_", " "): (there.options.get(name), value) for name, value in config.row_options().items()},
    }
    changed = [name for name, (old, new) in pairs.items() if old != new]
    if not changed:
        # A folder whose shards are damaged is not this build; opening it holds their sizes against the manifest.
        for split in there.splits:
            packer.open(config.out, split=split)
        books = Books(conversations=dict(there.ledger.conversations), tokens=dict(there.ledger.tokens))
        hold_loss(books, max_loss=config.max_loss, out=config.out)
        missing = [
            name
            for name in ("examples", "tokenizer", "rejects.jsonl", "build-log.json")
            if not (config.out / name).exists()
        ]
        if missing:
            raise UserError(
                f"{config.out}: {missing[0]} is missing from a finished build", "build it again with --force"
            )
        return there
    raise UserError(
        f"{config.out} holds another build (other {', '.join(changed)})",
        "give another folder with -o, or --force to replace it",
    )


def encode_settings(config: BuildConfig, inputs: Inputs) -> EncodeSettings:
    """What the workers tokenize with; the tokenizer as it lies in the output folder, the one place that all of them can reach."""
    return EncodeSettings(
        folder=config.out / "tokens",
        tokenizer=str(config.out / "tokenizer"),
        template=inputs.template,
        template_date=config.template_date,
        policies=config.policies,
        encoder=inputs.encoder.name,
    )


def token_keys(config: BuildConfig, inputs: Inputs) -> list[str]:
    """What decides the parts of each source in the token store."""
    tokenizer_digest = inputs.tokenizer.digest
    return [
        token_key(config, entry, tokenizer_digest=tokenizer_digest, template=inputs.template)
        for entry in inputs.entries
    ]


def changed_source(inputs: Inputs) -> str | None:
    """A file that is not the one any more whose digest was taken, if there is one."""
    pairs = zip(inputs.sources, inputs.stamps, strict=True)
    return next((spec.file for spec, stamp in pairs if _stamp(spec) != stamp), None)


def _stamp(spec: SourceSpec) -> tuple[int, ...]:
    """What changes when somebody writes to a file on this machine; nothing of others."""
    if spec.file is None or "://" in spec.file:
        return ()
    try:
        status = Path(spec.file).stat()
    except FileNotFoundError:
        return (0,)
    return status.st_ino, status.st_size, status.st_mtime_ns


def build_log(config: BuildConfig, inputs: Inputs, started: float, seconds: Mapping[str, float]) -> str:
    """What must not decide bytes, for people who wonder later."""
    log = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": {stage: round(taken, 3) for stage, taken in seconds.items()},
        "host": platform.node(),
        "workers": config.worker_count,
        "engine": config.engine,
        "encoder": inputs.encoder.name,
        "encoder_reason": inputs.encoder.reason,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("numpy", "pyarrow", "tokenizers", "transformers", "jinja2")
        },
        "python": platform.python_version(),
        "tokenizer_path": str(inputs.tokenizer.folder.resolve()) if Path(config.tokenizer).is_dir() else "",
        "sources": [spec.file or spec.name for spec in inputs.sources],
    }
    # ASCII: the path of a file need not be UTF-8.
    return json.dumps(log, indent=1, sort_keys=True) + "\n"
