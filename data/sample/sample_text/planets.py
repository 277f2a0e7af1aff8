"""The planets: sizes, distances and years, compared and computed.

Why: a small table of true numbers gives many questions with one right answer.

Example: `planets(random.Random(2)).asks[1][0]` asks which of two planets is larger.
"""

from random import Random

from .parts import Material, capital, listed, number, numbered, reading, table

PLANETS = (
    ("Mercury", 4879, 57.9, 88.0, "a bare rock with long, hot days and icy nights"),
    ("Venus", 12104, 108.2, 224.7, "wrapped in thick clouds and hotter than an oven"),
    ("Earth", 12756, 149.6, 365.2, "the only one known to have living things"),
    ("Mars", 6792, 228.0, 687.0, "red with rust, with the tallest volcano that we know"),
    ("Jupiter", 142984, 778.5, 4331.0, "a giant of gas with a storm larger than the Earth"),
    ("Saturn", 120536, 1432.0, 10747.0, "famous for its rings of ice"),
    ("Uranus", 51118, 2867.0, 30589.0, "lying on its side as it rolls around the Sun"),
    ("Neptune", 49528, 4515.0, 59800.0, "the farthest, blue and full of wind"),
)


def planets(rng: Random) -> Material:
    """Two planets: sizes, distances, how long light and a rocket need."""
    chosen = rng.sample(PLANETS, 4)
    (one, size, far, year, look), (two, size2, _, year2, look2) = chosen[:2]
    big, small = (one, two) if size > size2 else (two, one)
    ratio = number(max(size, size2) / min(size, size2), 1)
    text = [
        f"{one} is {look}. Its diameter is {size} km.",
        (
            f"Its distance from the Sun is {number(far, 1)} million km. One turn around the Sun takes it "
            f"{number(year, 1)} days."
        ),
        f"{two} is {look2}. Its diameter is {size2} km and its year has {number(year2, 1)} days.",
    ]
    facts = [
        (f"The diameter of {one}", f"{size} km"),
        (f"The year of {one}", f"{number(year, 1)} days"),
        (f"The diameter of {two}", f"{size2} km"),
    ]
    earth = 12756
    measure = f"{'less' if size < earth else 'more'} than the Earth's {earth} km"
    if size == earth:
        measure = "which is the yardstick for all the others"
    asks = [
        (
            rng.choice([f"Tell me about {one}.", f"My son asks what is special about {one}. What do I tell him?"]),
            f"{one} is {look}. It measures {size} km across, {measure}, and it goes around the Sun once in "
            f"{number(year, 1)} days. 🪐",
        ),
        (
            f"Which is larger, {one} or {two}?",
            (
                f"{big}. {one} measures {size} km and {two} {size2} km: {max(size, size2)} ÷ "
                f"{min(size, size2)} ≈ {ratio}, so {big} is about {ratio} times as wide as {small}."
            ),
        ),
        (
            f"How long does sunlight take to {one}?",
            (
                f"Light covers 299 792 km in a second, about 18 million km in a minute. {number(far, 1)} ÷ 18 "
                f"≈ {number(far / 18, 1)}. "
                f"So about **{number(far / 18, 1)} minutes**."
            ),
        ),
        (
            f"Put {listed([p[0] for p in chosen])} in a table with diameter and year.",
            table(("Planet", "Diameter (km)", "Year (days)"), [(p[0], str(p[1]), number(p[3], 1)) for p in chosen]),
        ),
        (
            "Now sort them by their distance from the Sun.",
            numbered(f"{p[0]}, {number(p[2], 1)} million km" for p in sorted(chosen, key=lambda planet: planet[2])),
        ),
        (
            f"And if I am {(age := rng.randint(8, 70))} here, how old am I in years of {two}?",
            (
                f"You have lived {age} × 365.2 = {number(age * 365.2, 1)} days. "
                f"A year of {two} has {number(year2, 1)}. "
                f"{number(age * 365.2, 1)} ÷ {number(year2, 1)} ≈ **{number(age * 365.2 / year2)}**."
            ),
        ),
    ]
    return Material(one, asks, reading(rng, capital(one), text, facts))
