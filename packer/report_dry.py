"""What a person reads of `packer build --dry-run`, on stderr: stdout has the options as a file and nothing else.

print_foresight(foresee(config), config, "data/packed")
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from packer.config import BuildConfig
from packer.console import printable
from packer.foresee import Estimate, Foresight
from packer.manifest import MANIFEST_NAME
from packer.report import note_lines
from packer.report_inspect import print_example
from packer.terminal import new_console, new_table

# Of many files; the rest is a number.
_SOURCES_SHOWN = 12


def print_foresight(seen: Foresight, config: BuildConfig, out: str) -> None:
    """Sources, where it would go, the probe conversation with its targets marked, and the estimate with what it rests on."""
    console = new_console(stderr=True)
    _sources(console, seen)
    _line(console, f"tokenizer: {seen.tokenizer}, {seen.vocabulary:,} ids; encoder: {seen.encoder}")
    _line(console, f"out: {out}, {_place(config, out)}")
    console.print()
    _line(
        console,
        f"A plain conversation as this template writes it and --train-on {config.train_on} learns it:",
        style="bold",
    )
    print_example(console, seen.probe, seen.controls)
    console.print()
    _sample(console, seen)
    if seen.estimate is None:
        _line(console, f"estimate: none; {seen.unknown}")
    else:
        _estimate(console, seen, seen.estimate, config)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text), style=style), soft_wrap=True)


def _sources(console: Console, seen: Foresight) -> None:
    table = new_table("Would read", "", "split", "weight", "on disk", "rows")
    for one in seen.sources[:_SOURCES_SHOWN]:
        table.add_row(
            f"{printable(one.name)}{' (eval)' if one.is_eval else ''}{' (on the hub)' if one.on_hub else ''}",
            printable(one.split),
            str(one.weight),
            "not known yet" if one.bytes is None else _bytes(one.bytes),
            "not known yet" if one.rows is None else f"{one.rows:,}",
        )
    console.print(table)
    if (more := len(seen.sources) - _SOURCES_SHOWN) > 0:
        rest = seen.sources[_SOURCES_SHOWN:]
        _line(console, f"and {more:,} more, {_bytes(sum(one.bytes or 0 for one in rest))}")
    for line in (*seen.not_read, *seen.remarks):
        _line(console, line)
    console.print()


def _place(config: BuildConfig, out: str) -> str:
    if "://" in out:
        return "built in the cache first, then put there, the manifest last"
    if (config.out / MANIFEST_NAME).is_file():
        return "which holds a build: the same one is nothing to do, another wants --force"
    return (
        "which has files of a build that did not finish: what is still good is kept"
        if config.out.is_dir()
        else "a new folder"
    )


def _sample(console: Console, seen: Foresight) -> None:
    sample = seen.sampled
    left = ", ".join(f"{reason} {count:,}" for reason, count in sorted(sample.left_out.items()))
    what = "all" if sample.is_all else "the first"
    _line(
        console,
        f"encoded: {what} {sample.rows:,} rows; {sum(sample.left_out.values()):,} of them would be left out{f' ({left})' if left else ''}",
    )
    for line in note_lines(sample.notes):
        _line(console, line)


def _estimate(console: Console, seen: Foresight, estimate: Estimate, config: BuildConfig) -> None:
    sample = seen.sampled
    about = "" if estimate.exact else "about "
    table = new_table(
        "Estimate" if sample.is_all else "Estimate, if the rest is like the rows that were encoded", "", ""
    )
    table.show_header = False
    store = f" + token store {_bytes(estimate.store_bytes)}" if config.token_store else ""
    seconds = _seconds(estimate.seconds)
    for label, value in (
        ("conversations to read", f"{about}{_round(estimate.conversations, exact=estimate.exact)}"),
        ("tokens in rows", f"{about}{_round(estimate.tokens, exact=estimate.exact)}"),
        ("of which targets", f"{about}{sample.supervised / sample.tokens:.0%}"),
        (f"rows of {config.capacity:,} slots", f"{about}{_round(estimate.rows, exact=False)} or some more"),
        ("on disk", f"about {_bytes(estimate.shard_bytes)}{store}"),
        ("tokenizing", f"about {seconds} of one core, of {config.worker_count}; writing comes on top"),
    ):
        table.add_row(label, value)
    console.print(table)


def _round(number: int, *, exact: bool) -> str:
    """Three digits: a sample gives no more."""
    if exact or number < 1000:
        return f"{number:,}"
    unit = 10 ** (len(str(number)) - 3)
    return f"{round(number / unit) * unit:,}"


def _bytes(number: int) -> str:
    return next(
        (f"{number / size:,.1f} {unit}" for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if number >= size),
        f"{number} bytes",
    )  # fmt: skip


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
