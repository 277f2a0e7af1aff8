"""SVG, element by element: whatever is given as an attribute or a text is escaped.

>>> str(element("text", "a < b", x="5%", class_="tick"))
'<text x="5%" class="tick">a &lt; b</text>'
"""

from __future__ import annotations

from markupsafe import Markup, escape

from packer.console import printable

Attribute = str | int | float | None


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """An element; a child that is no Markup is text. class_ is class, view_box is viewBox, other underscores are hyphens; None leaves one out."""
    written = Markup().join(
        Markup(' {}="{}"').format(_name(key), _value(value)) for key, value in attributes.items() if value is not None
    )
    inner = Markup().join(child if isinstance(child, Markup) else text(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, inner)


def text(value: str) -> Markup:
    """Text of any origin as HTML: escaped, and its control and format characters written out."""
    return escape(printable(value))


def percent(share: float) -> str:
    """A share (0 to 1) as a place in percent, short."""
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def chart(*children: str, height: int, label: str) -> Markup:
    """The picture itself, as wide as its column and `height` CSS pixels high. label: what a screen reader says instead."""
    return element(
        "svg", *children, class_="chart", width="100%", height=height, role="img", aria_label=label, focusable="false"
    )


def hatch(key: str) -> Markup:
    """The pattern of padding and of waiting, to be used as fill="url(#key)". key: once a page."""
    line = element("line", x1=0, y1=0, x2=0, y2=6, class_="hatch-line")
    return element(
        "defs",
        element(
            "pattern",
            element("rect", width=6, height=6, class_="hatch-ground"),
            line,
            id=key,
            patternUnits="userSpaceOnUse",
            width=6,
            height=6,
            patternTransform="rotate(45)",
        ),
    )


def _name(key: str) -> str:
    camel = {"class_": "class", "view_box": "viewBox", "preserve_aspect_ratio": "preserveAspectRatio"}
    return camel.get(key, key.replace("_", "-"))


def _value(value: Attribute) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))
