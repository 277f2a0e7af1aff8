"""A model as the checks see it: a pass goes in, hidden states or logits come out, and its modules can be watched.

The checks know nothing of `PackedModel`: what they are shown may be the run's own sharded model, a float64 copy, a model of transformers as it
stands, or one in which a test has planted a fault.

    subject = packed_subject(model, ranks.device)
    hidden = subject.hidden(subject.batch([window.row]))
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import PreTrainedModel

from packer.types import Row
from trainer import batch as batches
from trainer.batch import Batch, Shape
from trainer.model import PackedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """model: whose modules are watched; embedding: the one that tokens enter by; blocks: its layers, in order (may be empty).

    hidden: a pass → [1, T, H], the last layer's output. logits: a pass → [1, T, V]. batch: rows → a pass on the model's device.
    settle: called after forward passes that no backward follows (a sharded model lets go of what it gathered).
    """

    model: nn.Module
    embedding: nn.Module
    blocks: tuple[nn.Module, ...]
    hidden: Callable[[Batch], Tensor]
    logits: Callable[[Batch], Tensor]
    batch: Callable[[Sequence[Row]], Batch]
    settle: Callable[[], None]

    def run(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states [1, T, H] of rows one behind the other, without gradients."""
        with torch.no_grad():
            hidden = self.hidden(self.batch(rows)).detach()
        self.settle()
        return hidden


def rows_to_batch(rows: Sequence[Row], device: torch.device, weights: Sequence[bool] | None = None) -> Batch:
    """Rows as one pass, made by the code that makes those of a run. weights: of the rows, all true where None."""
    first = rows[0]
    shape = Shape(
        rows=len(rows),
        capacity=len(first.input_ids),
        max_segments=len(first.example_ids),
        max_segment_len=len(first.input_ids),
        row_weights=any(row.loss_weights is not None for row in rows),
    )
    # Through its module, so that what is checked is what a run calls.
    made = batches.make_batch(
        rows,
        numbers=range(len(rows)),
        weights=[True] * len(rows) if weights is None else weights,
        shape=shape,
        pin=device.type == "cuda",
    )
    return made.to(device)


def packed_subject(model: PackedModel, device: torch.device) -> Subject:
    """The model that a run trains, sharded or not."""
    for name in ("hidden", "logits"):
        register_fsdp_forward_method(model, name)  # weights are gathered for these as they are for forward

    def without_a_word(method: Callable[..., Tensor], batch: Batch) -> Tensor:
        # FSDP warns of an output that is a view, for it must not be changed in place: nobody here does.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            return method(batch.input_ids, batch.position_ids, batch.segments)

    def settle() -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    return Subject(
        model=model.model,
        embedding=model.model.get_input_embeddings(),
        blocks=tuple(model.blocks),
        hidden=lambda batch: without_a_word(model.hidden, batch),
        logits=lambda batch: without_a_word(model.logits, batch),
        batch=lambda rows: rows_to_batch(rows, device),
        settle=settle,
    )


def stock_subject(model: PreTrainedModel, device: torch.device) -> Subject:
    """A model as transformers runs it, told of the segments by position ids alone (not even that where it takes none)."""
    backbone = model.base_model
    takes_positions = "position_ids" in inspect.signature(backbone.forward).parameters

    def call(module: nn.Module, batch: Batch) -> Tensor:
        more = {"position_ids": batch.position_ids} if takes_positions else {}
        out = module(input_ids=batch.input_ids, use_cache=False, **more)
        result: Tensor = out.last_hidden_state if module is backbone else out.logits
        return result

    return Subject(
        model=model,
        embedding=model.get_input_embeddings(),
        blocks=_deepest_list(backbone),
        hidden=lambda batch: call(backbone, batch),
        logits=lambda batch: call(model, batch),
        batch=lambda rows: rows_to_batch(rows, device),
        settle=lambda: None,
    )


def _deepest_list(model: nn.Module) -> tuple[nn.Module, ...]:
    """The longest list of modules: the layers, in all that is known; only the search for a leak is quicker with it."""
    lists = [tuple(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=())


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, compiled parts run as written (windows have other shapes than a run's rows), and afterwards as it was, with no gradients."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, mode in training.items():
            module.training = mode
        model.zero_grad(set_to_none=True)


@contextmanager
def leaf_embeddings(subject: Subject) -> Iterator[list[Tensor]]:
    """While inside, what the embedding gives is cut off from its weights and can be differentiated by: the list holds it after a pass."""
    leaves: list[Tensor] = []

    def cut(_: nn.Module, __: object, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        leaves.append(leaf)
        return leaf

    handle = subject.embedding.register_forward_hook(cut)
    try:
        yield leaves
    finally:
        handle.remove()
