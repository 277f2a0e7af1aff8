"""Habits, plans for a week and choices between two things.

Why: chats that have no single right answer, with emoji of more than one code point.

Example: `daily(random.Random(5)).asks[0]` asks how to keep up a habit.
"""

from random import Random

from .letters import FAMILY, NAMES
from .parts import Exchange, Material, capital, clock, listed, numbered, table

HABITS = (
    "run three times a week",
    "read before going to bed",
    "learn ten words a day",
    "practise the violin",
    "write a diary",
    "drink more water",
    "draw every morning",
    "stretch at noon",
)
CHOICES = (
    (
        "the train",
        "the car",
        ("one can read on the way", "no parking to look for"),
        ("the door of the house is the station", "room for luggage"),
    ),
    ("a paper diary", "an app", ("no battery and no noise", "nice to hold"), ("it can remind you", "easy to search")),
    (
        "a cat",
        "a dog",
        ("it looks after itself for a day", "quiet"),
        ("it takes you outdoors", "glad whenever you come home"),
    ),
    (
        "to rent",
        "to buy",
        ("free to move", "somebody else mends the roof"),
        ("nobody can give you notice", "the money stays yours"),
    ),
    (
        "the morning",
        "the evening",
        ("the mind is fresh", "done before the day begins"),
        ("no clock to watch", "the body is warm"),
    ),
    (
        "a gas stove",
        "an induction stove",
        ("works with every pan", "you see the flame"),
        ("quick and safe", "easy to wipe clean"),
    ),
)


def daily(rng: Random) -> Material:
    """Habits, plans for a week and choices between two things."""
    habit, other = rng.sample(HABITS, 2)
    one, two, pros, cons = rng.choice(CHOICES)
    wake, minutes = rng.choice([360, 390, 420, 450]), rng.choice([10, 15, 20, 30])
    days = rng.sample(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"], 3)
    face = rng.choice(FAMILY)
    week = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
    rows = [(day, clock(wake), habit if place % 2 == 0 else other) for place, day in enumerate(week)]
    dear = (
        f"Dear diary, today I wanted to {habit} and did not. It rained, then {rng.choice(NAMES)} called, and "
        "then it was evening. "
    )
    dear += (
        f"Tomorrow I will try again at {clock(wake)}, before anybody is up, and only for {minutes} minutes. "
        f"If that works I might even {other}."
    )
    asks = [
        (
            rng.choice(
                [
                    f"I want to {habit} but I always give up. Any advice?",
                    f"How can I make myself {habit}? I have tried it twice now and never got past the second week.",
                ]
            ),
            "Make it so small that you cannot fail:\n\n"
            + numbered(
                [
                    f"Begin with {minutes} minutes.",
                    f"Tie it to something you do anyway, such as your first tea at {clock(wake)}.",
                    "Mark each day on a calendar.",
                    "If you miss a day, do not miss two.",
                ]
            )
            + f"\n\nYou can do it! {face}",
        ),
        (
            f"{minutes} minutes on {listed(days)}: how much is that in a year?",
            f"{minutes} × 3 = {minutes * 3} minutes a week. {minutes * 3} × 52 = {minutes * 156} minutes, "
            f"and {minutes * 156} ÷ 60 = **{minutes * 156 // 60} hours**"
            + (f" and {minutes * 156 % 60} minutes." if minutes * 156 % 60 else "."),
        ),
        (f"I would also like to {other}. Can you make a plan for the week?", table(("Day", "At", "What"), rows)),
        (
            f"By the way, {one} or {two}?",
            (
                f"For {one.removeprefix('to ')}: {'; '.join(pros)}.\nFor {two.removeprefix('to ')}: "
                f"{'; '.join(cons)}.\n\nIf you cannot decide, try each for a week."
            ),
        ),
        ("One sentence to pin on the wall, please.", "“A little every day is more than a lot some day.”"),
    ]
    reads: list[Exchange] = [
        (f"{dear}\n\nWhat does the writer plan?", f"To {habit} at {clock(wake)}, for {minutes} minutes."),
        (
            f"Rewrite this in the third person, in one sentence.\n\n{dear}",
            f"The writer wanted to {habit}, was kept from it, and will try again at {clock(wake)}.",
        ),
        (f"How does the writer feel? One word and an emoji.\n\n> {dear}", "Hopeful 🙂"),
        (
            (
                f"I wrote down what speaks for {one.removeprefix('to ')} and for {two.removeprefix('to ')}, "
                f"but mixed up: {listed([cons[0], pros[1], cons[1], pros[0]])}. Sort it."
            ),
            table((capital(one), capital(two)), list(zip(pros, cons, strict=True))),
        ),
    ]
    return Material(habit, asks, reads)
