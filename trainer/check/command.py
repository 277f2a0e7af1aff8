"""`trainer check` from its options to its exit status.

status = check(RunConfig(shards="data/packed", model="Qwen/Qwen3.5-0.8B", steps=1), as_is=False, json=False, out=None)
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from packer.console import EXIT_NO, printable
from packer.errors import UserError
from packer.unheard import cut_short
from trainer.check.contract import contract
from trainer.check.proof import Case, prove, tell
from trainer.check.report import Finding, Report
from trainer.check.stock import stock_model
from trainer.check.stored import proof_key, store_proof
from trainer.check.subject import packed_subject, stock_subject
from trainer.check.windows import cut_windows
from trainer.config import RunConfig
from trainer.kernels import resolve
from trainer.library import read_config
from trainer.model import PackedModel, plan_model, try_out
from trainer.parallel import DTYPES, master_dtype, shard
from trainer.prepare import Prepared, prepare
from trainer.ranks import Ranks, start_ranks
from trainer.say import Say, printer
from trainer.source import check_source, config_digest
from trainer.source import read_config as read_document
from trainer.weights import fill

_ROWS_LOOKED_AT = 16


def check(config: RunConfig, *, as_is: bool, json: bool, out: str | None, quiet: bool = False) -> int:
    """Proves, tells, and returns the exit status: 0 proved, 1 not. Every rank of a torchrun calls it. Raises UserError for wrong use.

    as_is: the model as transformers runs it, from position ids alone. json: the report on standard output, all else on standard error. out: a run's
    folder to leave check.json in. quiet: only notes are told.
    """
    with start_ranks() as ranks:
        say = _on_standard_error(ranks, quiet=quiet) if json else printer(ranks, quiet=quiet)
        report = _check(config, ranks, say, as_is=as_is)
        if ranks.first and json:
            with cut_short():
                sys.stdout.write(report.to_json())
                sys.stdout.flush()
        if out is not None:
            path = ranks.together(lambda: store_proof(Path(out), report) if ranks.first else None)
            say("check", f"written to {path}")
        seconds = sum(finding.seconds for finding in report.findings)
        outcome = "proved" if report.passed else f"not proved: {report.findings[-1].name} failed"
        say("done", f"{outcome}, {seconds:.1f} s of checks")
        ranks.barrier()  # a launcher ends all ranks when the first leaves with an error, and the first rank has to have spoken
        return 0 if report.passed else EXIT_NO


def _on_standard_error(ranks: Ranks, *, quiet: bool) -> Say:
    def say(label: str, text: str) -> None:
        if ranks.first and not (quiet and label != "note"):
            print(f"{label:<7} {printable(text)}" if label else printable(text), file=sys.stderr, flush=True)

    return say


def _check(config: RunConfig, ranks: Ranks, say: Say, *, as_is: bool) -> Report:
    dtype_name = config.dtype if config.dtype != "auto" else "bf16" if ranks.device.type == "cuda" else "fp32"
    config = dataclasses.replace(config, dtype=dtype_name)
    prepared = ranks.together(lambda: prepare(config, world=1))
    ranks.together(lambda: check_source(prepared.model, init=config.init))
    ranks.together(
        lambda: resolve("attention", config.kernels, ranks.device)
    )  # wrong use is told before anything is measured
    first = ranks.together(lambda: _contract(prepared, say))
    if not first.passed:
        return _ended(prepared, first)
    model, units, refused = (None, (), "") if as_is else ranks.together(lambda: _load(prepared, ranks))
    if model is None:
        case = _stock_case(prepared, ranks, say, refused=refused)
    else:
        case = _case(prepared, ranks, say, model, units)
    return prove(case, say, before=[first])


def _contract(prepared: Prepared, say: Say) -> Finding:
    began = time.perf_counter()
    corpus = prepared.corpus
    counts = corpus.column("num_examples")
    rows = sorted({*range(min(_ROWS_LOOKED_AT, len(corpus))), int(counts.argmax()), int(counts.argmin())})
    text = read_config(prepared.model).get_text_config(decoder=True)
    passed, said, where, advice = True, "", "", ""
    try:
        notes = contract(
            prepared,
            rows=rows,
            embedding=text.vocab_size,
            positions=getattr(text, "max_position_embeddings", None),
            stops=getattr(text, "eos_token_id", None),
        )
        manifest = corpus.manifest
        said = (
            f"{len(rows)} of {len(corpus):,} rows obey the format, ids below {text.vocab_size:,}, examples of at most {manifest.max_example_len:,} tokens, "
            f"{'the tokenizer is the model’s' if not notes else 'and what the notes say'}"
        )
    except UserError as error:
        passed, notes, where, advice = False, [], error.message, error.hint
        said = "rows and model do not agree"
    finding = Finding(
        name="contract", passed=passed, seconds=time.perf_counter() - began, said=said, where=where, advice=advice
    )
    tell(finding, say)
    for label, line in notes:
        say(label, line)
    return finding


def _ended(prepared: Prepared, finding: Finding) -> Report:
    return Report(
        form="full",
        key="",
        model=prepared.model,
        refused="",
        layers=(),
        findings=(finding,),
        isolation=None,
        equality=None,
        training=None,
    )


def _load(prepared: Prepared, ranks: Ranks) -> tuple[PackedModel | None, Sequence[FSDPModule], str]:
    """The model as `run` would take it, each rank its part, or None and why it would not."""
    config, manifest = prepared.config, prepared.corpus.manifest
    try:
        model, weights = plan_model(
            prepared.model,
            init=config.init,
            seed=config.seed,
            dtype=master_dtype(_dtype(prepared)),
            kernels=config.kernels,
            device=ranks.device,
            vocab_at_least=max(manifest.max_token_id, manifest.pad_id) + 1,
        )
        units = shard(model, model.blocks, dtype=_dtype(prepared), ranks=ranks, replicas=1)
        fill(model, model.model, weights, ranks.device)
        try_out(model, prepared.model, ranks.device)
    except UserError as error:
        return None, (), error.message
    return model, units, ""


def _case(prepared: Prepared, ranks: Ranks, say: Say, model: PackedModel, units: Sequence[FSDPModule]) -> Case:
    dtype = _dtype(prepared)
    digest = config_digest(read_document(prepared.model, fetch=True) or {})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(
        "model",
        f"{prepared.model} ({prepared.config.init}): {parameters:,} parameters, computing in {prepared.config.dtype}",
    )
    for choice in dict.fromkeys(model.layers):
        say("layers", f"{choice.layer}: {choice.kernel} ({choice.reason})")
    return Case(
        prepared=prepared,
        ranks=ranks,
        subject=packed_subject(model, ranks.device),
        windows=cut_windows(prepared.corpus),
        furthest=prepared.max_segment_len - 1,
        dtype=dtype,
        key=proof_key(prepared, model, layers=model.layers, config_digest=digest, device=ranks.device),
        model=model,
        units=units,
        layers=model.layers,
    )


def _stock_case(prepared: Prepared, ranks: Ranks, say: Say, *, refused: str) -> Case:
    """The model as transformers runs it. Where that cannot be had either, the refusal is the answer."""
    config = prepared.config

    def load() -> PreTrainedModel:
        try:
            return stock_model(
                prepared.model,
                read_config(prepared.model),
                init=config.init,
                seed=config.seed,
                dtype=_dtype(prepared),
                device=ranks.device,
            )
        except UserError as error:
            raise UserError(refused or error.message, "choose another --model") from None

    model = ranks.together(load)
    if refused:
        say("note", f"`trainer run` refuses this model: {refused}")
    say(
        "model",
        f"{prepared.model} ({config.init}): as transformers runs it, told of the segments by position ids alone",
    )
    return Case(
        prepared=prepared,
        ranks=ranks,
        subject=stock_subject(model, ranks.device),
        windows=cut_windows(prepared.corpus),
        furthest=prepared.max_segment_len - 1,
        dtype=_dtype(prepared),
        key="",
        model=None,
        refused=refused,
    )


def _dtype(prepared: Prepared) -> torch.dtype:
    return DTYPES[prepared.config.dtype]
