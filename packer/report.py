"""What a person reads at the end of `packer build` and from `packer stats`: tables by rich, readable without colour and in a pipe."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.text import Text

from packer.console import printable
from packer.manifest import Manifest
from packer.savings import BASELINES
from packer.stats import Stats
from packer.terminal import new_console, new_table


def print_build(manifest: Manifest, place: str | Path) -> None:
    """The ledger, which encoder was used and why, and where the rows lie."""
    console = new_console()
    _ledger(console, manifest)
    if (path := Path(place) / "build-log.json").is_file():
        log = json.loads(path.read_text(encoding="utf-8"))
        console.print(Text(f"encoder: {log['encoder']} ({log['encoder_reason']})"))
    for name, split in sorted(manifest.splits.items(), reverse=True):
        slots = split.rows * manifest.capacity
        console.print(
            Text(
                f"{name}: {split.rows:,} rows of {manifest.capacity:,} slots, {split.tokens / max(slots, 1):.2%} full, "
                f"{split.rows - split.lower_bound_rows} above the lower bound of {split.lower_bound_rows:,}"
            )
        )
    console.print(Text(f"{printable(str(place))}: see `packer stats {printable(str(place))}`"))


def print_stats(stats: Stats) -> None:
    """Ledger, splits, padding saved, and what it means for a recipe."""
    console = new_console()
    _ledger(console, stats.manifest)
    _splits(console, stats)
    _baselines(console, stats)
    _waiting(console, stats)
    recipe, train = stats.recipe, stats.splits["train"]
    console.print(
        Text(
            f"Recipe: a row holds {recipe.examples_per_row:.1f} examples. For 128 examples a step take {recipe.rows_for_128_examples:,} rows a step: "
            f"{recipe.steps_per_epoch:,} steps an epoch ({-(-train.examples // 128):,} when padded)."
        )
    )
    store = f"; token store {stats.token_store_bytes / 1e6:,.1f} MB" if stats.token_store_bytes else ""
    console.print(Text(f"Disk: {stats.bytes_per_token:.2f} bytes a token in shards{store}."))


def _ledger(console: Console, manifest: Manifest) -> None:
    conversations, tokens = manifest.ledger.conversations, manifest.ledger.tokens
    table = new_table("Ledger", "", "conversations", "tokens")
    table.add_row("read", f"{conversations['read']:,}", f"{tokens['encoded']:,}")
    table.add_row("in rows", f"{conversations['in']:,}", f"{tokens['in_rows']:,}")
    for reason in sorted(set(conversations) | set(tokens) - {"encoded", "in_rows"}):
        if reason not in ("read", "in", "encoded", "in_rows"):
            table.add_row(
                f"left out: {printable(reason)}", f"{conversations.get(reason, 0):,}", f"{tokens.get(reason, 0):,}"
            )
    console.print(table)
    for role, spelled in sorted(manifest.ledger.control_tokens.items()):
        found = ", ".join(f"{token} {count:,}" for token, count in sorted(spelled.items()))
        console.print(
            Text(f"control tokens spelled by {role} ({manifest.options['control_tokens']}): {printable(found)}")
        )
    console.print()


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
