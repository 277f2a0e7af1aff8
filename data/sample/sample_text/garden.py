"""The garden: twelve crops, and what one asks about them.

Why: distances, weeks and beds give short sums and calendars among the prose.

Example: `garden(random.Random(1)).asks[0][0]` asks how to grow one crop.
"""

from random import Random
from typing import NamedTuple

from .parts import Material, capital, listed, number, numbered, reading, table


class Crop(NamedTuple):
    """What a gardener asks of a vegetable; lengths in centimetres, times for a temperate garden of the north."""

    name: str
    sow: str
    depth: str
    apart: int
    weeks: int
    wants: str
    enemy: str
    remedy: str
    friend: str


CROPS = (
    Crop(
        "carrots",
        "March to July",
        "1",
        5,
        14,
        "loose soil without stones",
        "carrot fly",
        "a fine net from the day of sowing",
        "onions",
    ),
    Crop(
        "broad beans",
        "February to April",
        "5",
        20,
        16,
        "heavy, moist soil",
        "black aphids",
        "pinching out the tips",
        "potatoes",
    ),
    Crop(
        "tomatoes",
        "March, indoors",
        "1",
        50,
        18,
        "warmth and a sheltered wall",
        "blight",
        "a roof against the rain",
        "basil",
    ),
    Crop(
        "courgettes",
        "May",
        "2",
        90,
        9,
        "plenty of compost and water",
        "slugs",
        "an evening round with a torch",
        "sweetcorn",
    ),
    Crop(
        "lettuce", "March to August", "0.5", 25, 8, "light shade in summer", "slugs", "a ring of sharp grit", "radishes"
    ),
    Crop(
        "radishes", "March to September", "1", 3, 4, "even moisture", "flea beetles", "keeping the soil damp", "lettuce"
    ),
    Crop(
        "beetroot",
        "April to July",
        "2",
        10,
        13,
        "a sunny bed without fresh manure",
        "leaf miners",
        "picking off the marked leaves",
        "dill",
    ),
    Crop("leeks", "March to April", "1", 15, 28, "deep, rich soil", "leek moth", "a net from May onwards", "celery"),
    Crop(
        "runner beans",
        "May to June",
        "5",
        15,
        12,
        "poles two metres high",
        "frost",
        "waiting for the middle of May",
        "savory",
    ),
    Crop(
        "kale",
        "April to June",
        "1",
        45,
        20,
        "firm ground",
        "cabbage whites",
        "a net, and looking under the leaves",
        "beetroot",
    ),
    Crop(
        "garlic",
        "October to November",
        "4",
        12,
        36,
        "a dry place in full sun",
        "rust",
        "changing the bed every year",
        "strawberries",
    ),
    Crop(
        "spinach",
        "March to April",
        "2",
        8,
        7,
        "cool days",
        "bolting in the heat",
        "sowing early or late",
        "strawberries",
    ),
)


def garden(rng: Random) -> Material:
    """One crop: how to grow it, how many fit a bed, what eats it, what to write on the calendar."""
    crop, others = rng.choice(CROPS), rng.sample(CROPS, 4)
    long, wide, rows = rng.choice([2, 3, 4, 5, 6]) * 100, rng.choice([90, 100, 120, 150]), max(20, crop.apart)
    down, across = long // crop.apart, wide // rows
    leaflet = [
        (
            f"Sowing time for {crop.name}: {crop.sow}. The seeds lie {crop.depth} cm deep and the plants "
            f"stand {crop.apart} cm apart."
        ),
        f"What the plants like best is {crop.wants}. Between sowing and harvest there are about {crop.weeks} weeks.",
        (
            f"Their worst trouble is {crop.enemy}. The remedy is {crop.remedy}. A good neighbour in the bed: "
            f"{crop.friend}."
        ),
    ]
    facts = [
        ("How far apart the plants stand", f"{crop.apart} cm"),
        ("How long until the harvest", f"about {crop.weeks} weeks"),
        ("Good neighbours", crop.friend),
        ("Worst trouble", crop.enemy),
    ]
    year = [(c.name, c.sow, f"{c.weeks} weeks", f"{c.apart} cm") for c in others]
    asks = [
        (
            rng.choice(
                [
                    f"How do I grow {crop.name}?",
                    (
                        f"This is my first year with a garden and my neighbour gave me seeds of {crop.name}. "
                        "What should I do with them?"
                    ),
                    f"growing {crop.name}, what do I need to know",
                ]
            ),
            f"{capital(crop.name)} want{'' if crop.name.endswith('s') else 's'} {crop.wants}.\n\n"
            + numbered(
                [
                    f"Sow {crop.depth} cm deep ({crop.sow}).",
                    f"Thin or plant out to {crop.apart} cm.",
                    f"Watch for {crop.enemy}; what helps is {crop.remedy}.",
                    f"Harvest after about {crop.weeks} weeks.",
                ]
            )
            + f"\n\nA good neighbour in the bed: {crop.friend}.",
        ),
        (
            f"My bed is {long} cm long and {wide} cm wide. How many fit in with rows {rows} cm apart?",
            (
                f"Along a row: {long} ÷ {crop.apart} = {number(long / crop.apart, 1)}, so {down} plants.\n"
                f"Rows: {wide} ÷ {rows} = {number(wide / rows, 1)}, so {across}.\nTogether: {down} × {across} "
                f"= **{down * across} plants**."
            ),
        ),
        (
            f"Something is wrong with them, I think it is {crop.enemy}. What can I do without poison?",
            (
                f"With {crop.enemy} the best answer is {crop.remedy}. It also helps to grow {crop.friend} "
                "close by and not to use the same bed next year. 🌱"
            ),
        ),
        (
            f"Make me a sowing calendar for {listed([c.name for c in others])}.",
            table(("Crop", "Sow", "Harvest after", "Distance"), year),
        ),
        (
            f"If I sow on the 1st of {rng.choice(['April', 'May', 'June'])}, in how many days do I harvest?",
            (
                f"About {crop.weeks} weeks. {crop.weeks} × 7 = {crop.weeks * 7} days; a cool spring may add "
                f"two weeks, that is 14 days, and make it {crop.weeks * 7 + 14}."
            ),
        ),
    ]
    wrong = leaflet[0].replace(f"{crop.apart} cm apart", f"{crop.apart * 3} cm apart")
    check = (
        f"Please check this paragraph for mistakes of fact before I print it:\n\n{wrong} {leaflet[1]} {leaflet[2]}",
        (
            f"One number looks wrong: {crop.apart * 3} cm is far too much for {crop.name}, {crop.apart} cm is "
            "enough. The rest is fine."
        ),
    )
    return Material(crop.name, asks, [*reading(rng, crop.name, leaflet, facts), check])
