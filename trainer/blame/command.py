"""`trainer blame` from its options to what it tells.

found = blame(Path("runs/first"), step=12)
found.examples[0].measured.loss, found.examples[0].origin, found.onward
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from packer.errors import UserError
from packer.examples import ExampleTable, read_examples
from packer.shards import Corpus
from trainer.blame.broken import RowGradient, first_module, gradient_of
from trainer.blame.losses import ExampleLoss, Work, measure
from trainer.blame.onward import command
from trainer.blame.report import Blame, Blamed
from trainer.blame.start import choose, load
from trainer.config import RunConfig
from trainer.decode import excerpt, open_decoder
from trainer.metrics import read_metrics
from trainer.prepare import Prepared, prepare
from trainer.ranks import start_ranks
from trainer.record import complete, read_record
from trainer.run_folder import read_options

# Characters of what an example's targets say: two lines of a wide terminal.
_CHARACTERS = 400


def blame(
    run: Path, *, step: int, model: str | None = None, shards: str | None = None, gradients: bool = False
) -> Blame:
    """Takes step `step` (from 1) of a run apart. Every rank of a torchrun calls it and gets the same.

    model: a transformers folder or hub name whose weights to take in place of the run's own. shards: where they lie now, if not where they did. gradients: of
    each row too; they are also computed where the run's own gradient of this step, or a loss, is not finite. Raises UserError where the folder is not a
    run's, the step not one of its, or shards or checkpoint are missing, damaged or another run's.
    """
    with start_ranks() as ranks:
        options = ranks.together(lambda: read_options(run))
        prepared = ranks.together(lambda: _prepare(options, shards))
        steps = prepared.order.steps
        if not 1 <= step <= steps:
            raise UserError(f"--step {step}: {run} is a run of {steps:,} steps", f"give one from 1 to {steps}")
        ranks.together(lambda: _refuse_other_rows(run, prepared.corpus))
        start = ranks.together(lambda: choose(run, step=step, given=model))
        work = Work.of(prepared, step=step, ranks=ranks)
        loaded, units = load(start, run, prepared, ranks)
        losses = measure(loaded, units, work, ranks)
        lines = ranks.together(lambda: read_metrics(run))
        stopped = not_finite(lines, step)
        lost = [one for one in losses if not one.finite]
        norms: list[RowGradient] = []
        if gradients or stopped or lost:
            norms = [gradient_of(loaded, units, work, row=row, ranks=ranks) for row in work.rows]
        module = first_module(loaded, units, work, row=lost[0].row, ranks=ranks) if lost else None
        examples = ranks.together(lambda: _blamed(prepared.corpus, losses))
        worst = worst_rows(examples, norms)
        pointless = len(worst) == len(work.rows) and any(not each.finite for each in norms)
        return Blame(
            run=str(run),
            step=step,
            steps=steps,
            weights=start.said,
            updates=start.updates,
            logged=next(
                (line["loss"] for line in lines if line["step"] == step and line.get("loss") is not None), None
            ),
            left_out=work.left_out,
            examples=tuple(examples),
            stopped=stopped,
            gradients=tuple(norms),
            module=module,
            without=() if pointless else worst,
            onward="" if pointless else _onward(run, options, worst, step, shards),
        )


def _prepare(options: RunConfig, shards: str | None) -> Prepared:
    # The eval rows have no part in a step, and whatever the run was spread over, the rows of a step are the same.
    config = dataclasses.replace(
        options, shards=options.shards if shards is None else shards, eval_shards=None, eval_every=0, replicas=1
    )
    try:
        return prepare(config)
    except UserError as error:
        if shards is not None or not error.message.startswith(options.shards):
            raise
        raise UserError(
            error.message, f"if the shards were moved, say where they are with --shards ({error.hint})"
        ) from None


def _refuse_other_rows(run: Path, corpus: Corpus) -> None:
    """Any checkpoint knows which corpus the run is trained on."""
    for checkpoint in complete(run)[:1]:
        theirs = read_record(checkpoint).corpus_digest
        if theirs != corpus.manifest.corpus_digest:
            raise UserError(
                f"{corpus.name}: not the rows that {run} was trained on (corpus digest {corpus.manifest.corpus_digest}, the run's is {theirs})",
                "give the folder it was trained on with --shards",
            )


def not_finite(lines: Sequence[dict[str, float]], step: int) -> bool:
    """Whether a run's metrics say that the gradient of step `step` was not finite, or that of a step logged with it: its norm is null, or the number of
    updates left out rose."""
    before = 0.0
    for line in lines:
        if "skipped" not in line:
            continue
        if line["step"] >= step:
            own = line["step"] == step and (line.get("grad_norm") is None or line.get("loss") is None)
            return own or line["skipped"] > before
        before = line["skipped"]
    return False


def _blamed(corpus: Corpus, losses: Sequence[ExampleLoss]) -> list[Blamed]:
    table = _table(corpus)
    decoder = open_decoder(corpus)
    found = []
    for one in losses:
        row = corpus[one.row]
        listed = table is not None and one.example < len(table)
        found.append(
            Blamed(
                measured=one,
                origin=table.origin(one.example, corpus.manifest) if table is not None and listed else "not listed",
                source=int(table.source[one.example]) if table is not None and listed else -1,
                source_row=int(table.row[one.example]) if table is not None and listed else -1,
                text=excerpt(
                    decoder,
                    row.input_ids[one.start : one.end],
                    row.loss_mask[one.start : one.end],
                    characters=_CHARACTERS,
                ),
            )
        )
    return sorted(found, key=lambda each: each.badness, reverse=True)


def _table(corpus: Corpus) -> ExampleTable | None:
    folder = corpus.fetch("examples")
    return read_examples(folder.parent) if folder.is_dir() else None


def worst_rows(examples: Sequence[Blamed], gradients: Sequence[RowGradient]) -> tuple[int, ...]:
    """The rows to go on without: all in which a loss or gradient is not finite; where there is none, that of the worst example."""
    broken = {one.measured.row for one in examples if not one.measured.finite}
    broken |= {each.row for each in gradients if not each.finite}
    return tuple(sorted(broken)) if broken else (examples[0].measured.row,)


def _onward(run: Path, options: RunConfig, worst: Sequence[int], step: int, shards: str | None) -> str:
    saved = [int(path.name.removeprefix("step-")) for path in complete(run)]
    return command(run, options, without=worst, step=step, saved=saved, shards=shards)
