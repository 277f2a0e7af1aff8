"""What a page is put together from: tables, figures with the table behind them, views to choose between, key figures.

    table(["", "rows"], [["train", "46"]], caption="Rows of each split")

Everything is rendered by jinja with autoescape; a str is text, only Markup is markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup

from packer.console import printable

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A key figure: the number, what it counts, and one line that puts it in its place."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One of several pictures of the same thing."""

    label: str
    body: Markup


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Templates of this folder, everything escaped, an unknown name an error. Control characters in text are written out."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("packer.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )


def printable_lines(value: str) -> str:
    """`printable`, but a line end stays one: what the templates themselves are made of."""
    return "\n".join(map(printable, value.split("\n")))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str | Markup]], *, caption: str, foot: Sequence[str | Markup] = ()
) -> Markup:
    """Words in the first column, numbers in the others. caption: what the table holds; it is its name for a screen reader too."""
    return _macro("table", head=head, rows=rows, caption=caption, foot=foot)


def figure(body: Markup, *, title: str, note: str = "", behind: Markup = Markup("")) -> Markup:  # noqa: B008  # immutable
    """A chart with its title, a line below it, and the table that says the same (`behind`), folded up."""
    return _macro("figure", body=body, title=title, note=note, behind=behind)


def views(*choices: View, key: str, legend: str) -> Markup:
    """One of several charts at a time, chosen by radio buttons without a script. key: unique on the page."""
    return _macro("views", choices=choices, key=key, legend=legend)


def cards(*figures: Card) -> Markup:
    """The key figures in a row."""
    return _macro("cards", figures=figures)


def legend(*entries: tuple[str, str]) -> Markup:
    """(class of the swatch, what it means), in a line."""
    return _macro("legend", entries=entries)


def facts(pairs: Mapping[str, str | Markup]) -> Markup:
    """Names and values, as a list of descriptions."""
    return _macro("facts", pairs=pairs)


def paragraph(text: str) -> Markup:
    """Plain text as a paragraph."""
    return Markup("<p>{}</p>").format(printable(text))


def _macro(name: str, **arguments: object) -> Markup:
    return Markup(getattr(environment().get_template("parts.html.jinja").module, name)(**arguments))
