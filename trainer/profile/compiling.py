"""Code compiled or tuned while a window was open: graphs by torch's compiler, kernels by Triton's autotuner.

before = Known.now()
...
before.since()
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

from trainer.profile.about import Compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """How much was compiled at a moment. metrics: records of torch's compiler, which keeps the newest 64; tuned: entries of each autotuner, by its identity."""

    metrics: tuple[object, ...]
    tuned: dict[int, int]

    @classmethod
    def now(cls) -> Known:
        return cls(metrics=tuple(_metrics()), tuned={id(tuner): len(entries) for tuner, _, entries in _autotuners()})

    def since(self) -> tuple[Compiled, ...]:
        """What was added, in order."""
        known = {id(each) for each in self.metrics}
        graphs = [
            Compiled(
                kind="graph",
                name=str(getattr(each, "co_name", None) or "a graph"),
                where=f"{each.co_filename}:{each.co_firstlineno}" if getattr(each, "co_filename", None) else "",  # type: ignore[attr-defined]
                why=str(getattr(each, "recompile_reason", None) or ""),
                seconds=float(getattr(each, "duration_us", None) or 0) / 1e6,
            )
            for each in _metrics()
            if id(each) not in known
        ]
        tuned = [
            Compiled(kind="kernel", name=name, where="", why=f"tuned for {key}", seconds=0.0)
            for tuner, name, entries in _autotuners()
            for key in list(entries)[self.tuned.get(id(tuner), 0) :]
        ]
        return (*graphs, *tuned)


def _metrics() -> list[object]:
    """torch's own records, one a compilation. Looked up, not imported: where nobody has imported dynamo, nothing was compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return list(dynamo.get_compilation_metrics()) if dynamo is not None else []


def _autotuners() -> list[tuple[object, str, dict[object, object]]]:
    """Each of Triton's, the name of its kernel, and its choices by what it tuned for."""
    triton = sys.modules.get("triton.runtime.autotuner")
    if triton is None:
        return []
    # By its type, not isinstance: that asks the object, and some pretend to be others.
    found = [each for each in gc.get_objects() if issubclass(type(each), triton.Autotuner)]
    return [(each, str(getattr(each.base_fn, "__name__", each.base_fn)), each.cache) for each in found]
