"""Stories: told, shortened, continued, put in order.

Why: prose of several paragraphs that later turns refer to.

Example: `stories(random.Random(5)).asks[0][1]` is a story in four paragraphs.
"""

from random import Random

from .letters import NAMES
from .parts import Exchange, Material, a, bulleted, capital, numbered

HEROES = (
    "clockmaker",
    "ferryman",
    "beekeeper",
    "lighthouse keeper",
    "baker",
    "weaver",
    "map maker",
    "gardener",
    "piano tuner",
    "old teacher",
)
PLACES = (
    "a town where it always rained",
    "a village at the end of the railway",
    "an island with one tree",
    "a street behind the harbour",
    "a valley without an echo",
)
THINGS = (
    "a key that fitted no lock",
    "a letter without a stamp",
    "a lamp that burned only at noon",
    "a bell without a clapper",
    "a book with one blank page",
)
HELPERS = (
    "a child who asked too many questions",
    "a heron",
    "the postman's dog",
    "a stranger with a wet umbrella",
    "the youngest of the neighbours",
)
LESSONS = (
    ("what is lost is often only waiting", "Patience finds what haste walks past."),
    ("a thing is worth what one does with it", "Use gives things their worth."),
    ("two who ask find more than one who knows", "Asking together beats knowing alone."),
    ("a gift grows when it is passed on", "What we share grows."),
)


def stories(rng: Random) -> Material:
    """One story: told, shortened, continued, turned into a list."""
    hero, place, thing, helper = rng.choice(HEROES), rng.choice(PLACES), rng.choice(THINGS), rng.choice(HELPERS)
    lesson, moral = rng.choice(LESSONS)
    name = rng.choice(NAMES)
    short = thing.split(" that ")[0].split(" without ")[0].split(" with ")[0].removeprefix("a ")
    parts = [
        (
            f"In {place} lived {a(hero)} by the name of {name}. {name} worked from the first light to the "
            "last and was content, or thought so."
        ),
        (
            f"One morning there lay on the doorstep {thing}. {name} turned it over and over, put it on the "
            "shelf, and could not stop looking at it. "
            "By evening the work of the day was not half done."
        ),
        (
            f"Then came {helper}. “Why do you keep it on the shelf?” was the question, and {name} had no "
            "answer. So they set out together, "
            f"asked at every door, and at each door heard a piece of the story of the {short}."
        ),
        (
            f"When they came home it was winter, and the {short} was no longer a riddle. It stands in the "
            "window now, where all can see it. "
            f"And whoever asks {name} about it hears that {lesson}."
        ),
    ]
    story = "\n\n".join(parts)
    asks = [
        (
            rng.choice(
                [
                    f"Tell me a story about {a(hero)} and {thing}.",
                    f"I need a bedtime story, not too long. There should be {a(hero)} in it, {place} and {thing}.",
                    f"Write a story in four paragraphs: {hero}, {place}, {thing}. Please let it end well.",
                ]
            ),
            story,
        ),
        ("What is the moral?", moral),
        (
            "Tell it again in two sentences.",
            (
                f"{capital(a(hero))} finds {thing} and can think of nothing else. With the help of others "
                f"{name} learns that {lesson}."
            ),
        ),
        ("Who is in it?", bulleted([f"{name}, {a(hero)}", helper, "the people behind the doors"])),
        (
            "What happened the year after?",
            (
                f"In spring {name} took the {short} from the window and gave it to {helper}, for a thing that "
                "has told its story wants a new one. "
                f"Some say it has been seen in {rng.choice([p for p in PLACES if p != place])}. {name} is "
                "back at work, and whistles."
            ),
        ),
        (
            "Give me three titles for it.",
            numbered([f"The {capital(hero)} and the {capital(short)}", f"The Winter of {name}", capital(thing)]),
        ),
        ("A haiku about it?", f"Snow on the doorstep,\nthe {short} in {name}'s hand:\nall the doors open. ❄️"),
    ]
    reads: list[Exchange] = [
        (
            f"What is this story about? One sentence.\n\n{story}",
            f"{capital(a(hero))} called {name} learns through {thing} that {lesson}.",
        ),
        (f"Here is the beginning of a story. Write the end.\n\n{parts[0]}\n\n{parts[1]}\n\n{parts[2]}", parts[3]),
        (f"Which objects and persons occur here?\n\n{parts[1]} {parts[2]}", bulleted([name, helper, thing])),
        (
            (
                f"Put the paragraphs in order (letters only).\n\nA) {parts[2]}\n\nB) {parts[0]}\n\nC) "
                f"{parts[3]}\n\nD) {parts[1]}"
            ),
            "B, D, A, C",
        ),
    ]
    return Material(hero, asks, reads)
