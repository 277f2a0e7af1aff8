"""Weights put into a model that was built without memory: each rank reads, or draws, the whole checkpoint's rows that are its own, and no others.

    packed, weights = plan_model("Qwen/Qwen3-0.6B", init="pretrained", ...)     # everything wrong with the checkpoint's names and shapes is told here
    shard(packed, ...)
    fill(packed, packed.model, weights, device)

On the way there is never more in memory than this rank's part, a piece of one tensor, and where the library makes one tensor of several (`trainer.conversion`)
those; experts that are stacked are read one by one. Ties stay ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard
from transformers import PreTrainedModel

from packer.errors import UserError
from trainer.conversion import Plan, Recipe, plan_loading, without_memory
from trainer.initial import initialise
from trainer.tensor_file import Stored, read_rows, read_whole

_PIECE = 1 << 25  # bytes of a tensor read at a time
_COMPLETE = "give a complete checkpoint, or start all from random with --init random"


class Weights(Protocol):
    """unused: names in the checkpoint that the model has no place for."""

    @property
    def unused(self) -> tuple[str, ...]: ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Writes parameters and buffers, of which targets has this rank's part by name, where it has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Random:
    """Drawn from the seed, a block at a time; without one buffers alone are made, for parameters that a checkpoint of a run has.

    draft: the model, without memory and not sharded."""

    draft: PreTrainedModel
    blocks: Sequence[nn.Module]
    seed: int | None
    unused: tuple[str, ...] = ()

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        initialise(self.draft, self.blocks, seed=self.seed, keep=lambda name, value: keep(targets[name], value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Read from files by a plan that has been held against the draft."""

    source: str
    draft: PreTrainedModel
    blocks: Sequence[nn.Module]
    stored: Mapping[str, Stored]
    plan: Plan

    @property
    def unused(self) -> tuple[str, ...]:
        return self.plan.unused

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        initialise(self.draft, self.blocks, seed=None, keep=lambda name, value: keep(targets[name], value))
        first = first_names(self.draft)
        written: dict[str, str] = {}
        for recipe in self.plan.recipes:
            name = first.get(recipe.name, recipe.name)
            if name in written:
                self._compare(written[name], recipe, targets[name])
            elif recipe.converter is None:
                self._read(recipe.names[0], targets[name])
            elif recipe.by_entry:
                self._read_by_entry(recipe, targets[name])
            else:
                made = recipe.make(self.draft, [read_whole(self.stored[source]) for source in recipe.names])
                for each, value in made.items():
                    _finite(value, self.source, each)
                    keep(targets[first.get(each, each)], value)
            written[name] = recipe.name

    def _read(self, source: str, target: Tensor) -> None:
        for local, value in _pieces(self.stored[source], target):
            _finite(value, self.source, source)
            local.copy_(value)

    def _read_by_entry(self, recipe: Recipe, target: Tensor) -> None:
        start, count = rows_of(target)
        local = _local(target)
        for number, entry in recipe.entries(start, start + count):
            made = entry.make(self.draft, [read_whole(self.stored[source]) for source in entry.names])[recipe.name]
            _finite(made, self.source, recipe.name)
            local[number - start].copy_(made[0])

    def _compare(self, known: str, recipe: Recipe, target: Tensor) -> None:
        """Two tensors of the file for one of the model: they must be the same."""
        for local, value in _pieces(self.stored[recipe.names[0]], target):
            if not torch.equal(local.cpu(), value.to(target.dtype)):
                raise UserError(
                    f"{self.source}: its config.json ties {recipe.name} to {known}, but the two differ in its weights",
                    "set tie_word_embeddings to false in its config.json to train both",
                )


def plan_weights(
    source: str, draft: PreTrainedModel, blocks: Sequence[nn.Module], stored: Mapping[str, Stored]
) -> Pretrained:
    """Holds the names and shapes of a checkpoint against a draft; raises UserError naming what is missing, misshapen or not to be converted."""
    plan = plan_loading(draft, without_memory({name: each.shape for name, each in stored.items()}))
    refuse_broken(plan, source)
    state = draft.state_dict()
    made = {name: shape for recipe in plan.recipes for name, shape in recipe.shapes.items()}
    wrong = sorted(name for name, shape in made.items() if name in state and tuple(state[name].shape) != shape)
    if wrong:
        name = wrong[0]
        raise UserError(
            f"{source}: {len(wrong)} weights have not the shape that its config.json says, the first is {name}: {list(made[name])} in the file, "
            f"{list(state[name].shape)} by the config",
            "give the config.json that belongs to the weights, or start all from random with --init random",
        )
    first = first_names(draft)
    had = {first.get(name, name) for name in made}
    missing = sorted(name for name in state if first.get(name, name) not in had)
    if missing:
        raise UserError(
            f"{source} lacks {len(missing)} weights of its model, the first {missing[0]}; they would start at random",
            _COMPLETE,
        )
    for recipe in plan.recipes:
        for name in recipe.names:
            kind = stored[name].dtype
            if kind is None or (state[recipe.name].is_floating_point() and not kind.is_floating_point):
                raise UserError(
                    f"{source}: {name} is stored as {stored[name].code}, which is not a kind of number that can be trained",
                    "give a checkpoint in bfloat16, float16 or float32",
                )
    return Pretrained(source=source, draft=draft, blocks=blocks, stored=stored, plan=plan)


def refuse_broken(plan: Plan, source: str) -> None:
    """Raises UserError naming what the library's rules cannot make."""
    if plan.broken:
        name, error = plan.broken[0]
        said = " ".join(str(error).split())[:200]
        raise UserError(f"{source}: {name} cannot be made of the weights there ({said})", _COMPLETE)


def first_names(model: nn.Module) -> dict[str, str]:
    """Of each parameter's second and further names (it is tied): the first one."""
    first: dict[int, str] = {}
    return {
        name: first[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if first.setdefault(id(parameter), name) != name
    }


def fill(model: nn.Module, inner: nn.Module, weights: Weights, device: torch.device) -> None:
    """Gives a model without memory its memory on `device`, sharded as it is, and its weights. inner: the library's model in it.

    Parameters stay tied where they were: `Module.to_empty` alone would make two of one.
    """
    ties = first_names(model)
    for name in ties:
        _set(model, name, None)
    model.to_empty(device=device)
    for name, first in ties.items():
        _set(model, name, model.get_parameter(first))
    with torch.no_grad():
        weights.fill({**dict(inner.named_buffers()), **inner.state_dict()})


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Buffers (rotary frequencies, say) to where the computation is, of a model whose parameters wait elsewhere."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def _set(model: nn.Module, name: str, value: nn.Parameter | None) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, value)


def rows_of(tensor: Tensor) -> tuple[int, int]:
    """The first row that this rank holds of a tensor, and how many; all of them where it is not sharded."""
    start, count = 0, tensor.shape[0] if tensor.dim() else 1
    if isinstance(tensor, DTensor):
        for dimension, placement in enumerate(tensor.placements):
            if isinstance(placement, Shard):
                assert placement.dim == 0, placement
                mesh = tensor.device_mesh
                count, offset = placement.local_shard_size_and_offset(
                    count, mesh.size(dimension), mesh.get_local_rank(dimension)
                )
                start += offset
    return start, count


def _pieces(stored: Stored, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's rows of a tensor of a file, a piece at a time: where they belong, and what they are."""
    local, (start, count) = _local(target), rows_of(target)
    if not stored.shape:
        yield local, read_whole(stored)
        return
    step = max(_PIECE // max(stored.nbytes // max(stored.shape[0], 1), 1), 1)
    for at in range(0, count, step):
        yield local[at : at + step], read_rows(stored, start + at, start + min(at + step, count))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def keep(target: Tensor, value: Tensor) -> None:
    """This rank's rows of a whole value."""
    if not value.dim():
        _local(target).copy_(value)
        return
    start, count = rows_of(target)
    _local(target).copy_(value[start : start + count])


def _finite(value: Tensor, source: str, name: str) -> None:
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise UserError(
            f"{source}: {name} has numbers that are not finite", "look at its weights; give a whole checkpoint"
        )
