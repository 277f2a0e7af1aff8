"""The source lines that make the host wait for the device.

Found in a step of their own, whose time counts for nothing, so that those that are recorded carry no Python stacks. On a CPU nothing waits, but the
same lines would on a GPU, so they are found there too; a number that a program keeps on the host on purpose is then counted as well.

    with Sources(device) as sources:
        take_step(...)
    sources.events
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.profile.events import Event

# Operators whose result, or its shape, the host must know.
_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_consecutive.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten.bincount.default,
}
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_ROOT = Path(__file__).parent.parent.parent


class Sources(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Notes each wait of the steps made inside. events: of kind "sync", with the line that is nearest to the operator outside of torch."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._device = device.type
        self.events: list[Event] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,  # torch's signature
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self._waits(func, args, kwargs):
            self.events.append(
                Event(kind="sync", name=str(func), start=0, end=0, where=_line(sys._getframe(1), stop=_TORCH))
            )
        return func(*args, **kwargs)

    def _waits(self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        if func in _WAITING:
            if func is torch.ops.aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
                return False
            return any(isinstance(each, torch.Tensor) and each.device.type == self._device for each in args)
        if func in _COPIES and self._device != "cpu":
            return _to_host(func, args, kwargs)
        return False


def _to_host(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """A copy from the device to the host that is not said to run on by itself."""
    if kwargs.get("non_blocking") or (func is torch.ops.aten.copy_.default and len(args) > 2 and args[2]):
        return False
    source = args[1] if func is torch.ops.aten.copy_.default else args[0]
    target = args[0].device if func is torch.ops.aten.copy_.default else kwargs.get("device")  # type: ignore[attr-defined]
    there = torch.device(target).type if isinstance(target, str | torch.device) else ""
    return isinstance(source, torch.Tensor) and source.device.type != "cpu" and there == "cpu"


def _line(frame: FrameType | None, *, stop: str) -> str:
    """ "trainer/optim.py:88 in gradient_norm": the innermost line outside of torch and of this package."""
    found = frame
    while found is not None and found.f_code.co_filename.startswith((stop, _HERE, "<")):
        found = found.f_back
    if found is None:
        return "inside torch"
    return f"{_short(Path(found.f_code.co_filename))}:{found.f_lineno} in {found.f_code.co_name}"


def _short(path: Path) -> str:
    """Below the project or site-packages, where it lies there."""
    parts = path.parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else str(path)
