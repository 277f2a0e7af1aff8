"""One forward and backward pass of a model on the meta device, and what of it is alive when: sizes of the real computation, without memory or numbers.

    traced = trace(model, pass_of=Pass(tokens=8192, segments=6, supervised=4096), kernels="fused", checkpointing="full")
    traced.blocks[0].forward.peak

The code that runs is the code of the run: transformers' layers, our kernels, our loss, torch's checkpointing and autograd. Only attention, which picks
its algorithm by device, and fused kernels, which exist on a GPU alone, are replaced by `stand_ins`. Blocks that are made of the same modules with the
same shapes take the same memory: of each kind the first is computed, the others only hand their input on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from transformers.integrations import moe

from trainer.config import Checkpointing
from trainer.isolate import SHAPE, register_attention
from trainer.memory.alive import Alive, Stretch
from trainer.memory.stand_ins import attention, bind_fused, segment_attention
from trainer.model import PackedModel
from trainer.parallel import checkpoint_blocks
from trainer.segments import Segments

Kernels = Literal["fused", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """tokens: slots of one pass of a rank (M·C). segments: how many they are cut into. supervised: how many are targets."""

    tokens: int
    segments: int
    supervised: int
    weighted: bool = False

    @property
    def lengths(self) -> list[int]:
        """Segments of nearly the same length."""
        each, more = divmod(self.tokens, self.segments)
        return [each + (place < more) for place in range(self.segments)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Bytes of one phase of a pass, over what was alive before it. peak: at most. gradients: how much of that was gradients of parameters, made in
    this phase. kept: at its end (negative where more was let go), gradients_kept: gradients among it."""

    peak: int
    gradients: int
    kept: int
    gradients_kept: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A decoder block in a pass."""

    forward: Phase
    backward: Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """The phases of a pass, in order: embed, blocks forward, loss, loss_backward, blocks backward (last to first), embed_backward. kinds: how many
    different blocks there are. Gradients of parameters outside of blocks are among `kept`; those of a block go when its phase ends."""

    embed: Phase
    blocks: tuple[Block, ...]
    loss: Phase
    loss_backward: Phase
    embed_backward: Phase
    kinds: int


def trace(model: PackedModel, *, pass_of: Pass, kernels: Kernels, checkpointing: Checkpointing) -> Traced:
    """model: on the meta device, in the dtype of the computation; it is changed, and good for nothing else afterwards."""
    stand_in = attention if kernels == "fused" else segment_attention
    model.model.set_attn_implementation(register_attention(stand_in, f"planned_{kernels}"))
    if kernels == "fused":
        bind_fused(model)
    blocks = model.blocks
    kinds = [_kind(block) for block in blocks]
    firsts = {kind: place for place, kind in reversed(list(enumerate(kinds)))}
    for place, block in enumerate(blocks):
        if firsts[kinds[place]] != place:
            block.forward = _HandOn(blocks[firsts[kinds[place]]])
    checkpoint_blocks([blocks[place] for place in sorted(firsts.values())], checkpointing)
    model.train()
    stretches = _run(model, blocks, pass_of)
    for place, kind in enumerate(kinds):
        _note_attention(blocks[place], like=blocks[firsts[kind]])
    count = len(blocks)
    forward = [_phase(stretch) for stretch in stretches[1 : count + 1]]
    backward = [_phase(stretch) for stretch in reversed(stretches[count + 3 : 2 * count + 3])]
    # A block's backward gives up what its forward kept: its output and the gradient of that, for its input's. Measured, a tensor that goes when the
    # hook that ends the phase has run would be missed, in every block that the measured one stands for.
    pairs = [Block(forward=f, backward=replace(b, kept=-f.kept)) for f, b in zip(forward, backward, strict=True)]
    return Traced(
        embed=_phase(stretches[0]),
        blocks=tuple(pairs[firsts[kind]] for kind in kinds),
        loss=_phase(stretches[count + 1]),
        loss_backward=_with_head(_phase(stretches[count + 2]), model.head),
        embed_backward=_phase(stretches[-1]),
        kinds=len(firsts),
    )


def _phase(stretch: Stretch) -> Phase:
    return Phase(
        peak=stretch.peak - stretch.start,
        gradients=stretch.gradients,
        kept=stretch.end - stretch.start,
        gradients_kept=stretch.gradients_end,
    )


def _with_head(phase: Phase, head: Tensor) -> Phase:
    """The gradient of a head that is tied to the embedding waits inside autograd for the embedding's."""
    waits = phase.gradients_kept < head.nbytes
    return replace(phase, gradients_kept=phase.gradients_kept + head.nbytes) if waits else phase


def _kind(block: nn.Module) -> Hashable:
    """Two blocks with the same value are made of the same modules with the same shapes and settings."""

    def settings(module: nn.Module) -> Hashable:
        plain = sorted(
            (name, value)
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and name != "layer_idx"
        )
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in module.named_parameters(recurse=False))
        return type(module), tuple(plain), shapes

    return tuple((path, settings(module)) for path, module in block.named_modules())


def _note_attention(block: nn.Module, *, like: nn.Module) -> None:
    """What attention was asked of in one block, for another of its kind, whose own was not called."""
    for module, other in zip(block.modules(), like.modules(), strict=True):
        if hasattr(other, SHAPE):
            setattr(module, SHAPE, getattr(other, SHAPE))


class _HandOn:
    """A block's output in size, from an input that is kept for backward, as every block keeps its own. like: the block of the same kind that is computed before it."""

    def __init__(self, like: nn.Module) -> None:
        self._others = 0  # what comes with the hidden states in a tuple; -1: they come alone

        def note(_: nn.Module, __: object, output: Tensor | tuple[object, ...]) -> None:
            self._others = -1 if isinstance(output, Tensor) else len(output) - 1

        like.register_forward_hook(note)

    def __call__(self, *args: object, **kwargs: object) -> Tensor | tuple[Tensor | None, ...]:
        out: Tensor = _SameSize.apply(_hidden(args, kwargs))  # type: ignore[no-untyped-call]  # untyped in torch
        return out if self._others < 0 else (out, *[None] * self._others)


class _SameSize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(hidden)
        return torch.empty_like(hidden)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return torch.empty_like(grad)


def _hidden(args: Sequence[object], kwargs: dict[str, object]) -> Tensor:
    given = kwargs.get("hidden_states", args[0] if args else None)
    assert isinstance(given, Tensor)
    return given


def _run(model: PackedModel, blocks: Sequence[nn.Module], pass_of: Pass) -> list[Stretch]:
    """The stretches of a pass, cut where blocks begin, in forward and backward."""
    segments = Segments.from_lengths(pass_of.lengths).to("meta")
    ids = torch.empty(1, pass_of.tokens, dtype=torch.int64, device="meta")
    targets = torch.empty(pass_of.tokens, dtype=torch.int64, device="meta")
    weights = torch.empty(pass_of.tokens, dtype=torch.float64, device="meta") if pass_of.weighted else None
    inputs = [ids, targets, segments.seq_idx, segments.cu_seqlens, segments.boundaries, segments.chunk_indices]
    known = [*model.parameters(), *model.buffers(), *inputs, *([] if weights is None else [weights])]
    stretches: list[Stretch] = []
    with Alive(known) as alive, _hooks(model, blocks, alive, stretches), _experts_on_meta():
        loss = model(ids, ids, segments, targets, targets, pass_of.supervised, weights)
        stretches.append(alive.stretch())
        (loss if loss.dim() == 0 else loss[0]).backward()
        stretches.append(alive.stretch())
    for parameter in model.parameters():
        parameter.grad = None
    return stretches


@contextmanager
def _hooks(model: PackedModel, blocks: Sequence[nn.Module], alive: Alive, stretches: list[Stretch]) -> Iterator[None]:
    """Cuts a stretch where each block begins and the last one ends, forward and backward, and lets go of a block's gradients as sharding does."""
    handles = []

    def cut(*_: object) -> None:
        stretches.append(alive.stretch())

    def let_go(block: nn.Module) -> Callable[..., None]:
        def done(_: Tensor) -> None:
            cut()
            for parameter in block.parameters():
                if parameter.grad is not None:
                    parameter.grad = None
            stretches[-1] = replace(stretches[-1], end=alive.stretch().end, gradients_end=0)

        return done

    def begins(block: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        cut()
        _hidden(args, kwargs).register_hook(let_go(block))  # type: ignore[no-untyped-call]  # untyped in torch

    def ends(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        cut()
        (output if isinstance(output, Tensor) else output[0]).register_hook(cut)  # type: ignore[no-untyped-call]

    noted: set[int] = set()

    def made(parameter: Tensor) -> None:
        if parameter.grad is not None and id(parameter) not in noted:  # to a tied one more is added in place
            noted.add(id(parameter))
            alive.note_gradient(parameter.grad.nbytes)

    handles += [block.register_forward_pre_hook(begins, with_kwargs=True) for block in blocks]
    handles.append(blocks[-1].register_forward_hook(ends))
    handles += [parameter.register_post_accumulate_grad_hook(made) for parameter in model.parameters()]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _experts_on_meta() -> Iterator[None]:
    """While inside, the library multiplies by experts with its own operation, which the meta device has for every dtype; torch's has it for bfloat16."""
    theirs = moe._can_use_grouped_mm
    moe._can_use_grouped_mm = lambda *_: False
    try:
        yield
    finally:
        moe._can_use_grouped_mm = theirs
