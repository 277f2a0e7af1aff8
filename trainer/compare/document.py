"""What a comparison found, as one document for programs: `--json` prints it, a page is made of it.

    document = document_of(found)
    document["loss"]["equivalent"], [rung["ratio"] for rung in document["ladder"]]

ladder     of each rung, the first being what `ratio` is relative to: useful_tokens_per_s (median of the seeds; `_per_seed` all of them), slots_per_useful, steps,
           passes (forward and backward, of all steps of a seed, mean), ops_per_useful_token (null of compiled code), launches_per_useful_token (null on a CPU),
           graphs_compiled, peak_memory_bytes (null of compiled code on a CPU)
loss       held-out loss. padded: the reference; packed; difference_per_seed, interval_95, margin, replicate_floor, bound, equivalent, verdict: of packed. rungs: the
           same for every rung. replicates: the reference again, in another order
curves     of each rung and seed: the loss of each step, Σ cross-entropy ÷ targets before its update
setting    what was compared, with which versions, on what; against: the options in which --against differs
strict     null, or what --strict found; the others are then empty
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence

import torch

from trainer.compare.against import TAKEN
from trainer.compare.comparison import Comparison, Rungs
from trainer.compare.rungs import AGAINST
from trainer.compare.setting import Setting
from trainer.compare.statistics import Outcome, Spread
from trainer.compare.strict import TOLERANCE, Strict
from trainer.compare.training import Trained
from trainer.config import RunConfig

_PACKAGES = ("packer-trainer", "torch", "transformers", "triton", "flash-linear-attention", "causal-conv1d")


def document_of(found: Comparison) -> dict[str, object]:
    """Of a comparison of losses and speed; numbers are finite, for a gradient that is not has ended it."""
    names = [rung.name for rung, _ in found.rungs]
    packed = found.outcomes["packed"]
    return {
        "ladder": [_rung(found, name) for name in names],
        "loss": {
            "padded": _spread(found.held_out(names[0])),
            "packed": _spread(found.held_out("packed")),
            **_outcome(packed),
            "margin": packed.margin,
            "margin_share": found.margin_share,
            "replicate_floor": packed.floor,
            "bound": packed.bound,
            "replicates": [run.held_out for run in found.replicates],
            "rungs": [
                {
                    "name": name,
                    **_spread(found.held_out(name)),
                    **(_outcome(found.outcomes[name]) if name in found.outcomes else {}),
                }
                for name in names
            ],
        },
        "curves": {name: [_curve(run) for run in found.runs[name]] for name in names},
        "setting": _setting(found.setting, found.rungs, found.runs),
        "strict": None,
    }


def document_of_strict(found: Strict, setting: Setting, rungs: Rungs) -> dict[str, object]:
    """Of --strict."""
    return {
        "ladder": [],
        "loss": None,
        "curves": {},
        "setting": _setting(setting, rungs, {}),
        "strict": {
            "equal": found.equal,
            "steps": found.steps,
            "tolerance": TOLERANCE,
            "errors": {name: _number(error) for name, error in found.errors.items()},
            "parted": None
            if found.parted is None
            else {**dataclasses.asdict(found.parted), "error": _number(found.parted.error)},
        },
    }


def _rung(found: Comparison, name: str) -> dict[str, object]:
    runs = found.runs[name]
    useful, first = sum(run.useful_tokens for run in runs), runs[0]
    cost = first.cost
    assert cost is not None  # of the first seed
    per_s, reference = found.useful_per_s(name), found.useful_per_s(found.rungs[0][0].name)
    peak = max((run.peak_bytes for run in runs if run.peak_bytes is not None), default=cost.peak_bytes)
    return {
        "name": name,
        "useful_tokens_per_s": per_s,
        "useful_tokens_per_s_per_seed": [run.useful_per_s for run in runs],
        "slots_per_useful": sum(run.slots for run in runs) / useful,
        "steps": len(first.losses),
        "passes": sum(run.passes for run in runs) / len(runs),
        "ops_per_useful_token": _per(cost.operations, first.first_tokens),
        "launches_per_useful_token": _per(cost.launches, first.first_tokens),
        "graphs_compiled": first.graphs,
        "peak_memory_bytes": peak,
        "ratio": per_s / reference,
    }


def _per(count: int | None, tokens: int) -> float | None:
    return None if count is None else count / tokens


def _spread(found: Spread) -> dict[str, object]:
    return {"mean": found.mean, "std": found.std, "per_seed": list(found.per_seed)}


def _outcome(outcome: Outcome) -> dict[str, object]:
    return {
        "difference_per_seed": list(outcome.differences.per_seed),
        "interval_95": None if outcome.interval is None else list(outcome.interval),
        "equivalent": outcome.equivalent,
        "verdict": outcome.verdict,
    }


def _curve(run: Trained) -> dict[str, object]:
    return {"seed": run.seed, "steps": list(range(1, len(run.losses) + 1)), "loss": list(run.losses)}


def _setting(setting: Setting, rungs: Rungs, runs: Mapping[str, Sequence[Trained]]) -> dict[str, object]:
    base, corpus = setting.base, setting.base.corpus
    held_out = sum(int(example.mask.sum()) for example in setting.held_out)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "shards": corpus.name,
        "corpus_digest": corpus.manifest.corpus_digest,
        "capacity": corpus.capacity,
        "rows": setting.rows,
        "model": base.model,
        "init": base.config.init,
        "parameters": next((run.parameters for each in runs.values() for run in each), None),
        "steps": setting.steps,
        "seeds": list(setting.seeds),
        "held_out": {
            "from": setting.held_out_from,
            "examples": len(setting.held_out),
            "of": setting.held_out_of,
            "supervised_tokens": held_out,
        },
        "options": {name: getattr(base.config, name) for name in TAKEN},
        "against": _changed(base.config, rungs),
        "layers": {
            name: [f"{each.layer}: {each.kernel}" for each in dict.fromkeys(done[0].layers)]
            for name, done in runs.items()
        },
        "machine": {
            "device": _device(setting.ranks.device),
            "threads": torch.get_num_threads(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def _changed(config: RunConfig, rungs: Rungs) -> dict[str, object] | None:
    """The options in which --against differs; None without it."""
    other = next((each for rung, each in rungs if rung.name == AGAINST.name), None)
    if other is None:
        return None
    return {name: getattr(other, name) for name in TAKEN if getattr(other, name) != getattr(config, name)}


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.processor()}".strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
