"""The checks in their order, each timed and told, ending at the first that fails.

report = prove(Case(...), say)          # all five
report = prove_isolation(case, say)     # the quick form: what a run does before its first step
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp import FSDPModule

from trainer.check.contract import layout_faults
from trainer.check.doubles import Doubles, make_doubles
from trainer.check.equality import Equality, equality_in_float64
from trainer.check.equality_in_training import equality_in_training
from trainer.check.isolation import Isolation, isolation
from trainer.check.labels import labels
from trainer.check.normalisation import Normalisation, normalisation_by_passes, normalisation_by_ranks
from trainer.check.report import Finding, Form, Report
from trainer.check.subject import Subject
from trainer.check.windows import Window
from trainer.kernels import Choice
from trainer.model import PackedModel
from trainer.prepare import Prepared
from trainer.ranks import Ranks
from trainer.say import Say

_FIRST_ROWS = 3
_ADVICE = {
    "attention": "use another attention kernel (--kernels reference), or a version of its package that keeps segments apart",
    "sliding window": "use another attention kernel (--kernels reference), or a version of its package that keeps segments apart",
    "delta": "its state runs on from one example into the next: use --kernels reference, or a version of its package that takes cu_seqlens",
    "convolution": "it reaches into the example before: use --kernels reference, or a version of its package that takes segments",
    "scan": "its state runs on from one example into the next: use --kernels reference, or choose another --model",
    "positions": "it depends on the longest position of a row: choose a model with another RoPE (or set rope_type in its config.json)",
    "unknown": "do not train this model on packed rows; choose another --model",
}
_AS_IT_STANDS = "transformers alone does not keep segments apart here: train it with `trainer run`, or unpacked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is to be proved. model, units: of the run, sharded or not; None and () where it is transformers' own that is measured (`refused` says why).
    windows: cut from the corpus. furthest: the largest position of any row."""

    prepared: Prepared
    ranks: Ranks
    subject: Subject
    windows: Sequence[Window]
    furthest: int
    dtype: torch.dtype
    key: str
    model: PackedModel | None
    units: Sequence[FSDPModule] = ()
    layers: tuple[Choice, ...] = ()
    refused: str = ""


@dataclass(slots=True)
class _Proof:
    """What has been found so far."""

    case: Case
    say: Say
    findings: list[Finding] = field(default_factory=list)
    isolation: Isolation | None = None
    equality: Equality | None = None
    training: Equality | None = None

    def check(self, name: str, function: Callable[[], tuple[bool, str, str, str]]) -> bool:
        """Runs one check, which gives whether it passed, its result, and where and what to do if it did not."""
        began = time.perf_counter()
        passed, said, where, advice = function()
        seconds = time.perf_counter() - began
        finding = Finding(name=name, passed=passed, seconds=seconds, said=said, where=where, advice=advice)
        self.findings.append(finding)
        tell(finding, self.say)
        return passed

    def report(self, form: Form) -> Report:
        case = self.case
        return Report(
            form=form,
            key=case.key,
            model=case.prepared.model,
            refused=case.refused,
            layers=case.layers,
            findings=tuple(self.findings),
            isolation=self.isolation,
            equality=self.equality,
            training=self.training,
        )

    def check_batch(self) -> tuple[bool, str, str, str]:
        windows = self.case.windows
        faults = layout_faults(self.case.subject.batch([window.row for window in windows]), windows)
        rows, slots = len(windows), len(windows[0].row.input_ids)
        weighted = any(window.row.loss_weights is not None for window in windows)
        what = "boundaries, targets and their weights" if weighted else "boundaries and targets"
        said = f"positions, {what} of a pass made of {rows} {'row' if rows == 1 else 'rows'} of {slots} slots are those of its segments"
        return not faults, said, "; ".join(faults[:3]), "this is a fault of batch making, not of the data: report it"

    def check_isolation(self) -> tuple[bool, str, str, str]:
        case = self.case
        found = self.isolation = isolation(case.subject, case.windows, furthest=case.furthest)
        floor = "bit for bit" if found.noise_floor == 0 else f"noise floor {found.noise_floor:.2g}, measured"
        said = (
            f"{found.segments} segments: largest gradient across a boundary {found.gradient_leak:g}, largest change by others' tokens "
            f"{found.perturbation_leak:g}, by their lengths {found.length_leak:g} ({floor}; hidden states of size {found.rms:.2g})"
        )
        if found.leak is None:
            return found.passed, said, "", ""
        leak = found.leak
        kernel = f", in its kernel {leak.kernel}" if leak.kernel else ""
        what = {
            "forward": f"its output changes by {leak.size:.3g} with another segment's tokens",
            "backward": f"a gradient of {leak.size:.3g} runs back through it into another segment (its output does not show it)",
            "lengths": f"its output changes by {leak.size:.3g} with the lengths of other segments",
        }[leak.direction]
        where = f"first leak at {leak.module} ({leak.mechanism}{kernel}): {what}"
        stock = case.model is None and leak.mechanism != "positions"
        return False, said, where, _AS_IT_STANDS if stock else _ADVICE[leak.mechanism]

    def check_equality(self, doubles: Doubles | None) -> tuple[bool, str, str, str]:
        case, model = self.case, self.case.model
        assert model is not None
        found = equality_in_float64(doubles, case.windows[:2], case.ranks.device) if doubles is not None else None
        exact = self.equality = case.ranks.gather_objects(found)[0]
        assert exact is not None  # the first rank has the copies
        if not exact.passed:
            return False, _equal(exact), f"{exact.worst} differs by {exact.worst_ratio * exact.tolerance:.3g}", _UNEQUAL
        near = self.training = equality_in_training(
            case.subject, model, case.units, case.windows[0], dtype=case.dtype, ranks=case.ranks
        )
        said = f"{_equal(exact)}; {_equal(near)}"
        where = f"in {near.dtype}, {near.worst} differs by {near.worst_ratio:.3g} times what rounding explains"
        return near.passed, said, "" if near.passed else where, "" if near.passed else _UNEQUAL

    def check_normalisation(self, doubles: Doubles | None) -> tuple[bool, str, str, str]:
        case, model = self.case, self.case.model
        assert model is not None
        mine = normalisation_by_passes(doubles, case.windows, case.ranks) if doubles is not None else None
        by_passes = case.ranks.gather_objects(mine)[0]
        assert by_passes is not None
        splits = [by_passes]
        if case.ranks.world > 1 and by_passes.passed:
            splits.append(normalisation_by_ranks(model, case.units, case.windows, dtype=case.dtype, ranks=case.ranks))
        said = "; ".join(f"over {each.split}: gradients agree to {each.error:.2g}" for each in splits)
        wrong = next((each for each in splits if not each.passed), None)
        if wrong is None:
            return True, said, "", ""
        return (
            False,
            _split_wrong(wrong),
            f"the gradient of {wrong.worst} differs most",
            ("the loss of a pass is to be its sum ÷ the targets of the whole step over all ranks, and nothing else"),
        )

    def check_labels(self) -> tuple[bool, str, str, str]:
        corpus = self.case.prepared.corpus
        found = labels(corpus, rows=range(min(_FIRST_ROWS, len(corpus))))
        for line in found.shown:
            self.say("label", line)
        said = f"{found.turns:,} stretches of targets in the first rows, {found.ended:,} end with a terminator"
        return (
            not found.faults,
            said,
            "; ".join(found.faults),
            "build the shards again with a template and --train-on that train the end of a turn",
        )


_UNEQUAL = (
    "packing changes what this model computes: do not train it on packed rows; choose other --kernels, or report it"
)


def _equal(found: Equality) -> str:
    return f"{found.dtype}: logits to {found.max_logit_error:.2g}, gradients to {found.max_grad_error:.2g} (may be {found.tolerance:.2g})"


def _split_wrong(found: Normalisation) -> str:
    return f"split over {found.split}, the gradient is {found.scale:.4g} times as large and differs by {found.error:.3g} (may differ by {found.tolerance:.2g})"


def tell(finding: Finding, say: Say) -> None:
    """One check's lines."""
    say(
        "check",
        f"{finding.name:<13} {'passed' if finding.passed else 'FAILED'}  {finding.seconds:5.1f} s  {finding.said}",
    )
    if not finding.passed:
        say("", f"  where: {finding.where}")
        say("", f"  do:    {finding.advice}")


def prove(case: Case, say: Say, before: Sequence[Finding] = ()) -> Report:
    """All checks that the case allows; every rank calls it. before: what has been checked already."""
    proof = _Proof(case=case, say=say, findings=list(before))
    going = proof.check("batch", proof.check_batch) and proof.check("isolation", proof.check_isolation)
    if going and case.model is not None:
        doubles = case.ranks.together(lambda: _doubles(case))
        going = proof.check("equality", lambda: proof.check_equality(doubles)) and proof.check(
            "normalisation", lambda: proof.check_normalisation(doubles)
        )
    if going:
        proof.check("labels", proof.check_labels)
    return proof.report("full")


def prove_isolation(case: Case, say: Say) -> Report:
    """The batch and isolation alone."""
    proof = _Proof(case=case, say=say)
    if proof.check("batch", proof.check_batch):
        proof.check("isolation", proof.check_isolation)
    return proof.report("quick")


def _doubles(case: Case) -> Doubles | None:
    assert case.model is not None
    ids = torch.cat([torch.from_numpy(window.row.input_ids).long() for window in case.windows])
    return make_doubles(case.model, ids=ids, device=case.ranks.device, keep=case.ranks.first)
