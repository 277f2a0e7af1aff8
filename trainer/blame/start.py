"""Which weights a step's losses are computed with, and a model that has them.

start = choose(Path("runs/first"), step=12, given=None)
start.said                                   # "checkpoints/step-000010, 1 update before what step 12 saw"
model, units = load(start, Path("runs/first"), prepared, ranks)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from packer.errors import UserError
from trainer.checkpoint import verify
from trainer.companions import CONFIG, FOLDER
from trainer.config import Kernels
from trainer.model import PackedModel, plan_model, try_out
from trainer.parallel import DTYPES, checkpoint_blocks, compute_in_float64, master_dtype, shard
from trainer.prepare import Prepared
from trainer.ranks import Ranks
from trainer.record import complete, read_record
from trainer.saved import SavedModel
from trainer.source import check_source
from trainer.weights import Random, Weights, fill, keep


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """checkpoint: of the run; None takes the weights of `given`, or those that the run began with. updates: how many of the run's are in them; None where
    that is not known. said: for a person."""

    checkpoint: Path | None
    given: str | None
    updates: int | None
    said: str


def choose(run: Path, *, step: int, given: str | None) -> Start:
    """The weights nearest to those that step `step` (from 1) was made with: after step - 1 updates, else after the step itself, else the newest before."""
    if given is not None:
        return Start(checkpoint=None, given=given, updates=None, said=f"{given}, given with --model")
    saved = {int(path.name.removeprefix("step-")): path for path in complete(run)}
    before = step - 1
    found = before if before in saved else step if step in saved else max((n for n in saved if n < step), default=0)
    if found not in saved:
        left = "those that the step saw" if before == 0 else f"{_updates(before)} before those that the step saw"
        return Start(checkpoint=None, given=None, updates=0, said=f"the ones the run began with, {left}")
    name = f"checkpoints/{saved[found].name}"
    if found == before:
        said = f"{name}, those that the step saw"
    elif found == step:
        said = f"{name}, in which the update of this very step is"
    else:
        said = f"{name}, {_updates(before - found)} before those that the step saw"
    return Start(checkpoint=saved[found], given=None, updates=found, said=said)


def _updates(number: int) -> str:
    return f"{number:,} update{'' if number == 1 else 's'}"


def load(start: Start, run: Path, prepared: Prepared, ranks: Ranks) -> tuple[PackedModel, Sequence[FSDPModule]]:
    """The run's model, sharded and computing as in the run, with the weights of `start`, in eval mode; every rank calls it.

    Raises UserError where they cannot be had, are damaged, or are another model's.
    """
    config = prepared.config
    dtype = DTYPES[config.dtype]
    model, weights = ranks.together(lambda: _plan(start, run, prepared, ranks))
    if config.dtype == "fp64":
        compute_in_float64(model, model.blocks)
    checkpoint_blocks(model.blocks, config.activation_checkpointing)
    units = shard(model, model.blocks, dtype=dtype, ranks=ranks)
    ranks.together(lambda: fill(model, model.model, weights, ranks.device))
    ranks.together(lambda: try_out(model, prepared.model, ranks.device))
    model.eval()
    return model, units


def _plan(start: Start, run: Path, prepared: Prepared, ranks: Ranks) -> tuple[PackedModel, Weights]:
    config, manifest = prepared.config, prepared.corpus.manifest
    source, init = start.given or prepared.model, config.init
    if start.given is not None:
        init = "pretrained"
    elif start.checkpoint is not None:
        verify(start.checkpoint, read_record(start.checkpoint).files, ranks)
        # The run keeps its model's config; its base need not be there any more.
        source = str(run / FOLDER) if (run / FOLDER / CONFIG).is_file() else source
        init = "random"  # its weights are then not drawn but read
    check_source(source, init=init)
    # A run on a GPU can be looked into without one.
    kernels: Kernels = "auto" if ranks.device.type == "cpu" and config.kernels == "fused" else config.kernels
    model, weights = plan_model(
        source,
        init=init,
        seed=config.seed,
        dtype=master_dtype(DTYPES[config.dtype]),
        kernels=kernels,
        device=ranks.device,
        vocab_at_least=max(manifest.max_token_id, manifest.pad_id) + 1,
    )
    if start.checkpoint is None:
        return model, weights
    assert isinstance(weights, Random)  # init says so
    saved = SavedModel(start.checkpoint)
    there = {name: tuple(tensor.shape) for name, tensor in weights.draft.state_dict().items()}
    differing = sorted(name for name in there.keys() | saved.shapes.keys() if there.get(name) != saved.shapes.get(name))
    if differing:
        raise UserError(
            f"{start.checkpoint}: saved from another model than {source}: {differing[0]} differs",
            "restore the run's model/ folder, or name weights with --model",
        )
    return model, SavedWeights(drawn=replace(weights, seed=None), saved=saved)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedWeights:
    """Those of a checkpoint, read a tensor at a time; each rank keeps its own rows. drawn: without a seed, whose model they are put into."""

    drawn: Random
    saved: SavedModel
    unused: tuple[str, ...] = ()

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        self.drawn.fill(targets)
        for name in self.saved.shapes:
            keep(targets[name], self.saved.read(name))
