"""`trainer compare` from its options to its exit status.

status = run_compare(Options(config=RunConfig(shards="data/packed", steps=60), seeds=3))
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packer.console import EXIT_NO, printable
from packer.errors import UserError
from packer.html.page import write_page
from packer.progress import console_progress
from packer.unheard import cut_short
from trainer.compare.against import read_against
from trainer.compare.comparison import Rungs, compare, ladder, total_steps
from trainer.compare.document import document_of, document_of_strict
from trainer.compare.report_terminal import print_comparison, print_strict
from trainer.compare.setting import Setting, make_setting
from trainer.compare.strict import train_side_by_side
from trainer.compare_page import compare_page
from trainer.config import RunConfig
from trainer.kernels import resolve
from trainer.loader import ShardCheck
from trainer.ranks import Ranks, start_ranks
from trainer.same_tokenizer import check_tokenizer
from trainer.source import check_source


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """config: of the rungs; its seed is the first of `seeds`. margin: share of the padded loss. replicates: whether the floor is measured.
    most_held_out: examples to evaluate on. against: a TOML file of run options. html: a page to write."""

    config: RunConfig
    seeds: int = 3
    margin: float = 0.005
    replicates: bool = True
    most_held_out: int = 256
    strict: bool = False
    against: Path | None = None
    html: Path | None = None


def run_compare(options: Options, *, as_json: bool = False) -> int:
    """Compares, tells, and returns the exit status: 0, or 1 where a rung is not equivalent (with --strict: not equal). Raises UserError for wrong use."""
    with start_ranks() as ranks:
        if ranks.world > 1:
            raise UserError(
                f"trainer compare was started as {ranks.world} processes: it trains its rungs one after the other in one",
                "start it without torchrun; CUDA_VISIBLE_DEVICES chooses the GPU",
            )
        setting, rungs = _prepare(options, ranks)
        check = ShardCheck(setting.base.corpus, local_rank=0, local_world=1)
        try:
            document, passed = _compare(options, setting, rungs, check, quiet=as_json)
        finally:
            check.close()
        if options.html is not None:
            write_page(options.html, compare_page(document), option="--html")
        if as_json:
            with cut_short():
                sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
                sys.stdout.flush()
        return 0 if passed else EXIT_NO


def _compare(
    options: Options, setting: Setting, rungs: Rungs, check: ShardCheck, *, quiet: bool
) -> tuple[Mapping[str, object], bool]:
    progress = console_progress(quiet=False)
    if options.strict:
        steps = total_steps(setting, rungs, replicates=False)
        with progress.stage("compare", unit="steps", total=steps) as advance:
            strict = train_side_by_side(setting, rungs, check=check, advance=advance)
        if not quiet:
            with cut_short():
                print_strict(strict, setting)
        return document_of_strict(strict, setting, rungs), strict.equal
    found = compare(
        setting,
        rungs,
        margin_share=options.margin,
        replicates=options.replicates,
        check=check,
        progress=progress,
    )
    if not quiet:
        with cut_short():
            print_comparison(found)
    return document_of(found), found.passed


def _prepare(options: Options, ranks: Ranks) -> tuple[Setting, Rungs]:
    """What is wrong with the options, the shards or the model is told here, before anything is trained."""
    if options.strict and options.against is not None:
        raise UserError(
            "--strict and --against were both given: another setting has other weights after the first step",
            "leave one of them out",
        )
    if options.strict and options.html is not None:
        raise UserError(
            "--strict and --html were both given: equal weights have no curves to show", "leave one of them out"
        )
    config = options.config
    dtype = "fp64" if options.strict else "bf16" if ranks.device.type == "cuda" else "fp32"
    if config.dtype == "auto" or options.strict:
        config = dataclasses.replace(config, dtype=dtype)  # type: ignore[arg-type]  # one of the words of Dtype
    if options.strict and config.kernels == "fused":
        raise UserError(
            "--strict and --kernels fused were both given: fused kernels know no float64", "leave one of them out"
        )
    if options.strict:
        config = dataclasses.replace(config, kernels="reference")
    setting = make_setting(config, seeds=options.seeds, most_held_out=options.most_held_out, ranks=ranks)
    check_source(setting.base.model, init=config.init)
    resolve("attention", config.kernels, ranks.device)
    config = setting.base.config
    against, idle = (None, ()) if options.against is None else read_against(options.against, config)
    rungs = ladder(config, against)
    _tell(setting, rungs, [*check_tokenizer(setting.base, fetch=True), *_idle(options, idle)])
    return setting, rungs


def _idle(options: Options, names: tuple[str, ...]) -> list[tuple[str, str]]:
    if not names:
        return []
    return [("note", f"--against {options.against}: {', '.join(names)} have no part in a comparison and are left out")]


def _tell(setting: Setting, rungs: Rungs, notes: list[tuple[str, str]]) -> None:
    """On standard error: what will be done."""
    base = setting.base
    lines = [
        (
            "model",
            f"{base.model} ({base.config.init}), computing in {base.config.dtype} on {setting.ranks.device.type}",
        ),
        (
            "data",
            f"{base.corpus.name}: {_counted(setting.steps, 'step')} of {_counted(base.config.rows_per_step, 'row')} of {base.corpus.capacity:,} slots, "
            f"seed{'s' if len(setting.seeds) > 1 else ''} {', '.join(map(str, setting.seeds))}",
        ),
        ("rungs", ", ".join(rung.name for rung, _ in rungs)),
        (
            "eval",
            f"{len(setting.held_out):,} of {setting.held_out_of:,} examples of {setting.held_out_from}, each alone and unpacked",
        ),
        *notes,
    ]
    for label, text in lines:
        print(f"{label:<7} {printable(text)}", file=sys.stderr, flush=True)


def _counted(number: int, one: str) -> str:
    return f"{number:,} {one if number == 1 else one + 's'}"
