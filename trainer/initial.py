"""First values of weights and buffers, made as the library makes them, a decoder block at a time.

A model built without memory has neither: its buffers (the frequencies of rotary embeddings, say) must be computed, and with random weights its parameters drawn.
The library does both with `_init_weights`, module by module, children first. So does this, on a draft without memory whose modules are given memory one
block at a time and lose it again, so that what is drawn depends on the seed alone: every rank draws the whole model, holds one block of it, and keeps its
own rows. Buffers that a block leaves unwritten wait for the modules around it (Falcon-H1's backbone writes a vector into each of its layers).

    initialise(draft, blocks, seed=0, keep=lambda name, tensor: ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from packer.errors import UserError

_HINT = "start from a checkpoint (--init pretrained), or choose another --model"
_Place = tuple[nn.Module, str, str]  # a module, its path with a dot, and the name of a tensor of its own


def initialise(
    draft: PreTrainedModel,
    blocks: Sequence[nn.Module],
    *,
    seed: int | None,
    keep: Callable[[str, Tensor], None],
) -> None:
    """Hands every buffer of `draft` to keep(name, tensor on the CPU) and, with a seed, every parameter; a tied one once, by its first name.

    draft: on the meta device, and left there. The process's random state is left as it was. Raises UserError naming a tensor that the class does not
    initialise by itself, or initialises a second time from further out.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        parameters = set() if seed is None else {name for name, _ in draft.named_parameters()}
        walk = _Walk(draft, frozenset(map(id, blocks)), parameters, keep)
        walk.visit(draft, "", draft)
        walk.finish()


class _Walk:
    def __init__(
        self, draft: PreTrainedModel, units: frozenset[int], parameters: set[str], keep: Callable[[str, Tensor], None]
    ) -> None:
        self.draft, self.units, self.parameters, self.keep = draft, units, parameters, keep
        self.waiting: list[_Place] = []  # buffers that are not written yet

    def visit(self, module: nn.Module, path: str, owner: PreTrainedModel) -> None:
        """Children first, then the module itself, by the nearest model around it: the library's order."""
        if id(module) in self.units:
            places = [place for part, at in _parts(module, path) for place in self._places(part, at)]
            self._with_memory(places, lambda: _initialise_all(module, owner))
            return
        for name, child in module.named_children():
            self.visit(child, f"{path}{name}.", child if isinstance(child, PreTrainedModel) else owner)
        waiting, self.waiting = self.waiting, []
        due = {f"{at}{name}" for _, at, name in waiting}
        below = {
            name: (tensor, tensor._version)
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]
            if "." in name and f"{path}{name}" not in due
        }
        self._with_memory([*self._places(module, path), *waiting], lambda: _initialise(module, owner))
        lost = [
            name
            for name, (tensor, version) in below.items()
            if tensor._version != version and (self.parameters or not isinstance(tensor, nn.Parameter))
        ]
        if lost:
            raise UserError(
                f"{path}{lost[0]} is initialised by the module around it, which cannot be done a block at a time",
                _HINT,
            )

    def finish(self) -> None:
        """Every module has been seen: what still waits is written by none."""
        if self.waiting:
            _, path, name = self.waiting[0]
            raise self._unmade(f"{path}{name}")

    def _unmade(self, name: str) -> UserError:
        return UserError(
            f"{name} of {type(self.draft).__name__} is not initialised by its class, so it would start as whatever lay in memory",
            _HINT,
        )

    def _places(self, module: nn.Module, path: str) -> list[_Place]:
        own = [name for name, _ in module.named_parameters(recurse=False) if f"{path}{name}" in self.parameters]
        own += [name for name, _ in module.named_buffers(recurse=False)]
        return [(module, path, name) for name in own]

    def _with_memory(self, places: Sequence[_Place], work: Callable[[], None]) -> None:
        empty = [getattr(module, name) for module, _, name in places]
        for (module, _, name), tensor in zip(places, empty, strict=True):
            setattr(module, name, _unwritten(tensor))
        try:
            work()
            for module, path, name in places:
                made = getattr(module, name).detach()
                if not made.is_floating_point() or not bool(made.isnan().any()):
                    self.keep(f"{path}{name}", made)
                elif isinstance(getattr(module, name), nn.Parameter):
                    raise self._unmade(f"{path}{name}")
                else:
                    self.waiting.append((module, path, name))
        finally:
            for (module, _, name), tensor in zip(places, empty, strict=True):
                setattr(module, name, tensor)


def _parts(module: nn.Module, path: str) -> Iterator[tuple[nn.Module, str]]:
    for name, part in module.named_modules():
        yield part, f"{path}{name}." if name else path


def _initialise_all(module: nn.Module, owner: PreTrainedModel) -> None:
    for child in module.children():
        _initialise_all(child, child if isinstance(child, PreTrainedModel) else owner)
    _initialise(module, owner)


def _initialise(module: nn.Module, owner: PreTrainedModel) -> None:
    owner._init_weights(module)  # type: ignore[no-untyped-call]  # untyped in transformers


def _unwritten(tensor: Tensor) -> Tensor:
    """One on the CPU whose numbers are none, so that it shows where nothing is written; whole numbers start at 0."""
    value = torch.nan if tensor.is_floating_point() else 0
    fresh = torch.full(tensor.shape, value, dtype=tensor.dtype, device="cpu")
    return nn.Parameter(fresh, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh
