"""`packer build`: sources → token store → plan → shards → manifest.

    manifest = build(BuildConfig(datasets=("chats.jsonl",), tokenizer="path/to/tokenizer", out=Path("data/packed"), capacity=4096))

The stages meet only on disk and in four small arrays (an example's place in the store, length, targets and split): memory does not grow with the text.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import packer
from packer.config import BuildConfig
from packer.digest import digest_words
from packer.encode import EncodedSlice, make_slice_encoder, slice_encoder
from packer.encoders import EncoderDiffersError, reference
from packer.engine import map_in_order
from packer.errors import UserError
from packer.files import write_text
from packer.folder import claim, settle
from packer.inputs import Inputs, build_log, encode_settings, finished, resolve
from packer.intake import Examples, Intake, raw_slices
from packer.manifest import MANIFEST_NAME, Manifest, Masking, Tokenizer, corpus_digest
from packer.plan import make_plan
from packer.progress import Progress
from packer.rows import PlannedSplit, RowShape, WrittenSplit, write_examples, write_split
from packer.schema import FORMAT_VERSION
from packer.source import size
from packer.tokens import TokenStore, write_store

_SMALL_BYTES = 64 << 20


def build(config: BuildConfig, progress: Progress | None = None) -> Manifest:
    """Builds the folder and returns its manifest; where the folder already holds exactly this build, returns that manifest and writes nothing.

    Raises UserError on wrong input, GateError where more than `max_loss` was lost (no manifest is written then, but rejects.jsonl is).
    """
    progress = progress or Progress()
    started = time.time()
    inputs = resolve(config)
    if (manifest := finished(config, inputs)) is not None:
        settle(config.out)
        progress.say(f"{config.out} already holds this build: nothing to do")
        return manifest
    try:
        with claim(config.out):
            return _build(config, inputs, progress, started)
    except OSError as error:
        raise UserError(
            f"{config.out}: cannot be written ({error.strerror or error})",
            "free some space or mend the folder's permissions, and run the same command again",
        ) from None


def _build(config: BuildConfig, inputs: Inputs, progress: Progress, started: float) -> Manifest:
    try:
        intake = _tokenize(config, inputs, progress)
    except EncoderDiffersError as difference:
        progress.say(f"{difference}: starting over with tokenizers")
        shutil.rmtree(config.out / "tokens")
        inputs = replace(inputs, encoder=reference(inputs.tokenizer.backend, str(difference)))
        inputs.tokenizer.use(inputs.encoder.encoder)
        intake = _tokenize(config, inputs, progress)
    tokenized = time.time()
    write_text(config.out / "rejects.jsonl", intake.rejects_file())
    intake.hold_gates()

    examples, store = intake.examples, TokenStore(config.out / "tokens")
    planned = _plan(config, inputs, examples)
    shape = RowShape(
        capacity=config.capacity,
        pad_id=inputs.tokenizer.pad_id,
        vocab_size=inputs.tokenizer.vocab_size,
        shard_rows=config.rows_a_shard,
        align=config.align,
    )
    with progress.stage("write rows", unit="rows", total=sum(len(one.plan) for one in planned)) as advance:
        written = {one.name: write_split(config.out, one, examples, store, shape, advance) for one in planned}
    write_examples(config.out, store, examples)
    inputs.tokenizer.save(config.out / "tokenizer")
    write_text(config.out / "tokenizer" / "chat_template.jinja", inputs.template)
    if not config.token_store:
        shutil.rmtree(config.out / "tokens")

    manifest = _manifest(config, inputs, intake, examples, written)
    seconds = {
        "first_slice": (intake.first_slice or tokenized) - started,
        "tokenize": tokenized - started,
        "all": time.time() - started,
    }
    write_text(config.out / "build-log.json", build_log(config, inputs, started, seconds))
    write_text(config.out / MANIFEST_NAME, manifest.to_json())
    return manifest


def _tokenize(config: BuildConfig, inputs: Inputs, progress: Progress) -> Intake:
    """Sources → token store; raises EncoderDiffersError where a fast encoder is caught giving other ids than the reference."""
    whole = None if config.limit else size(inputs.sources)
    intake = Intake(config, sources_count=len(inputs.sources), by_size=whole is not None)

    def noted(slices: Iterator[EncodedSlice]) -> Iterator[EncodedSlice]:
        for encoded in slices:
            intake.first_slice = intake.first_slice or time.time()
            yield encoded

    unit, total = ("MB", whole / 1e6) if whole else ("conversations", None)
    with progress.stage("tokenize", unit=unit, total=total) as advance:
        raw = raw_slices(inputs.sources, config.policies.layout.columns, limit=config.limit, seed=config.seed)
        # Below this, starting processes takes longer than they save.
        small = whole is not None and whole < _SMALL_BYTES
        encoded = map_in_order(
            make_slice_encoder,
            encode_settings(config, inputs),
            raw,
            workers=1 if small and not config.workers else config.worker_count,
            here=slice_encoder(inputs.renderer, config.eval_fraction),
        )
        write_store(config.out / "tokens", intake.account(noted(encoded), advance))
    return intake


def _plan(config: BuildConfig, inputs: Inputs, examples: Examples) -> list[PlannedSplit]:
    """One plan a split, over all of its examples."""
    # make_plan counts examples only; --max-segments counts the pad tail too.
    limit = None if config.max_segments is None else max(config.max_segments - 1, 0)
    planned = []
    for name in ("train", "eval") if inputs.wants_eval(config) else ("train",):
        chosen = np.flatnonzero(examples.is_eval == (name == "eval"))
        plan = make_plan(
            examples.lengths[chosen],
            capacity=config.capacity,
            max_segments=limit,
            align=config.align,
            strategy=config.strategy,
            seed=config.seed,
        )
        planned.append(PlannedSplit(name=name, examples=chosen, plan=plan))
    if not len(planned[0].examples):
        raise UserError(
            "every conversation fell to the eval split: nothing to train on", "give a smaller --eval-fraction"
        )
    return planned


def _manifest(
    config: BuildConfig, inputs: Inputs, intake: Intake, examples: Examples, written: dict[str, WrittenSplit]
) -> Manifest:
    tokenizer = inputs.tokenizer
    splits = {name: one.split for name, one in written.items()}
    max_segments = splits["train"].max_segments
    return Manifest(
        format_version=FORMAT_VERSION,
        packer_version=packer.__version__,
        capacity=config.capacity,
        max_segments=max_segments,
        shard_rows=config.rows_a_shard,
        max_segment_len=max(one.max_segment_len for one in written.values()),
        # With its alignment padding, which has positions too.
        max_example_len=-(-int(examples.lengths.max()) // config.align) * config.align,
        pad_id=tokenizer.pad_id,
        vocab_size=tokenizer.vocab_size,
        max_token_id=max(one.max_token_id for one in written.values()),
        stop_ids=inputs.renderer.stop_ids,
        sources=tuple(
            replace(entry, conversations=count) for entry, count in zip(inputs.entries, intake.read, strict=True)
        ),
        tokenizer=Tokenizer(name=tokenizer.name, revision=tokenizer.revision, digest=tokenizer.digest),
        chat_template=digest_words([inputs.template]),
        masking=Masking(policy=config.train_on, method=inputs.renderer.method),
        options=config.row_options(),
        seed=config.seed,
        strategy=config.strategy,
        splits=splits,
        ledger=intake.ledger(),
        corpus_digest=corpus_digest(
            splits, capacity=config.capacity, max_segments=max_segments, pad_id=tokenizer.pad_id
        ),
    )
