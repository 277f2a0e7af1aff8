"""What a proof found, for a person line by line and for a program as one JSON document.

report = Report(form="full", key=key, layers=model.layers, findings=(...), isolation=found, ...)
report.passed, report.to_json()
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Literal

from trainer.check.equality import Equality
from trainer.check.isolation import Isolation
from trainer.kernels import Choice

Form = Literal["full", "quick"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check. said: its result in a line. where, advice: of a failure. seconds: how long it took on this rank."""

    name: str
    passed: bool
    seconds: float
    said: str
    where: str = ""
    advice: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """key: names what was proved (`trainer.check.stored`). refused: why `trainer run` does not take the model, "" where it does. findings: the checks that
    were made, in order; all but the last passed."""

    form: Form
    key: str
    model: str
    refused: str
    layers: tuple[Choice, ...]
    findings: tuple[Finding, ...]
    isolation: Isolation | None
    equality: Equality | None
    training: Equality | None

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    def to_json(self) -> str:
        """One JSON document; what is not a finite number is written as a word."""
        isolation, leak = self.isolation, self.isolation.leak if self.isolation else None
        document = {
            "passed": self.passed,
            "form": self.form,
            "model": self.model,
            "refused": self.refused or None,
            "layers": [{"type": each.layer, "kernel": each.kernel, "why": each.reason} for each in self.layers],
            "checks": [
                {
                    "name": each.name,
                    "passed": each.passed,
                    "seconds": round(each.seconds, 3),
                    "said": each.said,
                    "where": each.where,
                    "advice": each.advice,
                }
                for each in self.findings
            ],
            "isolation": {
                "gradient_leak": _number(isolation.gradient_leak) if isolation else None,
                "perturbation_leak": _number(isolation.perturbation_leak) if isolation else None,
                "length_leak": _number(isolation.length_leak) if isolation else None,
                "noise_floor": _number(isolation.noise_floor) if isolation else None,
                "segments": isolation.segments if isolation else None,
            },
            "equality": {**_equality(self.equality), "training": _equality(self.training)},
            "first_leak": leak.module if leak else None,
            "leak": None
            if leak is None
            else {
                "module": leak.module,
                "kernel": leak.kernel,
                "mechanism": leak.mechanism,
                "size": _number(leak.size),
                "direction": leak.direction,
            },
            "seconds": round(sum(each.seconds for each in self.findings), 3),
            "key": self.key,
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _equality(found: Equality | None) -> dict[str, object]:
    return {
        "dtype": found.dtype if found else None,
        "max_logit_error": _number(found.max_logit_error) if found else None,
        "max_grad_error": _number(found.max_grad_error) if found else None,
        "tolerance": found.tolerance if found else None,
        "worst": found.worst if found else None,
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
