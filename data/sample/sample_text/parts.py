"""The shapes of text that every topic shares: lists, tables, fenced code, questions about a text that the user pastes.

Why: markdown made in one place is right everywhere, and the exchanges that start from a pasted text keep the user's
share of the words near that of real chats (without them the assistant writes nine words in ten).

Example: `table(("a", "b"), [("1", "2")])` gives three lines: `| a | b |`, `| --- | --- |`, `| 1 | 2 |`.
"""

import json
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

Exchange = tuple[str, str]  # what the user says, what the assistant answers


class Material(NamedTuple):
    """All exchanges about one subject. `asks[0]` can open a chat; the others may lean on what it named."""

    subject: str
    asks: list[Exchange]
    reads: list[Exchange]  # the user pastes a text; each stands alone


def numbered(items: Iterable[str]) -> str:
    """One line an item, counted from 1."""
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def bulleted(items: Iterable[str]) -> str:
    """One line an item, with a dash."""
    return "\n".join(f"- {item}" for item in items)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table; every row has as many cells as `head`."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fenced(language: str, code: str) -> str:
    """A markdown code block."""
    return f"```{language}\n{code.strip(chr(10))}\n```"


def as_json(value: object) -> str:
    """JSON as people paste it: indented, accents kept."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def a(noun: str) -> str:
    """The noun with its indefinite article."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def number(value: float, digits: int = 2) -> str:
    """A rounded number without needless zeros: 2.50 is `2.5`, 3.0 is `3`."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(minutes: int) -> str:
    """Minutes after midnight as `07:05`; hours past midnight wrap."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def reading(rng: Random, subject: str, paragraphs: Sequence[str], facts: Sequence[tuple[str, str]]) -> list[Exchange]:
    """Exchanges about a pasted text. `facts`: (what it is called, its value) pairs that the text really contains."""
    text = "\n\n".join(paragraphs)
    firsts = [paragraph.split(". ")[0].rstrip(".") + "." for paragraph in paragraphs]
    name, value = rng.choice(list(facts))
    chosen = list(facts)[:4]
    source = rng.choice(
        ["my notes", "a page from our club's newsletter", "a draft for our school paper", "an old leaflet"]
    )
    return [
        (
            rng.choice(
                [
                    f"Summarise the following text in {len(firsts)} bullet points.\n\n{text}",
                    (
                        f"Here is {source} about {subject}. Please boil it down to one line a "
                        f"paragraph.\n\n---\n{text}\n---"
                    ),
                ]
            ),
            bulleted(firsts),
        ),
        (
            f"Complete the last line from what the text says.\n\n{text}\n\n{name}: …",
            f"{name}: {value}.",
        ),
        (
            f"Read this and pull out the key data as JSON, nothing else.\n\n{text}",
            fenced("json", as_json({key.lower(): found for key, found in chosen})),
        ),
        (
            f"Make a table of the facts in {source}:\n\n{text}",
            f"These are the facts that the text gives about {subject}:\n\n{table(('What', 'Says the text'), chosen)}",
        ),
        (
            "I have to read this aloud in one breath. What is the shortest version?\n\n> "
            + text.replace("\n\n", "\n>\n> "),
            firsts[0],
        ),
    ]
