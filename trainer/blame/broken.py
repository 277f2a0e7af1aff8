"""Where a loss or a gradient stops being finite: which rows, and in which layer it begins.

Forward, it begins in the first module whose output is not finite although what went into it is. Backward, gradients come to the modules in the opposite
order, the output embedding before all: it begins in the first parameter on that way whose gradient is not finite.

    gradient_of(model, units, work, row=17, ranks=ranks).parameter      # "model.layers.1.self_attn.q_proj.weight"
    first_module(model, units, work, row=17, ranks=ranks)               # "model.layers.1.mlp (Qwen3MLP)"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from trainer.blame.losses import Work
from trainer.model import PackedModel
from trainer.optim import gradient_norm
from trainer.parallel import reduce_gradients
from trainer.ranks import Ranks
from trainer.step import loss_of, optimised


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGradient:
    """What a row alone adds to the step's gradient. norm: of it all. parameter: the first, going back from the loss, whose part is not finite; None where
    all are."""

    row: int
    norm: float
    parameter: str | None

    @property
    def finite(self) -> bool:
        return self.parameter is None and math.isfinite(self.norm)


def gradient_of(model: PackedModel, units: Sequence[FSDPModule], work: Work, *, row: int, ranks: Ranks) -> RowGradient:
    """The gradient of one row; every rank calls it. The step's, with --loss-weighting token, is the sum of its rows'."""
    model.zero_grad(set_to_none=True)
    batch = work.read(row, weight=True, ranks=ranks).to(ranks.device)
    reduce_gradients(units, True)
    called: dict[str, int] = {}
    with _watched(model, lambda name, *_: called.setdefault(name, len(called))):
        loss = optimised(loss_of(model, batch))
    # All ranks compute the same row and their gradients are summed.
    torch.autograd.backward(loss / (work.loss_weight * ranks.world))
    norm = float(gradient_norm(model))
    parameter = None if math.isfinite(norm) else _first_parameter(model, called, ranks)
    model.zero_grad(set_to_none=True)
    return RowGradient(row=row, norm=norm, parameter=parameter)


def _first_parameter(model: PackedModel, called: dict[str, int], ranks: Ranks) -> str | None:
    """called: the modules in the order in which they were done, forward."""
    named = list(model.named_parameters())
    order = [_done(name, called) for name, _ in named]
    broken = [float(parameter.grad is not None and not _finite(parameter.grad)) for _, parameter in named]
    anywhere = ranks.gather(broken).sum(dim=0).tolist()
    found = [place for place, how_often in enumerate(anywhere) if how_often]
    return _plain(named[max(found, key=lambda place: order[place])][0]) if found else None


def _done(name: str, called: dict[str, int]) -> int:
    """When a parameter had been used, forward. A module that is not called itself (a convolution whose weight a kernel takes, the output embedding) counts as the
    one around it, of which the loss is the outermost and last."""
    while name:
        name = name.rpartition(".")[0]
        if name in called:
            return called[name]
    return len(called)


def first_module(model: PackedModel, units: Sequence[FSDPModule], work: Work, *, row: int, ranks: Ranks) -> str | None:
    """The module in which a row's pass forward stops being finite, with its class; None where only the loss does. Every rank calls it."""
    found: list[str] = []
    batch = work.read(row, weight=True, ranks=ranks).to(ranks.device)

    def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if not found and not _finite(output) and _finite(inputs):
            found.append(f"{_plain(name)} ({type(module).__name__.removeprefix('FSDP')})")

    with torch.no_grad(), _watched(model, look):
        loss_of(model, batch)
    for unit in units:
        unit.reshard()
    return found[0] if found else None


@contextmanager
def _watched(model: PackedModel, look: Callable[[str, nn.Module, object, object], object]) -> Iterator[None]:
    """Calls look(path, module, inputs, output) after every module's forward, innermost first."""

    def hook(name: str) -> Callable[..., None]:
        def done(module: nn.Module, given: object, named: object, output: object) -> None:
            look(name, module, (given, named), output)

        return done

    handles = [module.register_forward_hook(hook(name), with_kwargs=True) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _finite(found: object) -> bool:
    leaves = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return all(bool((leaf.to_local() if isinstance(leaf, DTensor) else leaf).isfinite().all()) for leaf in leaves)


def _plain(name: str) -> str:
    """As transformers calls it."""
    return name.removeprefix(PackedModel.hf_state_dict_prefix) or "the loss"
