"""The history of tools: fourteen of them, when and where they appeared and what for.

Why: dates and causes give prose, tables and things to put in order.

Example: `tools(random.Random(4)).asks[0][0]` asks where a tool comes from.
"""

from random import Random
from typing import NamedTuple

from .parts import Material, a, capital, listed, number, numbered, reading, table


class Tool(NamedTuple):
    """A tool, when and where, what it does, how, and what changed by it."""

    name: str
    when: str
    where: str
    use: str
    how: str
    change: str
    year: int  # for putting tools in order; negative before the common era


TOOLS = (
    Tool(
        "potter's wheel",
        "in the fourth millennium BC",
        "in the Near East",
        "shaping round vessels",
        "the clay turns and the hands stand still",
        "one potter could supply a village",
        -3500,
    ),
    Tool(
        "plough",
        "by the fourth millennium BC",
        "in Mesopotamia and Egypt",
        "opening the soil for seed",
        "an animal drags a point or blade through the ground",
        "far larger fields could be sown",
        -3600,
    ),
    Tool(
        "sundial",
        "around 1500 BC",
        "in Egypt",
        "telling the hours of the day",
        "the shadow of a rod wanders over a scale",
        "the day could be divided and shared",
        -1500,
    ),
    Tool(
        "pole lathe",
        "in antiquity",
        "around the Mediterranean",
        "turning bowls and chair legs",
        "a cord spins the wood back and forth while a blade cuts",
        "round things became cheap",
        -1300,
    ),
    Tool(
        "windmill",
        "in the ninth century",
        "in Persia",
        "grinding grain",
        "sails catch the wind and turn a stone",
        "grain could be ground where no river ran",
        850,
    ),
    Tool(
        "magnetic compass",
        "in the eleventh century",
        "in China",
        "finding the way at sea",
        "a magnetised needle lines up with the Earth's field",
        "ships dared to leave the coast under cloud",
        1080,
    ),
    Tool(
        "spinning wheel",
        "around the eleventh century",
        "in Asia",
        "making thread",
        "a large wheel drives a small spindle by a belt",
        "thread was made many times faster than by hand",
        1050,
    ),
    Tool(
        "pair of spectacles",
        "around 1290",
        "in northern Italy",
        "helping old eyes to read",
        "two convex lenses bring near things into focus",
        "craftsmen could work on for twenty years",
        1290,
    ),
    Tool(
        "printing press",
        "around 1450",
        "in Mainz",
        "making many copies of a page",
        "inked metal letters are pressed on paper and used again",
        "books became cheap enough to own",
        1450,
    ),
    Tool(
        "pencil",
        "in the sixteenth century",
        "in the north of England",
        "writing without ink",
        "soft graphite rubs off on the paper",
        "one could write out of doors and wipe it out again",
        1565,
    ),
    Tool(
        "telescope",
        "in 1608",
        "in the Netherlands",
        "looking at far things",
        "one lens gathers the light and a second enlarges the image",
        "within two years moons were found beside Jupiter",
        1608,
    ),
    Tool(
        "slide rule",
        "in the 1620s",
        "in England",
        "multiplying quickly",
        "two logarithmic scales slide along each other and add lengths",
        "engineers reckoned with it for three hundred years",
        1622,
    ),
    Tool(
        "pendulum clock",
        "in 1656",
        "in the Netherlands",
        "keeping time to seconds",
        "the even swing of a pendulum lets the wheels go on tooth by tooth",
        "clocks went wrong by seconds a day and no longer by a quarter of an hour",
        1656,
    ),
    Tool(
        "running machine of Karl Drais",
        "in 1817",
        "in Mannheim",
        "travelling on two wheels",
        "the rider sits astride and pushes off with the feet",
        "it led to the bicycle",
        1817,
    ),
)


def tools(rng: Random) -> Material:
    """One tool, and how it compares with others."""
    chosen = rng.sample(TOOLS, 5)
    tool, other = chosen[:2]
    text = [
        f"The {tool.name} appeared {tool.when} {tool.where}. It was made for {tool.use}.",
        f"How it works is soon told: {tool.how}. Because of it {tool.change}.",
        f"The {other.name} has another story. It appeared {other.when} {other.where} and served for {other.use}.",
    ]
    facts = [
        (f"When the {tool.name} appeared", tool.when),
        (f"Where the {tool.name} appeared", tool.where),
        (f"What the {tool.name} was for", tool.use),
        (f"What the {other.name} was for", other.use),
    ]
    first, last = sorted((tool, other), key=lambda t: t.year)
    asks = [
        (
            rng.choice(
                [
                    f"Where does the {tool.name} come from?",
                    (
                        "I am writing a page on the history of tools for my pupils. What should it say about "
                        f"the {tool.name}?"
                    ),
                    f"history of the {tool.name} in short",
                ]
            ),
            (
                f"The {tool.name} appeared {tool.when} {tool.where}. It was made for {tool.use}: {tool.how}. "
                f"Because of it {tool.change}."
            ),
        ),
        (
            f"How does {a(tool.name)} work?",
            f"{capital(tool.how)}. That is all there is to it; the rest is patience and good material.",
        ),
        (
            f"Compare it with the {other.name}.",
            table(
                ("", capital(tool.name), capital(other.name)),
                [
                    ("When", tool.when, other.when),
                    ("Where", tool.where, other.where),
                    ("For", tool.use, other.use),
                    ("How", tool.how, other.how),
                ],
            )
            + f"\n\nThe {first.name} is the older of the two.",
        ),
        (
            "Put these in order of time: " + listed([f"the {t.name}" for t in chosen]) + ".",
            numbered(f"the {t.name}, {t.when}" for t in sorted(chosen, key=lambda t: t.year)),
        ),
        (f"What changed because of the {other.name}?", f"{capital(other.change)}."),
        (
            f"Make a quiz of {rng.choice([3, 4])} questions about such things, with the answers at the end.",
            numbered(f"What served for {t.use}, {t.when}?" for t in chosen[1:4])
            + "\n\nAnswers: "
            + ", ".join(f"the {t.name}" for t in chosen[1:4])
            + ".",
        ),
        (
            f"How many years lie between the {first.name} and the {last.name}?",
            (
                f"The {first.name} appeared {first.when}, the {last.name} {last.when}; taking "
                f"{year(first.year)} and {year(last.year)} "
                f"as their dates, that makes about {number(round(last.year - first.year, -1), 0)} years."
            ),
        ),
    ]
    return Material(tool.name, asks, reading(rng, f"the {tool.name}", text, facts))


def year(value: int) -> str:
    """-1500 is `1500 BC`."""
    return f"{-value} BC" if value < 0 else str(value)
