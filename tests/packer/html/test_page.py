"""What holds of every page: it names what may run, and no text in it is more than text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from packer.html.axes import share, short, ticks
from packer.html.page import Page, Section, inert_json, render
from packer.html.parts import Card, cards, facts, figure, legend, table
from packer.html.svg import element, percent

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}${1}",
    '"\' onload="alert(1)',
    "<!-- --><svg/onload=alert(1)>",
    "\u202egnp.exe\u2066\u0000\x1b[31m",
    "&lt;b&gt; & co",
]


class Reader(HTMLParser):
    """Elements with their attributes, and texts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page_of(text: str) -> str:
    body = Markup("{}{}{}{}{}").format(
        table([text, text], [[text, text]], caption=text, foot=[text, text]),
        figure(Markup(""), title=text, note=text),
        cards(Card(value=text, label=text, note=text)),
        legend(("packed", text)),
        facts({text: text}),
    ) + element("svg", element("title", text), element("text", text), aria_label=text)
    section = Section(key="one", title=text, short=text, lead=text, body=body)
    return render(
        Page(title=text, lead=text, sections=[section], foot=text, data={"rows-data": [text]}, scripts=("blocks.js",))
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_element_and_no_attribute(text: str) -> None:
    plain, hostile = Reader(page_of("plain")), Reader(page_of(text))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert [sorted(attributes) for _, attributes in hostile.elements] == [
        sorted(attributes) for _, attributes in plain.elements
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_data_comes_back_as_it_was(text: str) -> None:
    found = re.search(r'<script type="application/json" id="rows-data">(.*?)</script>', page_of(text), re.DOTALL)
    assert found
    assert json.loads(found.group(1)) == [text]


def test_characters_that_are_not_seen_are_written_out_in_the_page_itself() -> None:
    text = "".join(Reader(page_of("\u202egnp\x1b[31m")).texts)
    assert "\\u202egnp\\x1b[31m" in text
    assert not set("\u202e\x1b") & set(text)


@given(st.text())
def test_inert_json_is_json_and_holds_no_markup(text: str) -> None:
    written = inert_json({"a": text})
    assert json.loads(written) == {"a": text}
    assert not set("<>&\u2028\u2029") & set(written)
    written.encode()


def test_the_policy_names_by_hash_exactly_what_the_page_holds() -> None:
    html = page_of("plain")
    policy = next(
        attributes["content"]
        for tag, attributes in Reader(html).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inside]
        assert inside
        assert rules[rule] == " ".join(f"'sha256-{one}'" for one in hashes)
    assert "unsafe" not in policy


def test_the_page_names_no_address_and_no_inline_style_or_handler() -> None:
    reader = Reader(page_of("plain"))
    for tag, attributes in reader.elements:
        assert tag not in ("link", "iframe", "object", "base", "img")
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith("#")


@pytest.mark.parametrize("end", [1, 3, 7.5, 46, 100, 1730, 1e6])
def test_ticks_are_round_and_few(end: float) -> None:
    found = ticks(end, most=5)
    assert 2 <= len(found) <= 6
    assert found[0] == 0
    assert found[-1] <= end * (1 + 1e-9)
    assert str(f"{found[1]:.3e}")[0] in "125"


def test_numbers_are_short_and_shares_never_round_to_all_or_nothing() -> None:
    assert [short(value) for value in (0, 950, 1000, 12_500, 2e6, 0.25)] == ["0", "950", "1k", "12.5k", "2M", "0.25"]
    assert share(0.99999) == "99.999%"
    assert share(0.9999999) == "over 99.9999%"
    assert share(0) == "0%"
    assert percent(1 / 3) == "33.333%"
