"""Our calls of flash-linear-attention's kernels, run on a CPU by Triton's interpreter, against our references: one JSON line of relative errors, and
how often the package planned its grid by itself.

A process of its own, because TRITON_INTERPRET is read when Triton is imported. The package is copied and four lines of the copy are changed: inside
a `range` the interpreter hands the kernel a Python integer, which has no `.to`. The autotuner is told not to time anything.

TRITON_INTERPRET=1 python -m tests.trainer.interpreted_script FOLDER
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from trainer.kernels import conv, delta, prove_apart, prove_right, scan
from trainer.segments import Segments

# Shorter and longer than a chunk of 64 by one, a single token, and a pad tail; places beyond the last segment.
LENGTHS = [1, 63, 64, 65, 2, 29]
SEGMENTS = Segments.from_lengths(LENGTHS, max_segments=12)
LENGTH = sum(LENGTHS)
_CAST = "i_t_int64 = i_t.to(tl.int64)"


def copy_fla(folder: Path) -> None:
    """Puts a copy of the fla package that the interpreter can run before the installed one."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, folder / "fla", dirs_exist_ok=True)
    for name in ("chunk_delta_h.py", "chunk_h.py"):
        place = folder / "fla" / "ops" / "common" / name
        text = place.read_text(encoding="utf-8")
        assert text.count(_CAST) == 2
        place.write_text(text.replace(_CAST, "i_t_int64 = i_t + tl.zeros((), tl.int64)"), encoding="utf-8")
    sys.path.insert(0, str(folder))


def stop_timing() -> None:
    """The first configuration is as right as any other: none is timed."""
    from triton.runtime import autotuner

    autotuner.Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]


def count_plans() -> list[int]:
    """Grows by one whenever the package reckons chunks from boundaries."""
    from fla.ops.utils import index

    plans: list[int] = []
    plan = index._segmented_arange
    index._segmented_arange = lambda counts: (plans.append(len(counts)), plan(counts))[1]
    return plans


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def errors(fused: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: list[Tensor]) -> dict[str, float]:
    """‖fused − reference‖/‖reference‖ of the output and of each input's gradient."""
    found = {}
    ours, theirs = fused(*inputs), reference(*inputs)
    upstream = normal(*ours.shape, seed=9).detach()
    found["output"] = float(((ours - theirs).norm() / theirs.norm()).detach())
    pairs = zip(torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True)
    for number, (got, want) in enumerate(pairs):
        found[f"gradient {number}"] = float((got - want).norm() / want.norm())
    return found


def main() -> None:
    copy_fla(Path(sys.argv[1]))
    stop_timing()
    plans = count_plans()
    found: dict[str, object] = {}

    kernel, _, _ = delta.load_fused()
    decay = (-torch.nn.functional.softplus(normal(1, LENGTH, 4, seed=4))).detach().requires_grad_()
    strength = normal(1, LENGTH, 4, seed=5).sigmoid().detach().requires_grad_()
    inputs = [normal(1, LENGTH, heads, 16, seed=heads + i) for i, heads in enumerate((2, 2, 4))]
    found["delta"] = errors(
        lambda *x: kernel(*x, segments=SEGMENTS),
        lambda *x: delta.reference(*x, segments=SEGMENTS),
        [*inputs, decay, strength],
    )

    convolve, _, _ = conv.load_fused()
    for name, activation, bias in (("conv", "silu", True), ("conv, bare", None, False)):
        inputs = [normal(1, LENGTH, 24, seed=1), normal(24, 4, seed=2), *([normal(24, seed=3)] if bias else [])]
        found[name] = errors(
            lambda x, w, b=None, act=activation: convolve(x, w, b, act, segments=SEGMENTS),
            lambda x, w, b=None, act=activation: conv.reference(x, w, b, act, segments=SEGMENTS),
            inputs,
        )

    found["plans of delta and conv"] = len(plans)
    scanned, _, _ = scan.load_fused()
    inputs = [
        normal(1, LENGTH, 4, 16, seed=1),
        torch.nn.functional.softplus(normal(1, LENGTH, 4, seed=2)).detach().requires_grad_(),
        (-normal(4, seed=3).exp()).detach().requires_grad_(),
        normal(1, LENGTH, 2, 16, seed=4),
        normal(1, LENGTH, 2, 16, seed=5),
        normal(4, seed=6),
    ]
    found["scan"] = errors(
        lambda *x: scanned(*x, segments=SEGMENTS), lambda *x: scan.reference(*x, segments=SEGMENTS), inputs
    )
    for layer, fused in (("delta", kernel), ("conv", convolve), ("scan", scanned)):
        prove_apart(layer, fused, "interpreted", torch.device("cpu"), torch.float32)
        prove_right(layer, fused, "interpreted", torch.device("cpu"), torch.float32)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
