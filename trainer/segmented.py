"""A token-mixing layer that calls its kernels directly and is told its segments: the base of our subclasses of the library's layers.

It has no parameters of its own, so weights keep their names. A subclass names the kinds of kernel that it uses, which `trainer.isolate.bind` hands
over, out of reach of compiled graphs, and says how it mixes.

    class SegmentedShortConv(SegmentedLayer):
        kinds = ("conv",)           # self.conv_kernel is there from `bind` on

        def mix(self, hidden, segments): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from trainer.kernels import Kernel, Layer
from trainer.kernels.conv import ConvKernel
from trainer.kernels.delta import DeltaKernel
from trainer.kernels.scan import ScanKernel
from trainer.segments import Segments, require

_Kernel = TypeVar("_Kernel", bound=Callable[..., object])


class SegmentedLayer(nn.Module):
    """kinds: the kernels a subclass uses, each bound as `<kind>_kernel`."""

    kinds: ClassVar[tuple[Layer, ...]]
    delta_kernel: DeltaKernel
    conv_kernel: ConvKernel
    scan_kernel: ScanKernel

    def bind(self, kind: Layer, kernel: Kernel) -> None:
        """Hand over the kernel of one kind."""
        setattr(self, f"{kind}_kernel", opaque(kernel))

    def forward(
        self,
        hidden_states: Tensor,
        cache: object = None,
        attention_mask: Tensor | None = None,
        segments: Segments | None = None,
        **_: object,
    ) -> Tensor:
        """[1, T, H] to [1, T, H], as the library calls its layer; raises where segments were lost on the way, or come with what packed rows do not have."""
        # The name is made only where it is needed: with the layer's number in it, compiled code would be one a layer.
        if segments is None:
            segments = require(segments, name_of(self))
        if cache is not None or attention_mask is not None or hidden_states.shape[0] != 1:
            raise RuntimeError(
                f"{name_of(self)} takes one pass of packed rows [1, T, H], no cache and no attention mask"
            )
        return self.mix(hidden_states, segments)

    def mix(self, hidden: Tensor, segments: Segments) -> Tensor:
        """What the layer computes: hidden [1, T, H] to [1, T, H], each segment by itself."""
        raise NotImplementedError


def opaque(kernel: _Kernel) -> _Kernel:
    """Keep a kernel out of compiled graphs: its cut to the real boundaries would compile one a segment count, its layer's number one a layer."""
    disabled: _Kernel = torch.compiler.disable(kernel)  # type: ignore[no-untyped-call]  # untyped in torch
    return disabled


def name_of(module: nn.Module) -> str:
    """A layer as a person knows it: its class and number."""
    return f"{type(module).__name__} of layer {getattr(module, 'layer_idx', '?')}"
