"""Checkpoints: complete or not there, sharded by rank when written, readable by any number of ranks.

    runs/first/checkpoints/step-000100/    .metadata  __0_0.distcp …  run.json

A checkpoint is written under a temporary name, made durable, and renamed; only then does a reader see it. `run.json` (`Record`) holds the digest of
every other file: each rank digests what it wrote, and all of it is verified before a tensor is loaded. `trainer.saver` writes them behind the run.

    state = stage(state_of(model, optimizer))      # a copy on the host: the run goes on, what is written stays as it was
    path = write(run, note, state, ranks=ranks)
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from packer.digest import digest_file
from packer.errors import UserError
from packer.files import sync_folder, write_text
from trainer.ranks import Ranks
from trainer.record import FOLDER, METADATA, RECORD, Record, complete, hold_files, read_record

_MODEL, _OPTIMIZER = "model.", "optimizer."
_REMOVE = "remove this checkpoint: the run goes on from the one before it"
_OTHER_RUN = "give the --model and options it was saved with, or another --out for a new run"


def state_of(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Every tensor of a run by name, sharded as it lies: loading writes into these very tensors, so tied weights stay tied."""
    return {**_tensors(model), **_moments(model, optimizer)}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {f"{_MODEL}{name}": value for name, value in model.state_dict().items()}


def _moments(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    return {
        f"{_OPTIMIZER}{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def stage(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of this rank's part of every tensor in the host's memory, made when this returns. On a GPU through page-locked memory, with one wait."""
    staged = {}
    for name, tensor in state.items():
        local = _local(tensor.detach())
        # Page-locked memory of no bytes does not exist.
        host = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda and local.numel() > 0)
        host.copy_(local, non_blocking=True)
        staged[name] = host
        if isinstance(tensor, DTensor):
            # As torch's own stagers do: the same layout over the ranks, the copy in the place of this rank's part.
            sharded = tensor.detach()
            sharded._local_tensor = host  # type: ignore[attr-defined]  # detach gives a DTensor
            staged[name] = sharded
    if any(_local(tensor).is_cuda for tensor in state.values()):
        torch.cuda.current_stream().synchronize()
    return staged


def write(run: Path, note: Record, state: Mapping[str, Tensor], *, ranks: Ranks) -> Path:
    """Writes the run's state after `note.step` steps; every rank calls it. Raises UserError, on all ranks, where the disk refuses."""
    final = run / FOLDER / f"step-{note.step:06d}"
    temporary = final.with_name(f".{final.name}.tmp")
    mine = sum(_local(tensor).nbytes for tensor in state.values())
    needed = int(ranks.gather([float(mine)]).sum())

    def on_disk(work: Callable[[], object]) -> Callable[[], object]:
        return lambda: _on_disk(final, work, needed=needed)

    ranks.together(on_disk(lambda: _clear(temporary) if ranks.first else None))
    try:
        writer = FileSystemWriter(temporary, single_file_per_rank=True, sync_files=True)
        ranks.together(on_disk(lambda: save_state(dict(state), storage_writer=writer, process_group=ranks.group)))
        digests: dict[str, str] = {}
        ranks.together(on_disk(lambda: digests.update(_digests(temporary, ranks))))
        files = {name: digest for part in ranks.gather_objects(digests) for name, digest in part.items()}
        text = json.dumps(dataclasses.asdict(dataclasses.replace(note, files=files)), indent=1) + "\n"
        ranks.together(on_disk(lambda: _publish(temporary, final, text) if ranks.first else None))
    except UserError:
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)  # the space it takes may be what is lacking
        raise
    return final


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _digests(folder: Path, ranks: Ranks) -> dict[str, str]:
    """Of the files that this rank wrote, by name; what the first rank wrote for all is its own."""
    mine = sorted(folder.glob(f"__{ranks.rank}_*")) + ([folder / METADATA] if ranks.first else [])
    return {path.name: digest_file(path) for path in mine}


def load_weights(checkpoint: Path, model: nn.Module, *, ranks: Ranks) -> None:
    """Verifies a checkpoint and reads the model's tensors out of it, whatever number of ranks wrote it; every rank calls it.

    Raises UserError naming a file that is not as it was written, or a tensor that this model has not.
    """
    files = ranks.together(lambda: read_record(checkpoint)).files
    ranks.together(lambda: verify(checkpoint, files, ranks))
    _load(checkpoint, _tensors(model), _MODEL, ranks)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: AdamW, *, ranks: Ranks) -> None:
    """Likewise the optimiser's state, of a checkpoint that `load_weights` has verified: by itself, so that the start of a run need not hold it yet."""
    _load(checkpoint, _moments(model, optimizer), _OPTIMIZER, ranks)


def _load(checkpoint: Path, state: dict[str, Tensor], prefix: str, ranks: Ranks) -> None:
    reader = FileSystemReader(checkpoint)
    ranks.together(lambda: _refuse_other_tensors(checkpoint, reader, state, prefix))
    try:
        load_state(state, storage_reader=reader)
    except CheckpointException as error:
        raise UserError(f"{checkpoint}: cannot be loaded ({_first_line(error)})", _OTHER_RUN) from None


def verify(checkpoint: Path, files: Mapping[str, str], ranks: Ranks) -> None:
    """Holds this rank's share of the files against their digests; raises UserError naming one that differs."""
    hold_files(checkpoint, files, sorted(files)[ranks.rank :: ranks.world], hint=_REMOVE)


def _refuse_other_tensors(checkpoint: Path, reader: FileSystemReader, state: Mapping[str, Tensor], prefix: str) -> None:
    found = reader.read_metadata().state_dict_metadata
    saved = {name: value for name, value in found.items() if name.startswith(prefix)}
    for name, tensor in state.items():
        there = saved.get(name)
        if not isinstance(there, TensorStorageMetadata):
            raise UserError(f"{checkpoint}: saved from another model, without {name}", _OTHER_RUN)
        if there.size != tensor.size():
            raise UserError(
                f"{checkpoint}: saved from another model: {name} is {list(there.size)} there and {list(tensor.size())} here",
                _OTHER_RUN,
            )
    if more := sorted(saved.keys() - state.keys()):
        raise UserError(f"{checkpoint}: saved from another model, which also has {more[0]}", _OTHER_RUN)


def prune(run: Path, *, keep: int) -> list[Path]:
    """Removes all but the newest `keep` complete checkpoints (0: none is removed); returns those removed. Raises UserError where the disk refuses."""
    old = complete(run)[:-keep] if keep else []
    for path in old:
        # Renamed first: a removal that is cut short must not leave half a checkpoint under its name.
        try:
            gone = path.rename(path.with_name(f".{path.name}.tmp"))
            shutil.rmtree(gone)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be removed ({error.strerror})", "give the run the right to, or keep all: --keep 0"
            ) from None
    return old


def _on_disk(final: Path, work: Callable[[], object], *, needed: int) -> None:
    try:
        work()
    except (CheckpointException, OSError) as error:
        raise UserError(
            f"{final}: cannot be saved ({_why(error, final, needed)})", "free space there, or give another --out"
        ) from None


def _why(error: BaseException, final: Path, needed: int) -> str:
    """torch's writer says "unexpected pos" where the disk is full, so it is asked rather than believed."""
    full = any(isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT) for cause in _causes(error))
    free = _free_bytes(final)
    if full or (free is not None and free < max(needed // 100, 1 << 20)):
        return f"no space left on the disk: a checkpoint takes {needed / 1e6:,.1f} MB"
    return _first_line(error) if isinstance(error, CheckpointException) else str(getattr(error, "strerror", error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    inner = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else []
    for cause in [*inner, error.__cause__, error.__context__]:
        if cause is not None:
            yield from _causes(cause)


def _free_bytes(path: Path) -> int | None:
    there = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        said = os.statvfs(there)
    except OSError:
        return None
    return said.f_bavail * said.f_frsize


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
    elif not final.is_dir():
        final.unlink(missing_ok=True)  # a file, or a link to nowhere, under a checkpoint's name
    temporary.rename(final)
    sync_folder(final.parent)
