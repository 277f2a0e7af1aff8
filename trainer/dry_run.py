"""What a run would say and refuse, seen without torch: the model's files, the run's folder, and where it would go on.

What only the layers themselves can tell (whether they keep segments apart, which kernels there are) is left to the run.

    for label, text in foresee(prepare(config), world=8): ...
"""

from __future__ import annotations

from pathlib import Path

from trainer import record
from trainer.prepare import Counts, Prepared, check_targets, describe, fits_model
from trainer.run_folder import check_folder
from trainer.same_tokenizer import check_tokenizer
from trainer.source import check_source, config_digest, read_config
from trainer.trackers import refuse_missing


def foresee(prepared: Prepared, *, world: int) -> list[tuple[str, str]]:
    """What a run would do, as (label, text); raises UserError where it would be refused."""
    check_folder(prepared.folder)
    refuse_missing(prepared.config.tracker)
    found = record.find(prepared)
    check_source(prepared.model, init=prepared.config.init if found is None else "random")
    document = read_config(prepared.model, fetch=False)
    lines = describe(prepared, world=world)
    if document is None:
        lines.append(
            ("model", f"{prepared.model}: not in the hub's cache; the run fetches it, and only then is it looked at")
        )
    else:
        text = document.get("text_config")
        text = text if isinstance(text, dict) else document
        fits_model(prepared, rows=text.get("vocab_size"), positions=text.get("max_position_embeddings"))
        lines.append(
            ("model", f"{prepared.model} ({prepared.config.init}): {document.get('model_type', 'of no named type')}")
        )
    lines += check_tokenizer(prepared, fetch=False)
    check_targets(prepared, Counts.of(prepared.corpus))
    return lines + _resume(prepared, found, None if document is None else config_digest(document))


def _resume(prepared: Prepared, found: Path | None, digest: str | None) -> list[tuple[str, str]]:
    if found is None:
        return [("out", f"{prepared.folder}: a new run")]
    saved = record.read_record(found)
    now = record.record(prepared, step=saved.step, config_digest=saved.config_digest if digest is None else digest)
    record.refuse_other_run(saved, now, checkpoint=found)
    if saved.step == saved.steps:
        return [
            ("out", f"{prepared.folder}: already holds all {saved.steps:,} steps of this run, nothing would be done")
        ]
    changes = [("note", f"changed since then: {change}") for change in record.changed_options(saved, now)]
    return [("resume", f"{found}: the run would go on after step {saved.step:,} of {saved.steps:,}"), *changes]
