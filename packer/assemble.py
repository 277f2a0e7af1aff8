"""From a whole token store to a finished folder: books, one plan, shards, manifest. What `packer build` and `packer repack` have in common.

    manifest = assemble(config, origin, account, tokens, engine, progress)

Nothing in here reads a source or a tokenizer, so that equal tokens and equal options end in equal bytes, whoever made the tokens.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import packer
from packer.account import Account
from packer.config import BuildConfig
from packer.engine import Engine
from packer.errors import UserError
from packer.files import write_text
from packer.folder import keep_only
from packer.intake import Intake
from packer.listing import Examples
from packer.manifest import Manifest, Masking, corpus_digest
from packer.origin import Origin
from packer.plan import make_plan
from packer.progress import Progress
from packer.rows import Places, PlannedSplit, RowShape, WrittenSplit, write_split
from packer.schema import format_version


def assemble(
    config: BuildConfig,
    origin: Origin,
    account: Account,
    tokens: Path,
    engine: Engine,
    progress: Progress,
) -> Manifest:
    """Plans, writes the shards that are not there already, and returns the manifest, which is the caller's to write: last.

    tokens: the folder of the token store that the account is of. Raises UserError where nothing is left to pack, GateError where more was lost than `max_loss` (rejects.jsonl is written first).
    """
    intake, examples = account.intake, account.examples
    write_text(config.out / "rejects.jsonl", intake.rejects_file())
    intake.hold_gates()
    names = ("train", "eval") if origin.wants_eval else ("train",)
    for split in {"train", "eval"} - set(names):
        keep_only(config.out / split, [])
    shape = RowShape(
        capacity=config.capacity,
        pad_id=origin.pad_id,
        vocab_size=origin.vocab_size,
        shard_rows=config.rows_a_shard,
        align=config.align,
        weighted=intake.weighted,
    )
    places = Places(out=config.out.resolve(), tokens=tokens.resolve(), tokens_digest=account.digest)
    written: dict[str, WrittenSplit] = {}
    for name in names:
        began = time.monotonic()
        planned = _plan(config, name, examples)
        progress.detail(
            f"plan {name}: {len(planned.plan.members):,} examples in {len(planned.plan):,} rows, {time.monotonic() - began:.2f} s"
        )
        with progress.stage(f"write {name} rows", unit="rows", total=len(planned.plan)) as advance:
            written[name] = write_split(places, planned, examples, shape, engine, advance)
    if kept := sum(one.kept for one in written.values()):
        progress.say(f"{kept} of {sum(len(one.split.shards) for one in written.values())} shards were there")
    return _manifest(config, origin, intake, examples, written)


def _plan(config: BuildConfig, name: str, examples: Examples) -> PlannedSplit:
    """The plan of one split, over all of its examples."""
    chosen = None
    if examples.is_eval.any() or name == "eval":
        chosen = np.flatnonzero(examples.is_eval == (name == "eval"))
    if name == "train" and not len(examples if chosen is None else chosen):
        raise UserError(
            "every conversation fell to the eval split: nothing to train on", "give a smaller --eval-fraction"
        )
    # make_plan counts examples only; --max-segments counts the pad tail too.
    limit = None if config.max_segments is None else max(config.max_segments - 1, 0)
    plan = make_plan(
        examples.lengths if chosen is None else examples.lengths[chosen],
        capacity=config.capacity,
        max_segments=limit,
        align=config.align,
        strategy=config.strategy,
        seed=config.seed,
    )
    return PlannedSplit(name=name, examples=chosen, plan=plan)


def _manifest(
    config: BuildConfig, origin: Origin, intake: Intake, examples: Examples, written: dict[str, WrittenSplit]
) -> Manifest:
    splits = {name: one.split for name, one in written.items()}
    max_segments = splits["train"].max_segments
    return Manifest(
        format_version=format_version(weighted=intake.weighted),
        packer_version=packer.__version__,
        capacity=config.capacity,
        max_segments=max_segments,
        shard_rows=config.rows_a_shard,
        max_segment_len=max(one.max_segment_len for one in written.values()),
        # With its alignment padding, which has positions too.
        max_example_len=-(-int(examples.lengths.max()) // config.align) * config.align,
        pad_id=origin.pad_id,
        vocab_size=origin.vocab_size,
        max_token_id=max(one.max_token_id for one in written.values()),
        stop_ids=origin.stop_ids,
        sources=tuple(
            replace(source, conversations=count) for source, count in zip(origin.sources, intake.read, strict=True)
        ),
        tokenizer=origin.tokenizer,
        chat_template=origin.chat_template,
        masking=Masking(policy=config.train_on, method=origin.method),
        options=config.row_options(),
        seed=config.seed,
        strategy=config.strategy,
        splits=splits,
        ledger=intake.ledger(),
        corpus_digest=corpus_digest(splits, capacity=config.capacity, max_segments=max_segments, pad_id=origin.pad_id),
    )
