"""Charts of the page of `packer stats --html` about lengths, rows and ranks, each with the table that says the same.

lengths(stats)      # Markup: a linear and a logarithmic histogram to choose between, and percentiles
"""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from packer.distributions import Histogram
from packer.html.axes import plural, share
from packer.html.charts import Bar, Mark, Part, bars, histogram, lanes
from packer.html.parts import View, figure, legend, table, views
from packer.stats import SplitStats, Stats

BALANCES = {
    "off": "off (dealt at random)",
    "batch": "batch (by cost within a step)",
    "window": "window (by cost within 16 steps)",
}


def lengths(stats: Stats) -> Markup:
    """The histogram of the train split, on a linear and on a logarithmic scale, with percentiles."""
    train, spread = stats.splits["train"].length, stats.distributions["train"]
    marks = [
        Mark(value=value, label=f"{name} {value:,}")
        for name, value in (("p50", train.p50), ("p90", train.p90), ("p99", train.p99))
    ]
    choices = []
    for name, counted, log in (("linear", spread.length, False), ("logarithmic", spread.length_log, True)):
        label = f"Histogram of tokens an example, {name} scale: half have at most {train.p50:,}, 99% at most {train.p99:,}, the longest has {train.max:,}"
        choices.append(
            View(
                label=name,
                body=figure(
                    histogram(
                        counted.edges, counted.counts, label=label, unit="tokens", of="examples", log=log, marks=marks
                    ),
                    title="Examples by their length in tokens",
                    behind=binned(counted, "tokens", "examples", f"Examples by length, bins of the {name} scale"),
                ),
            )
        )
    columns = list(stats.splits.values())
    rows = [
        ["mean", *(f"{split.length.mean:,.1f}" for split in columns)],
        *(
            [name, *(f"{getattr(split.length, key):,}" for split in columns)]
            for name, key in (("half are at most (p50)", "p50"), ("p90", "p90"), ("p99", "p99"), ("longest", "max"))
        ),
    ]
    return Markup("{}{}").format(
        views(*choices, key="length-scale", legend="Scale"),
        table(["", *stats.splits], rows, caption="Tokens an example"),
    )


def fill(stats: Stats) -> Markup:
    """How full the rows of the train split are."""
    counted, rows = stats.distributions["train"].fill, stats.splits["train"].rows
    names = [
        "under 50% full",
        "50 to 75%",
        "75 to 90%",
        "90 to 95%",
        "95 to 99%",
        "99%, not quite full",
        "full to the last slot",
    ]
    pairs = list(zip(names, counted.counts, strict=True))[::-1]
    return figure(
        bars(
            [Bar(label=name, parts=(Part(size=count, style="packed"),), value=f"{count:,}") for name, count in pairs],
            end=max(rows, 1),
            label=f"Rows by how full they are: {counted.counts[-1]:,} of {rows:,} to the last slot",
            thick=10,
        ),
        title="Rows by how full they are",
        behind=table(
            ["", "rows", "of all"],
            [[name, f"{count:,}", share(count / max(rows, 1))] for name, count in pairs],
            caption="Rows of the train split by how full they are",
        ),
    )


def segments(stats: Stats) -> Markup:
    """Segments a row in the train split."""
    counted, train = stats.distributions["train"].segments, stats.splits["train"]
    return figure(
        histogram(
            counted.edges,
            counted.counts,
            label=f"Rows by their number of segments: {train.segments_per_row.mean:.1f} on average, at most {train.segments_per_row.max}",
            unit="segments",
            of="rows",
        ),
        title="Rows by their number of segments",
        note=f"A pad tail counts as a segment. The shards have room for {train.max_segments} a row.",
        behind=binned(counted, "segments", "rows", "Rows of the train split by segments"),
    )


def waiting(stats: Stats) -> Markup:
    """What ranks work while the slowest does, for each way of dealing rows."""
    found = stats.waiting
    shares: Mapping[str, float] = {name: getattr(found.every_layer, name) for name in BALANCES}
    choices = []
    for name, label in BALANCES.items():
        work = getattr(found.work, name)
        choices.append(
            View(
                label=name,
                body=figure(
                    lanes(
                        [
                            (
                                Part(size=size, style="packed", title=f"works {share(size)}"),
                                Part(size=1 - size, style="wait", title=f"waits {share(1 - size)}"),
                            )
                            for size in work
                        ],
                        end=1,
                        label=f"{label}: {share(shares[name])} of the ranks' time is waiting",
                        thick=9 if len(work) <= 8 else 6,
                    ),
                    title=f"{label}: {share(shares[name])} of the ranks' time is waiting",
                    note="The mean pass: a line a rank"
                    + (f" (the means of {len(work)} groups)" if len(work) < found.ranks else "")
                    + ", the slowest first; it is as wide as the slowest works.",
                    behind=table(
                        ["rank, slowest first", "works", "waits"],
                        [[str(place + 1), share(size), share(1 - size)] for place, size in enumerate(work)],
                        caption=f"Work of ranks, {label}",
                    ),
                ),
            )
        )
    rows = [
        [label, *(share(getattr(one, name)) for name in BALANCES)]
        for label, one in (
            ("full attention in every layer", found.every_layer),
            ("full attention in one layer of four", found.one_layer_in_four),
        )
    ]
    return Markup("{}{}{}").format(
        legend(("packed", "works"), ("wait", "waits for the slowest")),
        views(*choices, key="balance", legend="--balance"),
        table(
            ["share of the ranks' time spent waiting", *BALANCES],
            rows,
            caption=f"{plural(found.ranks, 'rank')}, {plural(found.rows_per_step, 'row')} a step, {plural(found.steps, 'step')} simulated",
        ),
    )


def binned(counted: Histogram, unit: str, of: str, caption: str) -> Markup:
    """The bins of a histogram that hold anything."""
    return table(
        [unit, of],
        [
            [f"{low:,}" if high - low == 1 else f"{low:,} to {high - 1:,}", f"{count:,}"]
            for low, high, count in zip(counted.edges, counted.edges[1:], counted.counts, strict=False)
            if count
        ],
        caption=caption,
    )


def above_bound(split: SplitStats) -> str:
    """Rows above the fewest possible."""
    return f"{split.rows - split.lower_bound_rows:,} of {split.lower_bound_rows:,}"
