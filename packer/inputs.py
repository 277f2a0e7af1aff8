"""Everything that decides the bytes of a build, found and checked before anything is written.

inputs = resolve(config)
if (manifest := finished(config, origin(config, inputs))) is not None: ...      # the folder already holds exactly this build
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packer import source as sources
from packer.buildlog import Provenance
from packer.chat.load_renderer import make_renderer
from packer.config import BuildConfig
from packer.digest import digest_words
from packer.encode import EncodeSettings
from packer.encoders import Chosen, choose_encoder
from packer.errors import UserError
from packer.keys import token_key
from packer.manifest import Source, SourceFile
from packer.manifest import Tokenizer as TokenizerEntry
from packer.origin import Origin
from packer.readers import digest
from packer.render import Renderer
from packer.source import SourceSpec
from packer.sources.chosen_splits import LeftOut, line_about
from packer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Everything that decides the bytes, found and checked before anything is written. stamps: of each source's file, taken before its digest.
    not_read: lines about what is left out of folders and files."""

    sources: tuple[SourceSpec, ...]
    entries: tuple[Source, ...]
    tokenizer: Tokenizer
    templates: tuple[str, ...]
    renderer: Renderer
    encoder: Chosen
    stamps: tuple[tuple[int, ...], ...]
    not_read: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What the names in the options stand for, and what would turn their rows into tokens. not_read: lines about files that are no data; left_out: data
    that is not read."""

    sources: tuple[SourceSpec, ...]
    not_read: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    tokenizer: Tokenizer
    templates: tuple[str, ...]
    renderer: Renderer
    encoder: Chosen


def find(config: BuildConfig) -> Found:
    """Finds sources, tokenizer and template, and holds the template against the probe conversation; of the sources no more than a first row is read."""
    opened = sources.open_sources(
        config.sources,
        split=config.split,
        eval_split=config.eval_split,
        revision=config.revision,
        eval_files=config.eval_file,
        config_name=config.config_name,
        with_text=config.format == "text",
    )
    found = opened.sources
    tokenizer = load_tokenizer(config.tokenizer)
    if config.chat_template is not None:
        try:
            template = config.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"--chat-template {config.chat_template}: cannot be read ({why})",
                "give a jinja template as a text file",
            ) from None
        if not template.strip():
            raise UserError(f"--chat-template {config.chat_template}: is empty", "give a jinja template as a text file")
    else:
        template = tokenizer.chat_template or ""
    if not template:
        raise UserError(f"--tokenizer {config.tokenizer}: has no chat template", "give one with --chat-template FILE")
    templates: tuple[str, ...] = (template,)
    if config.chat_template is None and tokenizer.tool_template:
        templates = (template, tokenizer.tool_template)
    try:
        renderer = make_renderer(
            tokenizer, templates, config.policies, date=config.template_date, args=config.template_args
        )
    except UserError as error:
        if config.chat_template is None:
            raise
        # Which of the two templates that there are: the tokenizer has one as well.
        raise UserError(f"--chat-template {config.chat_template}: {error}", error.hint) from None
    for spec in found:
        if spec.file:
            # A file that cannot be opened is told before anything is begun.
            next(sources.read(spec, config.policies.layout.columns), None)
    _keep_apart(config, tokenizer, found)
    chosen = choose_encoder(config.encoder, tokenizer.backend)
    tokenizer.use(chosen.encoder)
    return Found(
        sources=found,
        not_read=opened.not_read,
        left_out=opened.left_out,
        tokenizer=tokenizer,
        templates=templates,
        renderer=renderer,
        encoder=chosen,
    )


def resolve(config: BuildConfig) -> Inputs:
    """What `find` finds, and the digests of what will be read."""
    found = find(config)
    stamps = tuple(_stamp(spec) for spec in found.sources)
    entries = tuple(
        Source(
            name=spec.name,
            revision=spec.revision or "",
            config=spec.config,
            split=spec.split,
            used_for="eval" if spec.is_eval else "train",
            files=(SourceFile(file=spec.name, xxh3_128=digest(spec.file)),) if spec.file else (),
            weight=str(spec.weight),
            conversations=0,
        )
        for spec in found.sources
    )
    return Inputs(
        sources=found.sources,
        entries=entries,
        tokenizer=found.tokenizer,
        templates=found.templates,
        renderer=found.renderer,
        encoder=found.encoder,
        stamps=stamps,
        not_read=(*found.not_read, *(line_about(one, count=True) for one in found.left_out)),
    )


def _keep_apart(config: BuildConfig, tokenizer: Tokenizer, found: Sequence[SourceSpec]) -> None:
    """Raises UserError where something that is read lies in the folder that is written: clearing it would take the input away."""
    out = config.out.resolve()
    read = [Path(spec.file) for spec in found if spec.file and "://" not in spec.file]
    for path in [*read, tokenizer.folder, *([config.chat_template] if config.chat_template else [])]:
        if path.resolve().is_relative_to(out):
            raise UserError(f"{path} lies in the output folder {config.out}", "give another folder with -o")


def encode_settings(config: BuildConfig, inputs: Inputs) -> EncodeSettings:
    """What the workers tokenize with; the tokenizer as it lies in the output folder, the one place that all of them can reach."""
    out = config.out.resolve()
    return EncodeSettings(
        folder=out / "tokens",
        tokenizer=str(out / "tokenizer"),
        templates=inputs.templates,
        template_date=config.template_date,
        template_args=json.dumps(config.template_args),
        policies=config.policies,
        encoder=inputs.encoder.name,
    )


def token_keys(config: BuildConfig, inputs: Inputs) -> list[str]:
    """What decides the parts of each source in the token store."""
    tokenizer_digest = inputs.tokenizer.digest
    return [
        token_key(config, entry, tokenizer_digest=tokenizer_digest, template=digest_words(inputs.templates))
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


def origin(config: BuildConfig, inputs: Inputs) -> Origin:
    """What the tokens will be made of and by, as the manifest has it."""
    tokenizer = inputs.tokenizer
    return Origin(
        sources=inputs.entries,
        tokenizer=TokenizerEntry(name=tokenizer.name, revision=tokenizer.revision, digest=tokenizer.digest),
        chat_template=digest_words(inputs.templates),
        method=inputs.renderer.method,
        stop_ids=inputs.renderer.stop_ids,
        pad_id=tokenizer.pad_id,
        vocab_size=tokenizer.vocab_size,
        wants_eval=bool(config.eval_fraction) or any(spec.is_eval for spec in inputs.sources),
    )


def provenance(config: BuildConfig, inputs: Inputs) -> Provenance:
    """What made the tokens, for the build's log."""
    return Provenance(
        encoder=inputs.encoder.name,
        encoder_reason=inputs.encoder.reason,
        tokenizer_path=str(inputs.tokenizer.folder.resolve()) if Path(config.tokenizer).is_dir() else "",
        chat_template_path=str(config.chat_template.resolve()) if config.chat_template else "",
        sources=tuple(_where(spec) for spec in inputs.sources),
        not_read=inputs.not_read,
        remarks=(*inputs.renderer.remarks, *template_lines(config, inputs.renderer)),
    )


def template_lines(config: BuildConfig, renderer: Renderer) -> tuple[str, ...]:
    """What of the template the data does not decide, for the report."""
    lines = []
    if config.template_args:
        lines.append(
            "template arguments: " + ", ".join(f"{k}={json.dumps(v)}" for k, v in config.template_args.items())
        )
    if renderer.written_first:
        lines.append(f"the template itself writes before the first message: {renderer.written_first}")
    return tuple(lines)


def _where(spec: SourceSpec) -> str:
    """A file's path from the root, whatever folder the build was started in; links are not followed: the suffix of a name says how it is read."""
    if spec.file is None:
        return spec.name
    return spec.file if "://" in spec.file else str(Path(spec.file).absolute())
