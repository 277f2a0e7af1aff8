"""`trainer compare --strict`: in float64, the rungs have the same weights after every step, to rounding.

In float32 two right computations part: sums are taken in another order, and Adam divides what is small by its own size. In float64 Adam can make at most
1e-8 of a rounding of the gradient (1e-16 of it, ÷ the 1e-8 that Adam adds to its root), and mostly makes 1e-13; a leak, a wrong mask or a wrong normalisation shows
at the first step. So the rungs are trained side by side, and after each step each parameter w is held against the padded reference's w′, both having begun at w₀:

    error = ‖w − w′‖ ÷ (‖w′ − w₀‖ + 1.4e-7 · ‖w′‖) ≤ 1e-7

The second term is 64 roundings of the weight itself: what has hardly moved has no error relative to that.

    found = train_side_by_side(setting, rungs, check=check, advance=lambda steps: None)
    found.equal, found.parted
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.check.doubles import plain_functions
from trainer.compare.rungs import Rung, Trainee, make_trainee, work_of
from trainer.compare.setting import Setting
from trainer.compare.training import one_step
from trainer.config import RunConfig
from trainer.loader import ShardCheck

TOLERANCE = 1e-7
_ROUNDINGS = 64
_PREFIX = "model."  # of the wrapper, before the names that transformers uses


@dataclass(frozen=True, kw_only=True, slots=True)
class Parted:
    """Where weights first differ: the step (from 1; 0: at the start), the parameter whose error is largest, and that. parameters: how many differ, of `of`."""

    rung: str
    seed: int
    step: int
    parameter: str
    error: float
    parameters: int
    of: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Strict:
    """errors: by rung, the largest of any parameter after any step that was made. parted: None where all steps were made and all agree."""

    steps: int
    errors: Mapping[str, float]
    parted: Parted | None

    @property
    def equal(self) -> bool:
        return self.parted is None


def train_side_by_side(
    setting: Setting,
    rungs: Sequence[tuple[Rung, RunConfig]],
    *,
    check: ShardCheck,
    advance: Callable[[float], None],
) -> Strict:
    """Trains all rungs at once, each seed in turn, and ends at the first step after which one differs from the first of them. The configs say float64."""
    errors = {rung.name: 0.0 for rung, _ in rungs[1:]}
    made = 0
    for seed in setting.seeds:
        seeded = [(rung, dataclasses.replace(config, seed=seed)) for rung, config in rungs]
        trainees = [make_trainee(rung, setting, config) for rung, config in seeded]
        works = [work_of(rung, setting, config, check) for rung, config in seeded]
        start = {name: value.clone() for name, value in _weights(trainees[0]).items()}
        for step in range(setting.steps + 1):
            for trainee, work, (_, config) in zip(trainees, works, seeded, strict=True) if step else ():
                with plain_functions(
                    trainee.model.model
                ):  # installed fused kernels, of which the library would make use, know no float64
                    one_step(trainee, next(work), setting, config)
            reference = _weights(trainees[0])
            for (rung, _), trainee in list(zip(rungs, trainees, strict=True))[1:]:
                error = _errors(_weights(trainee), reference, start)
                worst = int(error.argmax())
                errors[rung.name] = max(errors[rung.name], float(error[worst]))
                if error[worst] > TOLERANCE:
                    parted = Parted(
                        rung=rung.name,
                        seed=seed,
                        step=step,
                        parameter=list(start)[worst].removeprefix(_PREFIX),
                        error=float(error[worst]),
                        parameters=int((error > TOLERANCE).sum()),
                        of=len(start),
                    )
                    return Strict(steps=made, errors=errors, parted=parted)
            made += step > 0
            advance(len(rungs) if step else 0)
        check.finish()
    return Strict(steps=made, errors=errors, parted=None)


def _errors(weights: Mapping[str, Tensor], reference: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> Tensor:
    """Of each parameter, float64 [parameters], in the order of `start`."""
    apart = torch.stack([(weights[name] - reference[name]).norm() for name in start])
    gone = torch.stack([(reference[name] - start[name]).norm() for name in start])
    size = torch.stack([reference[name].norm() for name in start])
    scale = gone + _ROUNDINGS * torch.finfo(torch.float64).eps / TOLERANCE * size
    # A parameter that is all zeros and has not moved must not move here either; what is no number is no equality.
    error = torch.where(apart == 0, 0.0, apart / scale)
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _weights(trainee: Trainee) -> dict[str, Tensor]:
    return {
        name: (value.to_local() if isinstance(value, DTensor) else value).detach()
        for name, value in trainee.model.named_parameters()
    }
