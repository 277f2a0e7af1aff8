"""What a person reads from `packer stats`: tables and a histogram of 80 columns, readable without colour and in a pipe."""

from __future__ import annotations

from itertools import pairwise

from rich.console import Console
from rich.text import Text

from packer.distributions import Histogram
from packer.report import print_ledger
from packer.savings import BASELINES
from packer.stats import RECIPE_EXAMPLES, Stats
from packer.terminal import new_console, new_table

_BAR_COLUMNS = 36
_MOST_LINES = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_stats(stats: Stats) -> None:
    """Ledger, lengths, rows, padding saved, what it means for a recipe, waiting of ranks, bytes."""
    console = new_console()
    print_ledger(console, stats.manifest)
    _lengths(console, stats)
    _splits(console, stats)
    _baselines(console, stats)
    _recipe(console, stats)
    _waiting(console, stats)
    store = f"; token store {stats.token_store_bytes / 1e6:,.1f} MB" if stats.token_store_bytes else ""
    console.print(Text(f"Disk: {stats.bytes_per_token:.2f} bytes a token in shards{store}."))


def _lengths(console: Console, stats: Stats) -> None:
    """A line a bin, or an octave where there are many, with the percentiles named in the line that holds them."""
    spread, counted = stats.splits["train"].length, stats.distributions["train"].length_log
    if len(counted.counts) > _MOST_LINES:
        counted = octaves(counted)
    marks = {"p50": spread.p50, "p90": spread.p90, "p99": spread.p99, "longest": spread.max}
    table = new_table("Lengths of examples (train)", "tokens", "examples", "", "")
    for column in table.columns[2:]:
        column.justify = "left"
    top = max(counted.counts, default=0)
    for (low, high), count in zip(pairwise(counted.edges), counted.counts, strict=True):
        here = ", ".join(name for name, value in marks.items() if low <= value < high)
        table.add_row(f"{low:,} to {high - 1:,}" if high - low > 1 else f"{low:,}", f"{count:,}", bar(count, top), here)
    console.print(table)
    console.print(Text(", ".join(f"{name} {value:,}" for name, value in marks.items()) + " tokens"))
    console.print()


def octaves(counted: Histogram) -> Histogram:
    """Bins of two to an octave put together, so that edges are powers of two but for the first and the last."""
    edges, counts = list(counted.edges[:1]), []
    running = 0
    for edge, count in zip(counted.edges[1:], counted.counts, strict=True):
        running += count
        if edge & (edge - 1) == 0 or edge == counted.edges[-1]:
            edges.append(edge)
            counts.append(running)
            running = 0
    return Histogram(edges=tuple(edges), counts=tuple(counts))


def bar(count: int, top: int, *, columns: int = _BAR_COLUMNS) -> str:
    """A bar of text to an eighth of a column; what is not nothing is seen.

    >>> bar(3, 8, columns=4), bar(0, 8), bar(1, 1000)
    ('█▌', '', '▏')
    """
    eighths = max(round(8 * columns * count / top), 1) if count else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _splits(console: Console, stats: Stats) -> None:
    table = new_table("Rows", "", *stats.splits)
    columns = list(stats.splits.values())
    for label, cells in (
        ("rows", [f"{split.rows:,} of {split.capacity:,} slots" for split in columns]),
        ("density (tokens / slots)", [f"{split.density:.3%}" for split in columns]),
        (
            "above the lower bound",
            [f"{split.rows - split.lower_bound_rows:,} of {split.lower_bound_rows:,}" for split in columns],
        ),
        ("examples", [f"{split.examples:,}" for split in columns]),
        ("tokens", [f"{split.tokens:,}" for split in columns]),
        (
            "supervised tokens",
            [
                f"{split.supervised_tokens:,} ({split.supervised_tokens / max(split.tokens, 1):.1%})"
                for split in columns
            ],
        ),
        ("pad tokens", [f"{split.pad_tokens:,}" for split in columns]),
        (
            "segments a row: mean/max/S",
            [f"{s.segments_per_row.mean:.1f}/{s.segments_per_row.max}/{s.max_segments}" for s in columns],
        ),
        ("tokens an example: mean", [f"{split.length.mean:,.0f}" for split in columns]),
        (
            "  p50/p90/p99/max",
            [f"{s.length.p50}/{s.length.p90}/{s.length.p99}/{s.length.max}" for s in columns],
        ),
    ):
        table.add_row(label, *cells)
    console.print(table)
    for name, split in stats.splits.items():
        if split.loss_weights is not None:
            console.print(Text(f"Weights of targets in the loss ({name}): {split.loss_weights}"))
    console.print()


def _baselines(console: Console, stats: Stats) -> None:
    train = stats.splits["train"]
    table = new_table("Padding saved (train)", "padded batches instead", "batches", "slots", "padding", "fewer slots")
    for name, baseline in stats.baselines.items():
        saving = stats.savings[name].fewer_slots
        table.add_row(
            BASELINES[name],
            f"{baseline.batches:,}",
            f"{baseline.slots:,}",
            f"{baseline.pad_fraction:.1%}",
            f"{saving:.1%}",
        )
    slots = train.rows * train.capacity
    table.add_row("packed rows", f"{train.rows:,}", f"{slots:,}", f"{1 - train.density:.1%}", "")
    console.print(table)
    console.print()


def _recipe(console: Console, stats: Stats) -> None:
    """A recipe of 128 examples a step, padded and packed."""
    recipe, train, fours = stats.recipe, stats.splits["train"], stats.baselines["rows_4"]
    rows = recipe.rows_for_128_examples
    padded_slots = RECIPE_EXAMPLES * fours.slots / train.examples
    table = new_table(f"Recipe: {RECIPE_EXAMPLES} examples a step", "", "padded, 4 a batch", "packed")
    for label, padded, packed in (
        ("batches or rows a step", f"{RECIPE_EXAMPLES // 4:,}", f"{rows:,}"),
        ("examples a step, mean", f"{RECIPE_EXAMPLES:,}", f"{rows * recipe.examples_per_row:,.1f}"),
        ("slots a step, mean", f"{padded_slots:,.0f}", f"{rows * train.capacity:,}"),
        ("steps an epoch", f"{recipe.padded_steps_per_epoch:,}", f"{recipe.steps_per_epoch:,}"),
    ):
        table.add_row(label, padded, packed)
    console.print(table)
    console.print(
        Text(
            f"A row holds {recipe.examples_per_row:.1f} examples: trainer run --rows-per-step {rows} has about that batch."
        )
    )
    console.print()


def _waiting(console: Console, stats: Stats) -> None:
    """Of ranks for each other by --balance, what windows change about the steps, and whether neighbouring rows are alike."""
    waiting = stats.waiting
    table = new_table(
        f"Waiting of {waiting.ranks} ranks, {waiting.rows_per_step} rows a step", "", "batch", "window", "off"
    )
    for label, found in (
        ("full attention in every layer", waiting.every_layer),
        ("in one layer of four", waiting.one_layer_in_four),
    ):
        table.add_row(label, f"{found.batch:.1%}", f"{found.window:.1%}", f"{found.off:.1%}")
    random, window = waiting.make_up.random, waiting.make_up.window
    for label, before, after in (
        ("between steps, of the variance of attention", random.attention, window.attention),
        ("between steps, of the variance of targets", random.targets, window.targets),
    ):
        table.add_row(label, f"{before:.1%}", f"{after:.1%}", f"{before:.1%}")
    console.print(table)
    console.print(Text(f"Cost of a row: {waiting.cost_model}. {waiting.steps:,} steps simulated."))
    order = stats.order
    console.print(
        Text(
            f"Order of rows: mean length of a row's examples against its place {order.length_rank_correlation:+.3f} (rank correlation), "
            f"against the next row's {order.length_autocorrelation:+.3f}; 0 is no order."
        )
    )
    console.print()
