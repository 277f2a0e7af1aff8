"""What a checkpoint says about its run, and which checkpoint a run goes on from. Knows nothing of torch, so that a dry run can look too.

found = find(prepared)
refuse_other_run(read_record(found), record(prepared, step=0, config_digest=digest), checkpoint=found)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from packer.console import TomlValue
from packer.digest import digest_file
from packer.errors import UserError
from trainer.prepare import Prepared

FOLDER, RECORD, METADATA = "checkpoints", "run.json", ".metadata"
# What may change from one part of a run to the next without a word.
_QUIET = ("out", "resume", "shards", "cache", "model", "steps", "epochs")
_REMOVE = "remove this checkpoint: the run goes on from the one before it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Beside the tensors. The fields from corpus_digest to config_digest may not differ when a run goes on; `options` are all of the run's.

    config_digest: of the model's config.json. skipped: updates left out because their gradient was not finite. files: the checkpoint's own
    and their xxh3-128.
    """

    step: int
    steps: int
    corpus_digest: str
    rows_per_step: int
    positions: int
    seed: int
    balance: str
    loss_weighting: str
    model: str
    config_digest: str
    options: Mapping[str, TomlValue | None]
    skipped: int = 0
    files: Mapping[str, str] = field(default_factory=dict)


_FIXED = {
    "corpus_digest": "--shards",
    "rows_per_step": "--rows-per-step",
    "positions": "--steps or --epochs (rows trained on in all)",
    "seed": "--seed",
    "balance": "--balance",
    "loss_weighting": "--loss-weighting",
    "model": "--model",
    "config_digest": "the model's config.json (its digest)",
}


def record(prepared: Prepared, *, step: int, config_digest: str, skipped: int = 0) -> Record:
    """The record of a run after `step` steps; the files are named when they are written."""
    config, order = prepared.config, prepared.order
    return Record(
        step=step,
        steps=order.steps,
        corpus_digest=prepared.corpus.manifest.corpus_digest,
        rows_per_step=order.rows_per_step,
        positions=order.positions,
        seed=order.seed,
        balance=config.balance,
        loss_weighting=config.loss_weighting,
        model=Path(prepared.model).name,
        config_digest=config_digest,
        options=config.options(),
        skipped=skipped,
    )


def find(prepared: Prepared) -> Path | None:
    """The checkpoint that `--resume` means, None to start afresh; raises UserError where that would lose or mix up what lies there."""
    wish, folder = prepared.config.resume, prepared.folder
    here = newest(folder)
    if wish == "auto":
        return here
    if wish == "never":
        if here is not None:
            raise UserError(
                f"{folder}: holds a run with checkpoints up to {here.name}, and --resume never would write over it",
                "give another --out, remove the folder, or leave --resume at auto to go on with that run",
            )
        return None
    path = Path(wish)
    found = path if (path / RECORD).is_file() else newest(path)
    if found is None:
        raise UserError(
            f"--resume {wish}: no complete checkpoint there", "give a run's folder, or its checkpoints/step-… folder"
        )
    if here is not None and here.resolve() != found.resolve():
        raise UserError(
            f"{folder}: has checkpoints of its own, the newest is {here.name}",
            "give another --out to go on from elsewhere or from an earlier step",
        )
    return found


def newest(run: Path) -> Path | None:
    """The complete checkpoint of a run's folder with the highest step."""
    found = complete(run)
    return found[-1] if found else None


def complete(run: Path) -> list[Path]:
    """The complete checkpoints of a run's folder, by step."""
    found = [path for path in (run / FOLDER).glob("step-*") if path.name[5:].isdecimal() and (path / RECORD).is_file()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def read_record(checkpoint: Path) -> Record:
    """The record of a complete checkpoint; raises UserError where it cannot be read."""
    path = checkpoint / RECORD
    try:
        found = Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: not readable ({error})", _REMOVE) from None
    kinds = {"int": int, "str": str}
    for each in fields(Record):
        kind, value = kinds.get(str(each.type), dict), getattr(found, each.name)
        if type(value) is not kind:
            raise UserError(f"{path}: not readable ({each.name} is {value!r})", _REMOVE)
    if not (0 <= found.step <= found.steps and 0 <= found.skipped <= found.step):
        said = f"step {found.step} of {found.steps}, {found.skipped} skipped"
        raise UserError(f"{path}: not readable ({said})", _REMOVE)
    return found


def hold_files(checkpoint: Path, files: Mapping[str, str], names: Sequence[str], *, hint: str) -> None:
    """Holds files of a checkpoint against the digests that were noted when they were written (`files`: all of them). Raises UserError naming one that
    differs or cannot be read, with this hint."""
    if METADATA not in files:
        raise UserError(f"{checkpoint / RECORD}: names no {METADATA}", hint)
    for name in names:
        path = checkpoint / name
        try:
            same = digest_file(path) == files[name]
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})", hint) from None
        if not same:
            raise UserError(f"{path}: its bytes are not those that were written", hint)


def refuse_other_run(saved: Record, now: Record, *, checkpoint: Path) -> None:
    """Raises UserError, naming what differs, where `now` would train on other rows or another model than the run that saved."""
    differing = [name for name in _FIXED if getattr(saved, name) != getattr(now, name)]
    if differing:
        told = "; ".join(f"{_FIXED[name]}: {getattr(saved, name)} then, {getattr(now, name)} now" for name in differing)
        raise UserError(
            f"{checkpoint}: saved by another run ({told})",
            "give the options it was started with, or another --out for a new run",
        )


def changed_options(saved: Record, now: Record) -> list[str]:
    """Options that differ and may: "lr: 1e-05 → 2e-05"."""
    plain = json.loads(json.dumps(now.options))
    return [
        f"{name}: {saved.options.get(name)} → {plain[name]}"
        for name in plain
        if name not in _QUIET and saved.options.get(name) != plain[name]
    ]
