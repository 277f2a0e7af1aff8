"""The kitchen: twelve dishes, and what one asks about them.

Why: quantities that scale with the number of guests give lists, tables and sums in one subject.

Example: `cooking(random.Random(1)).asks[0][0]` asks for a recipe for so many people.
"""

from math import ceil
from random import Random

from .parts import Material, bulleted, capital, clock, listed, number, numbered, reading, table
from .recipes import DISHES

SWAPS = (
    ("butter", "the same weight of a neutral oil, less a fifth"),
    ("milk", "oat drink, cup for cup"),
    ("eggs", "a spoon of ground flax in three spoons of water for each egg"),
    ("stock", "water with a piece of the rind of a hard cheese"),
    ("sugar", "honey, three quarters of the weight"),
    ("onions", "the white part of leeks"),
    ("tomatoes", "roasted peppers with a little vinegar"),
    ("flour", "a mix of rice flour and ground almonds"),
)
GUESTS = ("my parents", "two neighbours", "the choir", "my daughter's friends", "a colleague", "my aunt")


def cooking(rng: Random) -> Material:
    """One dish: the recipe, the shopping, the timing, what to swap."""
    dish, people = rng.choice(DISHES), rng.choice([2, 3, 5, 6, 8, 10, 12])

    def amounts(count: int) -> list[tuple[str, str]]:
        each = [(what, much * count / 4, unit) for what, much, unit in dish.amounts]
        return [(what, f"{number(much if unit else ceil(much), 1)} {unit}".strip()) for what, much, unit in each]

    what, much, unit = dish.amounts[0]
    eaten = clock(serve := rng.choice([750, 1080, 1110, 1140, 1170]))
    swap = rng.sample(SWAPS, 3)
    recipe = [
        (
            f"{capital(dish.name)} is {'an' if dish.kind[0] in 'aeiou' else 'a'} {dish.kind} that takes about "
            f"{dish.minutes} minutes. "
            f"For four people you need {listed([f'{m} {u} {w}'.replace('  ', ' ') for w, m, u in dish.amounts])}."
        ),
        "This is how it is done. " + " ".join(dish.steps),
        f"A word from experience: {dish.tip[0].lower() + dish.tip[1:]}. What is left keeps {dish.keeps}.",
    ]
    facts = [("How many minutes it takes", f"about {dish.minutes} minutes"), ("How long it keeps", dish.keeps)]
    facts += [(f"The amount of {w} for four", f"{m} {u}".strip()) for w, m, u in dish.amounts[:2]]
    notes = rng.sample(dish.steps, len(dish.steps))
    asks = [
        (
            rng.choice(
                [
                    f"How do I make {dish.name} for {people} people?",
                    (
                        f"I am cooking for {rng.choice(GUESTS)} on "
                        f"{rng.choice(['Friday', 'Saturday', 'Sunday'])}, {people} people in all. "
                        f"Could you give me a recipe for {dish.name}?"
                    ),
                    f"{dish.name} recipe for {people} please",
                ]
            ),
            (
                f"For {people} people you need:\n\n{bulleted(f'{m} {w}' for w, m in amounts(people))}\n\n"
                f"{numbered(dish.steps)}\n\n{dish.tip}. Allow about {dish.minutes} minutes."
            ),
        ),
        (
            f"I only have {number(much * people / 4 * 1.5, 0)} {unit} of {what}. How many people is that "
            "enough for?".replace("  ", " "),
            f"Four people need {much} {unit} of {what}, so one person needs {much} ÷ 4 = {number(much / 4)} {unit}. "
            f"Then {number(much * people / 4 * 1.5, 0)} ÷ {number(much / 4)} = "
            f"{number(float(number(much * people / 4 * 1.5, 0)) / (much / 4), 1)}, "
            "and you round down to whole people.".replace("  ", " "),
        ),
        (
            f"We want to eat at {eaten}. When do I have to start?",
            (
                f"{capital(dish.name)} takes {dish.minutes} minutes, and ten minutes to lay the table are well spent. "
                f"{eaten} less {dish.minutes + 10} minutes is {clock(serve - dish.minutes - 10)}. Start then."
            ),
        ),
        (
            f"Give me the shopping list as a table, for {people + 2} this time.",
            table(("Ingredient", f"For {people + 2} people"), amounts(people + 2)),
        ),
        ("Does it keep?", f"Yes: {dish.keeps}."),
        (
            (
                f"Somebody at the table cannot have {swap[0][0]}. What else is there, and what about "
                f"{swap[1][0]} and {swap[2][0]}?"
            ),
            "These swaps work in most recipes:\n\n" + bulleted(f"**{old}**: {new}" for old, new in swap),
        ),
    ]
    mixed = (
        f"I wrote the steps of {dish.name} on cards and dropped them. Which order is right?\n\n{bulleted(notes)}",
        f"In this order:\n\n{numbered(dish.steps)}",
    )
    return Material(dish.name, asks, [*reading(rng, dish.name, recipe, facts), mixed, mixed])
