"""Charts of the page of `packer stats --html` about what becomes of slots and tokens: the buffers themselves, the ledger, the padding saved.

buffers(excerpt, capacity=8192)     # Markup: the same examples padded and packed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from packer.buffers import Batch, Buffers
from packer.console import printable
from packer.excerpt import Excerpt
from packer.html import buffers as drawing
from packer.html.axes import plural, share
from packer.html.charts import Bar, Part, bars
from packer.html.parts import figure, legend, table
from packer.stats import Stats

SHORT_BASELINES = {
    "rows_4": "4 examples a batch",
    "token_budget": "as many as fit in a row's slots",
    "grouped": "the same, grouped by length",
    "longest": "every example to the capacity",
}
_MOST_REASONS = 20
_MOST_TIMES = 3


def buffers(excerpt: Excerpt, capacity: int) -> Markup:
    """The same examples padded and packed, on one scale."""
    shown: Buffers = excerpt.buffers
    packed: tuple[Batch, ...] = tuple((lane,) for lane in shown.packed)
    tints = {block.example: number for number, block in enumerate(b for lane in shown.packed for b in lane.blocks)}
    pictures = []
    for title, batches, one, many in (
        ("Padded: 4 examples a batch", shown.padded, "batch", "batches"),
        ("Packed", packed, "row", "rows"),
    ):
        slots = sum(lane.slots for batch in batches for lane in batch)
        tokens = sum(lane.tokens for batch in batches for lane in batch)
        facts = (
            f"{len(batches)} {one if len(batches) == 1 else many}, {slots:,} slots, {share(1 - tokens / slots)} padding"
        )
        pictures.append(Markup('<p class="buffer-title">{} <span>{}</span></p>').format(title, facts))
        pictures.append(
            drawing.flow(batches, width=capacity, tints=tints, origins=excerpt.origins, label=f"{title}: {facts}")
        )
    rows = len(shown.packed)
    note = (
        f"The {plural(len(tints), 'example')} of the first {f'{rows} rows' if rows > 1 else 'row'} of the split, drawn twice on one scale: as wide as a row of "
        f"{capacity:,} slots."
    )
    if shown.more:
        note += f" The last row is cut: it holds {shown.more:,} examples more."
    said = "Point at a block, or tap it, to find the same example in the other picture."
    return Markup(
        '<figure id="buffers">{}{}<p class="block-said" aria-live="polite">{}</p><p class="note">{}</p></figure>'
    ).format(
        legend(
            ("blocks", "examples, each in one colour"), ("pad", "padding: computed, but nothing is learned from it")
        ),
        Markup().join(pictures),
        said,
        note,
    )


def ledger(stats: Stats) -> Markup:
    """What was read as two bars, and every reason in the table."""
    conversations, tokens = stats.manifest.ledger.conversations, stats.manifest.ledger.tokens
    reasons = sorted(
        (set(conversations) | set(tokens)) - {"read", "in", "encoded", "in_rows"},
        key=lambda reason: (-conversations.get(reason, 0), -tokens.get(reason, 0), reason),
    )
    drawn = [
        _whither("conversations", conversations, reasons, whole="read", kept="in"),
        _whither("tokens", tokens, reasons, whole="encoded", kept="in_rows"),
    ]

    def line(label: str, there: int, tokens_there: int) -> list[str]:
        return [
            label,
            f"{there:,}",
            share(_part(there, conversations["read"])),
            f"{tokens_there:,}",
            share(_part(tokens_there, tokens["encoded"])),
        ]

    rows = [line("in rows", conversations["in"], tokens["in_rows"])]
    rows += [
        line(f"left out: {printable(reason)}", conversations.get(reason, 0), tokens.get(reason, 0))
        for reason in reasons[:_MOST_REASONS]
    ]
    if len(reasons) > _MOST_REASONS:
        rest = reasons[_MOST_REASONS:]
        rows.append(
            line(
                f"left out: {len(rest)} other reasons",
                sum(conversations.get(reason, 0) for reason in rest),
                sum(tokens.get(reason, 0) for reason in rest),
            )
        )
    entries = [("packed", "in rows")] + ([("left", "left out")] if reasons else [])
    return Markup("{}{}{}").format(
        legend(*entries),
        Markup().join(drawn),
        table(
            ["", "conversations", "of read", "tokens", "of encoded"],
            rows,
            caption="The ledger",
            foot=line("read", conversations["read"], tokens["encoded"]),
        ),
    )


def _whither(label: str, counts: Mapping[str, int], reasons: Sequence[str], *, whole: str, kept: str) -> Markup:
    """All that was read as one bar: what is in rows, and what each reason took."""
    parts = [Part(size=counts[kept], style="packed", title=f"in rows: {counts[kept]:,}")]
    parts += [
        Part(size=counts[reason], style="left", title=f"{reason}: {counts[reason]:,}")
        for reason in reasons[:_MOST_REASONS]
        if counts.get(reason)
    ]
    if others := sum(counts.get(reason, 0) for reason in reasons[_MOST_REASONS:]):
        parts.append(Part(size=others, style="left", title=f"other reasons: {others:,}"))
    bar = Bar(
        label=f"{label}: {counts[whole]:,}",
        parts=tuple(parts),
        value=f"{share(_part(counts[kept], counts[whole]))} in rows",
    )
    return bars([bar], end=max(counts[whole], 1), label=f"{label}: {counts[kept]:,} of {counts[whole]:,} in rows")


def saved(stats: Stats) -> Markup:
    """Slots of the packed rows and of the four padded ways, on one scale, tokens and padding apart."""
    train = stats.splits["train"]
    slots = train.rows * train.capacity
    ways = [("packed rows", train.rows, slots, "")]
    ways += [
        (SHORT_BASELINES[name], one.batches, one.slots, share(stats.savings[name].fewer_slots))
        for name, one in stats.baselines.items()
    ]
    # One example a row can take many times as many slots: beside it all else would be a sliver.
    longest, most = ways[-1][2], max(size for _, _, size, _ in ways[:-1])
    drawn_ways, note = ways, ""
    if longest > _MOST_TIMES * most:
        drawn_ways = ways[:-1]
        note = f"{ways[-1][0].capitalize()}: {longest:,} slots, {longest / slots:.1f} times those of the packed rows; too many to draw."
    end = max(size for _, _, size, _ in drawn_ways)
    drawn = bars(
        [
            Bar(
                label=label,
                parts=(
                    Part(
                        size=train.tokens, style="packed" if not fewer else "padded", title=f"{train.tokens:,} tokens"
                    ),
                    Part(size=size - train.tokens, style="wait", title=f"{size - train.tokens:,} slots of padding"),
                ),
                value=f"{size:,}",
            )
            for label, _, size, fewer in drawn_ways
        ],
        end=end,
        label=f"Slots of the same {train.tokens:,} tokens: packed {slots:,}, and padded in four ways",
    )
    rows = [
        [label, f"{batches:,}", f"{size:,}", share(1 - train.tokens / size), fewer]
        for label, batches, size, fewer in ways
    ]
    return Markup("{}{}{}").format(
        legend(("packed", "tokens, packed"), ("padded", "the same tokens, padded"), ("pad", "padding")),
        figure(drawn, title="Slots that have to be computed", note=note),
        table(
            ["", "batches or rows", "slots", "padding", "packed: fewer slots"],
            rows,
            caption="The train split, packed and padded in four ways",
        ),
    )


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
