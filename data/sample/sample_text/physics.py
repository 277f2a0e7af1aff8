"""Physics: laws with numbers worked out, and everyday questions in prose.

Why: units, signs and powers are spelled in ways that no other subject has.

Example: `ohm(random.Random(2))` asks for a current and a power.
"""

from collections.abc import Callable
from random import Random

from .parts import Exchange, Material, number, numbered, reading


def speed(rng: Random) -> Exchange:
    """Speed from distance and time."""
    hours, pace = rng.choice([2, 3, 4, 5]), rng.choice([12, 18, 45, 60, 72, 90, 110])
    who = rng.choice(["A cyclist", "A train", "A goods lorry", "A coach", "A ferry"])
    return (
        f"{who} covers {hours * pace} km in {hours} hours. What is the speed in m/s?",
        (
            f"v = s ÷ t = {hours * pace} km ÷ {hours} h = {pace} km/h. One m/s is 3.6 km/h, so {pace} ÷ 3.6 = "
            f"**{number(pace / 3.6)} m/s**."
        ),
    )


def ohm(rng: Random) -> Exchange:
    """Ohm's law and power."""
    volts, ohms = rng.choice([6, 9, 12, 24, 48]), rng.choice([2, 3, 4, 6, 8, 12, 24])
    current = volts / ohms
    return (
        f"A resistor of {ohms} Ω hangs on {volts} V. What current flows, and what power is turned into heat?",
        (
            f"Ohm's law: I = U ÷ R = {volts} V ÷ {ohms} Ω = {number(current)} A.\nPower: P = U × I = {volts} "
            f"V × {number(current)} A "
            f"= **{number(volts * volts / ohms)} W**."
        ),
    )


def falling(rng: Random) -> Exchange:
    """Free fall without air."""
    seconds = rng.choice([1, 2, 3, 4, 5])
    return (
        (
            f"I drop a stone into a well and hear it after {seconds} s. How deep is the well? Leave out the "
            "time that sound takes."
        ),
        (
            f"s = ½ × g × t², with g = 9.81 m/s².\ns = 0.5 × 9.81 × {seconds}² = 0.5 × 9.81 × {seconds**2} = "
            f"**{number(4.905 * seconds**2)} m**."
        ),
    )


def energy(rng: Random) -> Exchange:
    """Kinetic energy, and what doubling the speed does."""
    mass, pace = rng.choice([2, 10, 60, 80, 1200]), rng.choice([2, 3, 5, 10, 20])
    return (
        f"What kinetic energy has a body of {mass} kg at {pace} m/s? And at twice that speed?",
        (
            f"E = ½ × m × v² = 0.5 × {mass} × {pace}² = 0.5 × {mass} × {pace**2} "
            f"= **{number(mass * pace**2 / 2)} J**.\n\n"
            f"Twice the speed is four times the energy: 4 × {number(mass * pace**2 / 2)} = {mass * pace**2 * 2} J."
        ),
    )


def kettle(rng: Random) -> Exchange:
    """Heat, and how long a kettle needs."""
    litres, cold, watts = rng.choice([1, 2, 3]), rng.choice([10, 15, 20]), rng.choice([1000, 2000, 2200])
    joules = 4190 * litres * (100 - cold)
    return (
        f"How long does a kettle of {watts} W take to boil {litres} litre{'s' * (litres > 1)} of water from {cold} °C?",
        (
            f"Q = c × m × ΔT = 4190 J/(kg K) × {litres} kg × {100 - cold} K = {joules} J.\nt = Q ÷ P = "
            f"{joules} J ÷ {watts} W = "
            f"{number(joules / watts, 0)} s, about **{number(joules / watts / 60, 1)} minutes**. A real "
            "kettle loses some heat and needs a little longer."
        ),
    )


LAWS: tuple[Callable[[Random], Exchange], ...] = (speed, ohm, falling, energy, kettle)
IDEAS = (
    (
        "Why is the sky blue?",
        (
            "Sunlight holds all colours. The air scatters short waves far more than long ones, so blue light "
            "reaches us from every part of the sky. "
            "In the evening the light has a longer way through the air, most of the blue is lost on that "
            "way, and red is left."
        ),
    ),
    (
        "Why does ice float?",
        (
            "Water grows by about 9 % when it freezes, because its molecules stand in an open lattice. Ice "
            "is therefore less dense than water, and what is less dense floats. "
            "About nine tenths of an iceberg lie under the surface."
        ),
    ),
    (
        "What is the difference between mass and weight?",
        (
            "Mass says how hard it is to push a thing; it is the same everywhere and is measured in "
            "kilograms. Weight is the force with which a planet pulls on it, in newtons. "
            "On the Moon your weight is about a sixth of what it is here, and your mass has not changed."
        ),
    ),
    (
        "How does a lever work?",
        (
            "A lever trades way for force. If your arm of it is three times as long as the load's arm, you "
            "need a third of the force, but your hand moves three times as far. "
            "Force times arm is the same on both sides."
        ),
    ),
    (
        "Why do we see lightning before we hear thunder?",
        (
            "Light arrives at once, while sound needs about three seconds for each kilometre. Count the "
            "seconds between flash and thunder and divide them by three: that is the distance in kilometres. "
            "⚡"
        ),
    ),
    (
        "What makes a rainbow?",
        (
            "Each drop bends the sunlight as it enters, throws it back at its far side and bends it once "
            "more on the way out. Every colour is bent by a slightly different angle, so they come out side "
            "by side. "
            "Stand with the sun at your back and look about 42 degrees away from your own shadow. 🌈"
        ),
    ),
)


def physics(rng: Random) -> Material:
    """Worked problems and everyday questions."""
    ideas = rng.sample(IDEAS, 4)
    asks = [make(rng) for make in rng.sample(LAWS, len(LAWS))]
    level = rng.choice(["for a child of eight", "in two or three sentences", "for somebody who never liked school"])
    asks[1:1] = [(f"{ideas[0][0][:-1]}, {level}?", ideas[0][1])]
    asks += ideas[1:]
    essay = [idea[1] for idea in ideas[:3]]
    answers = [idea[0][:-1] for idea in ideas[:3]]
    exam = (
        "Here are three answers of a pupil. Write the question that belongs to each.\n\n" + numbered(essay),
        numbered(question + "?" for question in answers),
    )
    facts = [("Topic", answers[0].lower()), ("Second topic", answers[1].lower())]
    wrong = speed(rng)
    marking = (
        (
            "Mark this homework, please. Is the way right and is the result right?\n\nQuestion: "
            f"{wrong[0]}\n\nAnswer: {wrong[1]}"
        ),
        "Both are right: the speed in km/h first, then the division by 3.6. Full marks. 👍🏽",
    )
    return Material(level + ideas[0][0] + wrong[0], asks, [exam, marking, reading(rng, "physics", essay, facts)[0]])
