"""What was compiled or tuned while a window was open."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from trainer.profile.compiling import Known


def test_a_second_shape_is_a_recompilation_with_its_function_line_and_reason() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    compiled = torch.compile(doubled, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    before = Known.now()
    compiled(torch.ones(3))
    assert before.since() == ()
    compiled(torch.ones(4))
    (again,) = before.since()
    assert (again.kind, again.name) == ("graph", "doubled")
    assert again.where.startswith(f"{__file__}:")
    assert "size mismatch" in again.why
    assert again.seconds > 0


def test_a_kernel_that_is_tuned_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Autotuner:
        """Of Triton, as far as it is looked at."""

        def __init__(self, base_fn: object) -> None:
            self.base_fn = base_fn
            self.cache: dict[object, object] = {(64,): "config"}

    module = ModuleType("triton.runtime.autotuner")
    module.Autotuner = Autotuner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", module)

    def chunk_fwd_kernel() -> None: ...

    old, before = Autotuner(chunk_fwd_kernel), Known.now()
    assert before.since() == ()
    old.cache[(128,)] = "config"
    new = Autotuner(test_a_kernel_that_is_tuned_again_is_named)
    found = before.since()
    assert sorted((each.kind, each.name, each.why) for each in found) == [
        ("kernel", "chunk_fwd_kernel", "tuned for (128,)"),
        ("kernel", new.base_fn.__name__, "tuned for (64,)"),  # type: ignore[attr-defined]
    ]
