"""Names for the profiler to record: the parts of a step, and the type of layer whose forward is running.

Nothing of this is there outside of `watched`: a step that nobody profiles has no hook and makes no annotation.

    with watched(model, whole_blocks=False):
        with phase("forward"):
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import nn
from torch.profiler import record_function

from trainer.model import PackedModel
from trainer.profile.events import KERNEL
from trainer.segmented import SegmentedLayer

PHASE, LAYER = "phase: ", "layer: "
_KERNELS = {"delta": "gated delta", "conv": "convolution", "scan": "state-space scan"}


def phase(name: str) -> AbstractContextManager[object]:
    """A part of a step, as `trainer.phases.Phase`."""
    return record_function(PHASE + name)


@contextmanager
def watched(model: PackedModel, *, whole_blocks: bool) -> Iterator[None]:
    """While inside, the forward of every layer is annotated with its type, that of each kernel of ours inside with its own, and the loss as a part of the
    step.

    whole_blocks: a block is one layer, not its parts: inside of compiled code a hook, or another kernel than was compiled for, would change what is
    compiled.
    """
    with ExitStack() as stack:
        for module, name in _layers(model, whole_blocks=whole_blocks):
            _annotate(stack, module, LAYER + name)
        for module in [] if whole_blocks else model.modules():
            if isinstance(module, SegmentedLayer):
                for kind in module.kinds:
                    _annotate_kernel(stack, module, kind)
        _annotate_loss(stack, model)
        yield


def _layers(model: PackedModel, *, whole_blocks: bool) -> Iterator[tuple[nn.Module, str]]:
    base, blocks = model.model.base_model, model.blocks
    for block in blocks:
        if whole_blocks:
            yield block, block_name(block)
        else:
            for child in block.children():
                yield child, type_name(child)
    inside = {id(module) for block in blocks for module in block.modules()}
    for child in base.children():
        if id(child) not in inside and not isinstance(child, nn.ModuleList):
            yield child, type_name(child)


def block_name(block: nn.Module) -> str:
    """A whole block by what mixes tokens in it, as far as names tell: "Qwen3_5Attention block"."""
    names = dict.fromkeys(type_name(child) for child in block.children())
    mixing = [name for name in names if not name.endswith(("MLP", "Norm", "FeedForward", "Dropout"))]
    return f"{' + '.join(mixing) or type_name(block)} block"


def type_name(module: nn.Module) -> str:
    """The library's own name of a layer's class, where ours is a subclass of it."""
    return type(module).__name__.removeprefix("Segmented")


def _annotate(stack: ExitStack, module: nn.Module, name: str) -> None:
    running: list[AbstractContextManager[object]] = []

    def before(_module: nn.Module, _inputs: object) -> None:
        running.append(record_function(name))
        running[-1].__enter__()

    def after(_module: nn.Module, _inputs: object, _outputs: object) -> None:
        running.pop().__exit__(None, None, None)

    stack.callback(module.register_forward_pre_hook(before).remove)
    # Always: a forward that raises ends too.
    stack.callback(module.register_forward_hook(after, always_call=True).remove)


def _annotate_kernel(stack: ExitStack, module: SegmentedLayer, kind: str) -> None:
    attribute, name = f"{kind}_kernel", LAYER + _KERNELS[kind] + KERNEL
    kernel: Callable[..., object] = getattr(module, attribute)

    def named(*args: object, **kwargs: object) -> object:
        with record_function(name):
            return kernel(*args, **kwargs)

    setattr(module, attribute, named)
    stack.callback(setattr, module, attribute, kernel)


def _annotate_loss(stack: ExitStack, model: PackedModel) -> None:
    """What lies between the end of the backbone's forward and the end of the whole model's is the loss."""
    running: list[AbstractContextManager[object]] = []

    def begins(_module: nn.Module, _inputs: object, _outputs: object) -> None:
        running.append(phase("loss"))
        running[-1].__enter__()

    def ends(_module: nn.Module, _inputs: object, _outputs: object) -> None:
        while running:
            running.pop().__exit__(None, None, None)

    stack.callback(model.model.base_model.register_forward_hook(begins).remove)
    stack.callback(model.register_forward_hook(ends, always_call=True).remove)
