"""Which code computes a token-mixing layer, decided once, before the first step, and told.

Each kind of layer has one signature, a plain-torch reference that is right everywhere and a fast path for GPUs. `resolve` picks one:
`auto` means the fast path on a GPU and the reference on a CPU. On a GPU a package that is missing or broken is an error that shows what the
import said, never a slower run (a lost fast path once cost a factor of 6 and said nothing). And a fast path is used only after it has kept two
segments apart, and has computed what the reference computes, on the device it will run on.

    >>> import torch
    >>> kernel, choice = resolve("conv", "auto", torch.device("cpu"))
    >>> choice.kernel, choice.reason
    ('reference', 'no GPU: plain torch, the same mathematics')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, cast, overload

import torch

from packer.errors import UserError
from trainer.kernels import attention, conv, delta, scan
from trainer.kernels.attention import AttentionKernel
from trainer.kernels.conv import ConvKernel
from trainer.kernels.delta import DeltaKernel
from trainer.kernels.failing import failures_of_a_call, said
from trainer.kernels.scan import ScanKernel
from trainer.segments import Segments

Mode = Literal["auto", "fused", "reference"]
Layer = Literal["attention", "delta", "conv", "scan"]
Kernel = AttentionKernel | DeltaKernel | ConvKernel | ScanKernel
# A kernel with everything but its differentiable inputs bound.
_Call = Callable[[list[torch.Tensor]], torch.Tensor]
# Of a norm, output or gradient. Rounding to bfloat16 makes 0.2 to 2 %; a kernel that is wrong is off by about its own size.
_MAY_DIFFER = 0.1
_OTHER = "install another version of the package, or use --kernels reference"
_MODULES: dict[Layer, ModuleType] = {"attention": attention, "delta": delta, "conv": conv, "scan": scan}


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """layer: a layer type as the model names it; kernel: what computes it; reason: why that one."""

    layer: str
    kernel: str
    reason: str


@overload
def resolve(layer: Literal["attention"], mode: Mode, device: torch.device) -> tuple[AttentionKernel, Choice]: ...
@overload
def resolve(layer: Literal["delta"], mode: Mode, device: torch.device) -> tuple[DeltaKernel, Choice]: ...
@overload
def resolve(layer: Literal["conv"], mode: Mode, device: torch.device) -> tuple[ConvKernel, Choice]: ...
@overload
def resolve(layer: Literal["scan"], mode: Mode, device: torch.device) -> tuple[ScanKernel, Choice]: ...
@overload
def resolve(layer: Layer, mode: Mode, device: torch.device) -> tuple[Kernel, Choice]: ...
def resolve(layer: Layer, mode: Mode, device: torch.device) -> tuple[Kernel, Choice]:
    """The kernel for one kind of layer and the reason for it.

    Raises UserError where the fast path was asked for (or is the rule, on a GPU) and cannot be had, lets segments see each other, or is wrong.
    """
    module = _MODULES[layer]
    if mode == "reference":
        return module.reference, Choice(layer=layer, kernel="reference", reason="asked for with --kernels reference")
    if device.type != "cuda":
        if mode == "fused":
            raise UserError(
                f"--kernels fused needs a GPU, and this run is on {device.type}",
                "use --kernels auto or --kernels reference",
            )
        return module.reference, Choice(
            layer=layer, kernel="reference", reason="no GPU: plain torch, the same mathematics"
        )
    kernel, name, why = module.load_fused()
    try:
        prove_apart(layer, kernel, name, device, torch.bfloat16)
        prove_right(layer, kernel, name, device, torch.bfloat16)
    except failures_of_a_call() as error:
        raise UserError(f"the {layer} kernel {name} cannot run on this GPU: {said(error)}", _OTHER) from error
    reason = f"{why}; kept segments apart and agreed with the reference in the test at start"
    return kernel, Choice(layer=layer, kernel=name, reason=reason)


def prove_apart(layer: Layer, kernel: Kernel, name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Run `kernel` on two segments and raise UserError if the second notices the first, forward (bit for bit) or backward (not exactly 0)."""
    first, second = 67, 61  # neither a multiple of a chunk, both longer than any short convolution
    segments = Segments.from_lengths([first, second]).to(device)
    module = _MODULES[layer]
    call, inputs = cast("tuple[_Call, list[torch.Tensor]]", module.probe(kernel, segments, device, dtype))
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    behind = call(inputs).narrow(1, first, second)
    gradients = torch.autograd.grad(behind.float().square().sum(), inputs)
    leak_back = max(float(gradient.narrow(1, 0, first).abs().max()) for gradient in gradients)
    with torch.no_grad():
        changed = [tensor.clone() for tensor in inputs]
        for tensor in changed:
            tensor[:, :first] *= 0.5
        leak_forward = float((call(changed).narrow(1, first, second) - behind).abs().max())
    if not (leak_back == 0.0 and leak_forward == 0.0):
        raise UserError(
            f"the {layer} kernel {name} lets one segment see another: output changed by {leak_forward:g}, gradient {leak_back:g} where both "
            "must be 0",
            _OTHER,
        )


def prove_right(layer: Layer, kernel: Kernel, name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Run `kernel` and the reference, in float32, on the same segments, and raise UserError where output or a gradient is another, or not finite.

    Segments are of one token, and end just before, at and behind the end of a chunk: where kernels have gone wrong.
    """
    segments = Segments.from_lengths([1, 63, 65, 128, 3]).to(device)
    module = _MODULES[layer]
    call, inputs = cast("tuple[_Call, list[torch.Tensor]]", module.probe(kernel, segments, device, dtype))
    exact, _ = cast("tuple[_Call, list[torch.Tensor]]", module.probe(module.reference, segments, device, torch.float32))
    for part, (ours, theirs) in enumerate(
        zip(_with_gradients(exact, [x.float() for x in inputs]), _with_gradients(call, inputs), strict=True)
    ):
        off = float((theirs.float() - ours).norm() / ours.norm())
        if not off <= _MAY_DIFFER:  # NaN too
            what = f"the gradient of its input {part}" if part else "its output"
            raise UserError(
                f"the {layer} kernel {name} computes something else than the reference: {what} is off by {off:.0%} (at most {_MAY_DIFFER:.0%})",
                _OTHER,
            )


def _with_gradients(call: _Call, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output of a call, and the gradients of its inputs where the output's gradient is one fixed random tensor."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = call(inputs)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]
