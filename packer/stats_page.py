"""The page that `packer stats --html FILE` writes: what went in, what packing saved and what it means, and rows to look at.

    write_text(path, stats_page(measure(folder), take(open_corpus(folder)), name="data/packed"))

Its numbers are those of `packer stats --json`, from the same object.
"""

from __future__ import annotations

from markupsafe import Markup

from packer import __version__
from packer import stats_figures as figures
from packer import stats_slots as slots
from packer.console import printable
from packer.excerpt import Excerpt
from packer.html.axes import plural, share
from packer.html.page import Page, Section, render
from packer.html.parts import Card, cards, environment, facts, paragraph, table
from packer.stats import RECIPE_EXAMPLES, Stats

_MOST_SOURCES = 12
_NAME_CHARACTERS = 120


def stats_page(stats: Stats, excerpt: Excerpt, *, name: str) -> str:
    """One self-contained HTML document of less than 500 KB. name: of the folder, as the command was given it."""
    train = stats.splits["train"]
    page = Page(
        title=f"Packed rows: {_short(name)}",
        lead=f"{plural(train.examples, 'example')}, {plural(train.tokens, 'token')}, in {plural(train.rows, 'row')} of {train.capacity:,} slots each.",
        facts=_cards(stats),
        sections=[
            Section(
                key="packing",
                title="What packing is",
                short="Packing",
                lead="A model is given buffers of one shape. Padded, each example has a line of its own, as long as the longest beside it; the rest of the "
                "line is padding. Packed, examples stand one behind the other until the row is full, and each is computed as if it were alone.",
                body=slots.buffers(excerpt, train.capacity),
            ),
            Section(key="ledger", title="What went in, and what did not", short="Ledger", body=_ledger(stats)),
            Section(key="lengths", title="Lengths of examples", short="Lengths", body=figures.lengths(stats)),
            Section(key="rows", title="Rows", body=_rows(stats)),
            Section(
                key="saved",
                title="Padding saved",
                body=slots.saved(stats),
                lead="The same examples as two-dimensional batches, four ways: in random order, each batch padded to its longest; as many as fit in one row's "
                "slots once padded; the same with examples of like length together; and one example a row.",
            ),
            Section(key="recipe", title="What it means for a recipe", short="Recipe", body=_recipe(stats)),
            Section(
                key="waiting",
                title="Ranks waiting for each other",
                short="Waiting",
                lead="All rows have as many slots, but attention costs more in a row of few long examples. Dealing rows by that cost evens it out.",
                body=Markup("{}{}").format(
                    figures.waiting(stats),
                    paragraph(f"Cost of a row: {stats.waiting.cost_model}."),
                ),
            ),
            Section(
                key="decoded",
                title="Rows, decoded",
                lead=f"{plural(len(excerpt.rows), 'row')} of the train split: the first ones, and those with the most and the fewest tokens, segments and targets. "
                "Of long examples the beginning and the end.",
                body=Markup(environment().get_template("rows.html.jinja").render(rows=excerpt.rows)),
            ),
        ],
        foot=f"packer {__version__}, corpus {stats.manifest.corpus_digest}. The numbers are those of packer stats --json.",
        data={"rows-data": excerpt.rows},
        scripts=("blocks.js", "rows.js"),
    )
    return render(page)


def _cards(stats: Stats) -> Markup:
    train, padded = stats.splits["train"], stats.savings["rows_4"].fewer_slots
    above = train.rows - train.lower_bound_rows
    return cards(
        Card(value=share(train.density), label="of the slots hold a token", note=f"{train.pad_tokens:,} are padding"),
        Card(value=share(padded), label="fewer slots to compute", note="than padded, 4 examples a batch"),
        Card(
            value=f"{above:,}",
            label="rows above the fewest possible",
            note=f"no plan needs fewer than {train.lower_bound_rows:,}",
        ),
        Card(
            value=share(train.supervised_tokens / max(train.tokens, 1)),
            label="of the tokens are targets",
            note=f"{train.supervised_tokens:,} that the model learns to write",
        ),
    )


def _ledger(stats: Stats) -> Markup:
    manifest = stats.manifest
    pairs: dict[str, str | Markup] = {}
    for number, source in enumerate(manifest.sources[:_MOST_SOURCES]):
        weight = f", weight {source.weight}" if source.weight != "1" else ""
        files = f", {len(source.files):,} files" if len(source.files) > 1 else ""
        pairs[f"source {number + 1}" if len(manifest.sources) > 1 else "source"] = (
            f"{_short(source.title)}: {plural(source.conversations, 'conversation')}{files}{_short(weight)}"
        )
    if len(manifest.sources) > _MOST_SOURCES:
        pairs["more sources"] = f"{len(manifest.sources) - _MOST_SOURCES:,}"
    pairs["tokenizer"] = _short(manifest.tokenizer.name)
    pairs["trained on"] = _short(f"{manifest.masking.policy} ({manifest.masking.method})")
    for role, spelled in sorted(manifest.ledger.control_tokens.items())[:_MOST_SOURCES]:
        most = sorted(spelled.items(), key=lambda one: (-one[1], one[0]))
        found = ", ".join(f"{token} {count:,}" for token, count in most[:_MOST_SOURCES])
        more = len(most) - _MOST_SOURCES
        pairs[f"control tokens that {_short(role)} spells"] = _short(found) + (
            f", and {more:,} more" if more > 0 else ""
        )
    return Markup("{}{}").format(slots.ledger(stats), facts(pairs))


def _rows(stats: Stats) -> Markup:
    columns = list(stats.splits.values())
    rows = [
        ["rows", *(f"{one.rows:,}" for one in columns)],
        ["slots a row", *(f"{one.capacity:,}" for one in columns)],
        ["tokens of the slots (density)", *(share(one.density) for one in columns)],
        ["above the lower bound", *(figures.above_bound(one) for one in columns)],
        ["examples", *(f"{one.examples:,}" for one in columns)],
        ["tokens", *(f"{one.tokens:,}" for one in columns)],
        ["targets", *(f"{one.supervised_tokens:,}" for one in columns)],
        ["padding", *(f"{one.pad_tokens:,}" for one in columns)],
        ["segments a row, mean", *(f"{one.segments_per_row.mean:.2f}" for one in columns)],
        ["segments a row, most", *(f"{one.segments_per_row.max:,}" for one in columns)],
    ]
    store = f", and {stats.token_store_bytes / 1e6:,.1f} MB of token store" if stats.token_store_bytes else ""
    return Markup('<div class="side-by-side">{}{}</div>{}{}').format(
        figures.fill(stats),
        figures.segments(stats),
        table(["", *stats.splits], rows, caption="Rows by split"),
        paragraph(f"On disk: {stats.bytes_per_token:.2f} bytes a token in shards{store}."),
    )


def _recipe(stats: Stats) -> Markup:
    recipe, train, fours = stats.recipe, stats.splits["train"], stats.baselines["rows_4"]
    rows = recipe.rows_for_128_examples
    targets = train.supervised_tokens / max(train.examples, 1)
    lines = [
        ["examples a step", f"{RECIPE_EXAMPLES}", f"{rows * recipe.examples_per_row:.1f} on average"],
        ["batches or rows a step", f"{RECIPE_EXAMPLES // 4}", f"{rows:,}"],
        [
            "slots a step",
            f"{RECIPE_EXAMPLES * fours.slots / max(train.examples, 1):,.0f} on average",
            f"{rows * train.capacity:,}",
        ],
        [
            "targets a step, on average",
            f"{RECIPE_EXAMPLES * targets:,.0f}",
            f"{rows * recipe.examples_per_row * targets:,.0f}",
        ],
        ["steps an epoch", f"{recipe.padded_steps_per_epoch:,}", f"{recipe.steps_per_epoch:,}"],
    ]
    return Markup("{}{}").format(
        paragraph(
            f"A row holds {recipe.examples_per_row:.2f} examples on average. A recipe of {RECIPE_EXAMPLES} examples a step has about the batch it had "
            f"with trainer run --rows-per-step {rows}."
        ),
        table(
            ["", "padded, 4 examples a batch", "packed"],
            lines,
            caption=f"A recipe of {RECIPE_EXAMPLES} examples a step",
        ),
    )


def _short(text: str) -> str:
    """Text from elsewhere, at most 120 characters of it."""
    text = printable(text)
    return text if len(text) <= _NAME_CHARACTERS else f"{text[:_NAME_CHARACTERS]}…"
