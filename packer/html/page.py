"""The shell of a page: head, header, sections, data and scripts, in one file that fetches nothing.

    page = Page(title="Packed rows", lead="…", sections=[Section(key="rows", title="Rows", body=table(…))], foot="…")
    html = render(page)

A Content-Security-Policy of default-src 'none' lets nothing run and nothing be loaded but the style sheet and the scripts that are named in it by their
SHA-256: what a data set might smuggle in is neither. Data lies in <script type="application/json">, with <, > and & written as escapes of JSON, so that
no text can end the element; scripts only ever make text nodes of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from packer.errors import UserError
from packer.files import write_text
from packer.html.parts import environment
from packer.html.svg import element, hatch

# What could end or change the meaning of a script element, what turns the order of the source as an editor shows it, and lone halves of a character.
_UNSAFE = re.compile("[<>&\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """key: its id. short: its name in the navigation, where that is not its title."""

    key: str
    title: str
    body: Markup
    lead: str = ""
    short: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """data: what scripts read, by the id of its element. scripts: names of files in `static`, run in order."""

    title: str
    lead: str
    sections: Sequence[Section]
    foot: str
    facts: Markup = field(default_factory=Markup)
    data: Mapping[str, object] = field(default_factory=dict)
    scripts: Sequence[str] = ()


def render(page: Page) -> str:
    """The page as one HTML document."""
    style = _static("style.css")
    scripts = [_static(name) for name in page.scripts]
    policy = "; ".join(
        [
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {' '.join(map(_hash, scripts)) or chr(39) + 'none' + chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            page=page,
            policy=policy,
            defs=element(
                "svg", hatch("hatch"), class_="hidden", width=0, height=0, aria_hidden="true", focusable="false"
            ),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            data={key: Markup(inert_json(value)) for key, value in page.data.items()},
        )
    )


def write_page(path: Path, html: str, *, option: str) -> None:
    """Writes a page whole or not at all; raises UserError where it cannot be written. option: what named the file."""
    try:
        write_text(path, html)
    except OSError as error:
        raise UserError(
            f"{option} {path}: cannot be written ({error.strerror})",
            f"give a file in a folder that is there, {option} page.html",
        ) from None


def inert_json(value: object) -> str:
    """JSON that may stand in a script element, whatever the texts in it."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", written)


def _static(name: str) -> str:
    return (resources.files("packer.html") / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
