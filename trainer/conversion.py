"""Names of a checkpoint and names of its model: which tensors make which, by the library's own rules.

What a hub holds and what a class holds differ: experts lie one by one in the files and stacked in the model, a language model's names have a prefix in the
checkpoint of a whole multimodal model, old checkpoints have old names. transformers has a list of transforms for each class
(`transformers.conversion_mapping`), applied here to names first, on tensors without memory, so that what is missing or misshapen is known before anything is
read, and then tensor by tensor.

    plan = plan_loading(model, {"lm_head.weight": torch.empty(61, 32, device="meta"), ...})
    plan.recipes[0].make(model, tensors)        # {"lm_head.weight": tensor}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    dot_natural_key,
    rename_source_key,
)

# What the library's operations raise on tensors that they were not written for.
CONVERSION_ERRORS = (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How one or more tensors are made of others. name: of the first that is made. sources: (pattern of the converter, name), in its order.

    converter: None where the tensor is only named anew. shapes: of all that is made, by name.
    """

    name: str
    sources: tuple[tuple[str, str], ...]
    converter: WeightConverter | None
    shapes: Mapping[str, tuple[int, ...]]
    renamings: tuple[WeightRenaming, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of its sources."""
        return [name for _, name in self.sources]

    @property
    def by_entry(self) -> bool:
        """Whether entry i of what is made needs only the i-th source of each pattern: experts that lie one by one and are stacked."""
        if self.converter is None or len(self.shapes) != 1:
            return False
        first, *others = self.converter.operations
        stacked = isinstance(first, MergeModulelist) and first.dim == 0
        kept = all(isinstance(each, Concatenate) and each.dim != 0 for each in others)
        return stacked and kept and len({len(names) for names in self._by_pattern().values()}) == 1

    def entries(self, start: int, stop: int) -> Iterator[tuple[int, Recipe]]:
        """The recipes of single entries, each as a stack of one."""
        by_pattern = self._by_pattern()
        shapes = {name: (1, *shape[1:]) for name, shape in self.shapes.items()}
        for number in range(start, stop):
            sources = tuple((pattern, names[number]) for pattern, names in by_pattern.items())
            yield number, Recipe(name=self.name, sources=sources, converter=self.converter, shapes=shapes)

    def _by_pattern(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for pattern, name in self.sources:
            found.setdefault(pattern, []).append(name)
        return found

    def make(self, model: PreTrainedModel, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """What it makes of its sources' tensors, by name. model: of the draft, whose shapes some operations ask for."""
        if self.converter is None:
            return {self.name: tensors[0]}
        converter = copy.deepcopy(self.converter)  # it keeps what it is given
        for (pattern, name), tensor in zip(self.sources, tensors, strict=True):
            converter.add_tensor(self.name, name, pattern, tensor)  # type: ignore[arg-type]  # it takes tensors too, as when it saves
        made = cast("dict[str, Tensor | list[Tensor]]", converter.convert(self.name, model=model, config=model.config))
        flat = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        return {_renamed(name, self.renamings): value for name, value in flat.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """recipes: in the library's order. unused: names that no recipe has a use for. transforms: those that found something to do.

    broken: (name, error) of what the library cannot convert.
    """

    recipes: tuple[Recipe, ...]
    unused: tuple[str, ...]
    transforms: tuple[WeightTransform, ...]
    broken: tuple[tuple[str, Exception], ...]


def plan_loading(model: PreTrainedModel, there: Mapping[str, Tensor]) -> Plan:
    """From the names of a checkpoint to those of `model`. there: its tensors, on the meta device."""
    transforms = get_model_conversion_mapping(model)
    renamings, converters = _apart(transforms)
    state, prefix = model.state_dict(), model.base_model_prefix

    def name_of(key: str) -> tuple[str | None, str | None]:
        name, pattern = rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:
            name, pattern = rename_source_key(key, [], [], prefix, state)  # its name was the model's already
        return (name if name in state else None), pattern

    recipes, unused, broken = _plan(model, there, name_of, converters, ())
    used = tuple(each for each in transforms if each.was_used())
    return Plan(recipes=recipes, unused=unused, transforms=used, broken=broken)


def plan_saving(
    model: PreTrainedModel,
    there: Mapping[str, Tensor],
    transforms: Sequence[WeightTransform] | None = None,
) -> Plan:
    """From the names of `model` back to those of a checkpoint. there: the model's tensors, on the meta device.

    transforms: those that a checkpoint was loaded with, whose names are to come back; None gives the names that the class has by itself.
    """
    if transforms is None:
        # A prefix that is taken off where there is one must not be put on where there was none.
        own = get_model_conversion_mapping(model, add_legacy=False)
        transforms = [each for each in own if not isinstance(each, PrefixChange)]
    back = [each.reverse_transform() for each in reversed(transforms)]
    renamings, converters = _apart(back)

    def name_of(key: str) -> tuple[str, str | None]:
        for converter in converters:
            name, pattern = converter.rename_source_key(key)
            if pattern is not None:
                return name, pattern
        return _renamed(key, renamings), None

    recipes, unused, broken = _plan(model, there, name_of, converters, tuple(renamings))
    return Plan(recipes=recipes, unused=unused, transforms=tuple(transforms), broken=broken)


def _plan(
    model: PreTrainedModel,
    there: Mapping[str, Tensor],
    name_of: Callable[[str], tuple[str | None, str | None]],
    converters: Sequence[WeightConverter],
    renamings: tuple[WeightRenaming, ...],
) -> tuple[tuple[Recipe, ...], tuple[str, ...], tuple[tuple[str, Exception], ...]]:
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    gathered: dict[str, list[tuple[str, str]]] = {}
    whose: dict[str, WeightConverter | None] = {}
    unused: list[str] = []
    for key in sorted(there, key=dot_natural_key):
        name, pattern = name_of(key)
        converter = None if pattern is None else by_pattern[pattern]
        if name is None or (name in whose and (converter is None or whose[name] is not converter)):
            unused.append(key)
            continue
        whose[name] = converter
        gathered.setdefault(name, []).append((pattern or key, key))
    recipes: list[Recipe] = []
    broken: list[tuple[str, Exception]] = []
    for name, sources in gathered.items():
        draft = Recipe(name=name, sources=tuple(sources), converter=whose[name], shapes={}, renamings=renamings)
        try:
            made = draft.make(model, [there[key] for key in draft.names])
        except CONVERSION_ERRORS as error:
            broken.append((name, error))
            continue
        shapes = {each: tuple(value.shape) for each, value in made.items()}
        recipes.append(
            Recipe(name=name, sources=tuple(sources), converter=whose[name], shapes=shapes, renamings=renamings)
        )
    return tuple(recipes), tuple(unused), tuple(broken)


def _apart(
    transforms: Sequence[WeightTransform],
) -> tuple[list[WeightRenaming], list[WeightConverter]]:
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    return renamings, [each for each in transforms if isinstance(each, WeightConverter)]


def _renamed(name: str, renamings: Sequence[WeightRenaming]) -> str:
    for renaming in renamings:
        name, _ = renaming.rename_source_key(name)
    return name


def without_memory(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Tensors on the meta device, by name."""
    return {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes.items()}
