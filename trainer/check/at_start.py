"""`trainer run --check`: proof before the first step, on the very model that will be trained, or word of one that still holds.

check_at_start(prepared, model, units, dtype=torch.bfloat16, config_digest=digest, ranks=ranks, say=say)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.fsdp import FSDPModule

from packer.errors import GateError
from trainer.check.proof import Case, prove, prove_isolation
from trainer.check.report import Form
from trainer.check.stored import find_proof, proof_key, store_proof
from trainer.check.subject import packed_subject
from trainer.check.windows import cut_windows
from trainer.model import PackedModel
from trainer.prepare import Prepared
from trainer.ranks import Ranks
from trainer.say import Say


def check_at_start(
    prepared: Prepared,
    model: PackedModel,
    units: Sequence[FSDPModule],
    *,
    dtype: torch.dtype,
    config_digest: str,
    ranks: Ranks,
    say: Say,
) -> None:
    """Proves what --check asks for and leaves check.json in the run's folder; every rank calls it. Raises GateError where it is not so."""
    wish = prepared.config.check
    if wish == "off":
        say("check", "off: nothing shows here that this model keeps the examples of a row apart")
        return
    form: Form = "full" if wish == "full" else "quick"
    key = proof_key(prepared, model, layers=model.layers, config_digest=config_digest, device=ranks.device)
    found = ranks.gather_objects(find_proof(prepared.folder, key, form=form) if ranks.first else None)[0]
    if found is not None:
        say("check", f"isolation was proved before, for the same model code, kernels, versions and rows ({found})")
        return
    case = Case(
        prepared=prepared,
        ranks=ranks,
        subject=packed_subject(model, ranks.device),
        windows=cut_windows(prepared.corpus, quick=form == "quick"),
        furthest=prepared.max_segment_len - 1,
        dtype=dtype,
        key=key,
        model=model,
        units=units,
        layers=model.layers,
    )
    # Compiled blocks are left for rows of the run's own shape.
    with torch.compiler.set_stance("force_eager"):
        report = prove(case, say) if form == "full" else prove_isolation(case, say)
    ranks.together(lambda: store_proof(prepared.folder, report) if ranks.first else None)
    if not report.passed:
        last = report.findings[-1]
        raise GateError(
            f"{last.name}: {last.where}",
            f"{last.advice}; `trainer check` shows more, --check off trains all the same",
        )
