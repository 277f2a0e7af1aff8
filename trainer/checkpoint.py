"""Checkpoints: complete or not there, sharded by rank when written, readable by any number of ranks.

    runs/first/checkpoints/step-000100/    .metadata  __0_0.distcp …  run.json

A checkpoint is written under a temporary name, made durable, and renamed; only then does a reader see it. What a run needs besides the tensors is
one integer and the options that decide which rows a step trains on (`Record`): resuming with others is refused by name.
Saving is synchronous: an asynchronous save has once ended the process.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.optim import AdamW

from packer.console import TomlValue
from packer.errors import UserError
from packer.files import sync_folder, write_text
from trainer.prepare import Prepared
from trainer.ranks import Ranks

FOLDER, RECORD = "checkpoints", "run.json"
# What may change from one part of a run to the next without a word.
_QUIET = ("out", "resume", "shards", "model", "steps", "epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Beside the tensors. The fields from corpus_digest to model may not differ when a run goes on; `options` are all of the run's."""

    step: int
    steps: int
    corpus_digest: str
    rows_per_step: int
    positions: int
    seed: int
    balance: str
    model: str
    options: Mapping[str, TomlValue | None]


_FIXED = {
    "corpus_digest": "--shards",
    "rows_per_step": "--rows-per-step",
    "positions": "--steps or --epochs (rows trained on in all)",
    "seed": "--seed",
    "balance": "--balance",
    "model": "--model",
}


def record(prepared: Prepared, *, step: int) -> Record:
    """The record of a run after `step` updates."""
    config, order = prepared.config, prepared.order
    return Record(
        step=step,
        steps=order.steps,
        corpus_digest=prepared.corpus.manifest.corpus_digest,
        rows_per_step=order.rows_per_step,
        positions=order.positions,
        seed=order.seed,
        balance=config.balance,
        model=Path(prepared.model).name,
        options=config.options(),
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
    complete = _complete(run)
    return complete[-1] if complete else None


def _complete(run: Path) -> list[Path]:
    found = [path for path in (run / FOLDER).glob("step-*") if path.name[5:].isdecimal() and (path / RECORD).is_file()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def read_record(checkpoint: Path) -> Record:
    """The record of a complete checkpoint; raises UserError where it cannot be read."""
    try:
        return Record(**json.loads((checkpoint / RECORD).read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise UserError(
            f"{checkpoint / RECORD}: not readable ({error})",
            "remove this checkpoint: the run goes on from the one before it",
        ) from None


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


def state_of(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Every tensor of a run by name, sharded as it lies: loading writes into these very tensors, so tied weights stay tied."""
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            state[f"optimizer.{key}.{name}"] = value
    return state


def save(prepared: Prepared, model: nn.Module, optimizer: AdamW, *, step: int, ranks: Ranks) -> Path:
    """Saves the run after `step` updates; every rank calls it. Raises UserError, on all ranks, where the disk refuses."""
    final = prepared.folder / FOLDER / f"step-{step:06d}"
    temporary = final.with_name(f".{final.name}.tmp")
    ranks.together(lambda: _on_disk(final, lambda: _clear(temporary) if ranks.first else None))
    try:
        _write(prepared, model, optimizer, step=step, ranks=ranks, temporary=temporary, final=final)
    except UserError:
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)  # the space it takes may be what is lacking
        raise
    return final


def _write(
    prepared: Prepared, model: nn.Module, optimizer: AdamW, *, step: int, ranks: Ranks, temporary: Path, final: Path
) -> None:
    writer = FileSystemWriter(temporary, single_file_per_rank=True, sync_files=True)
    ranks.together(lambda: _on_disk(final, lambda: save_state(dict(state_of(model, optimizer)), storage_writer=writer)))
    note = json.dumps(dataclasses.asdict(record(prepared, step=step)), indent=1) + "\n"
    ranks.together(lambda: _on_disk(final, lambda: _publish(temporary, final, note) if ranks.first else None))


def load(checkpoint: Path, model: nn.Module, optimizer: AdamW) -> None:
    """Reads a checkpoint into the model and the optimiser, whatever number of ranks wrote it; every rank calls it."""
    try:
        load_state(state_of(model, optimizer), storage_reader=FileSystemReader(checkpoint))
    except CheckpointException as error:
        raise UserError(
            f"{checkpoint}: cannot be loaded ({_first_line(error)})",
            "remove this checkpoint: the run goes on from the one before it",
        ) from None


def prune(run: Path, *, keep: int) -> list[Path]:
    """Removes all but the newest `keep` complete checkpoints (0: none is removed); returns those removed."""
    old = _complete(run)[:-keep] if keep else []
    for path in old:
        # Renamed first: a removal that is cut short must not leave half a checkpoint under its name.
        gone = path.rename(path.with_name(f".{path.name}.tmp"))
        shutil.rmtree(gone)
    return old


def _on_disk(final: Path, work: Callable[[], object]) -> None:
    try:
        work()
    except CheckpointException as error:
        raise UserError(
            f"{final}: cannot be saved ({_first_line(error)})", "free space there, or give another --out"
        ) from None
    except OSError as error:
        raise UserError(
            f"{final}: cannot be saved ({error.strerror})", "free space there, or give another --out"
        ) from None


def _first_line(error: CheckpointException) -> str:
    cause = next(iter(error.failures.values()))[0]
    return (str(cause).splitlines() or [type(cause).__name__])[0]


def _clear(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)


def _publish(temporary: Path, final: Path, note: str) -> None:
    write_text(temporary / RECORD, note)
    sync_folder(temporary)
    if final.is_dir() and not (final / RECORD).is_file():
        shutil.rmtree(final)  # somebody took its record away: no run can go on from it
    temporary.rename(final)
    sync_folder(final.parent)
