"""Sums: every number is computed here, step by step, never typed in by hand.

Why: worked arithmetic is the most regular text that chats have, and a wrong sum in a training set is a fault.

Example: `multiplication(random.Random(2))[1]` is a long multiplication with its partial products.
"""

from collections.abc import Callable
from fractions import Fraction
from math import gcd
from random import Random

from .parts import Exchange, Material, bulleted, number, table

COUNTS = (
    "These are the visitors of our little museum",
    "So many eggs our hens have laid",
    "The pages that I have read",
    "Rain in our garden in millimetres",
    "Bicycles counted on the bridge",
)


def multiplication(rng: Random) -> Exchange:
    """A product by partial products."""
    left, right = rng.randint(12, 989), rng.randint(12, 98)
    tens, ones = right // 10 * 10, right % 10
    return (
        rng.choice(
            [f"What is {left} × {right}?", f"Multiply {left} by {right} and show the steps.", f"{left} times {right}?"]
        ),
        (
            f"Split {right} into {tens} and {ones}.\n\n{left} × {tens} = {left * tens}\n"
            f"{left} × {ones} = {left * ones}\n"
            f"{left * tens} + {left * ones} = {left * right}\n\nSo {left} × {right} = **{left * right}**."
        ),
    )


def percentage(rng: Random) -> Exchange:
    """A part of a price."""
    rate, price = rng.choice([5, 10, 12, 15, 20, 25, 30, 40]), rng.randint(4, 90) * 5
    off = price * rate / 100
    thing = rng.choice(["coat", "lamp", "bicycle lock", "pair of boots", "train pass", "kettle"])
    return (
        f"A {thing} costs {price} euros and is now {rate} % off. What do I pay?",
        (
            f"1 % of {price} is {number(price / 100)}. {rate} % is {rate} × {number(price / 100)} = {number(off)}.\n"
            f"{price} − {number(off)} = {number(price - off)}.\n\nYou pay **{number(price - off)} euros**."
        ),
    )


def fractions(rng: Random) -> Exchange:
    """A sum of two fractions."""
    b, d = rng.sample([2, 3, 4, 5, 6, 8, 9, 10, 12], 2)
    p = rng.choice([top for top in range(1, b) if gcd(top, b) == 1])
    q = rng.choice([top for top in range(1, d) if gcd(top, d) == 1])
    common = b * d // gcd(b, d)
    total = Fraction(p, b) + Fraction(q, d)
    top = p * common // b + q * common // d
    last = (
        ""
        if total == Fraction(top, common) and total.denominator == common
        else f"\n4. Shorten: {top}/{common} = {total}."
    )
    return (
        f"How do I add {p}/{b} and {q}/{d}?",
        (
            f"1. The smallest common denominator of {b} and {d} is {common}.\n"
            f"2. {p}/{b} = {p * common // b}/{common} and {q}/{d} = {q * common // d}/{common}.\n"
            f"3. {p * common // b} + {q * common // d} = {top}, so the sum is {top}/{common}.{last}"
        ),
    )


def equation(rng: Random) -> Exchange:
    """A linear equation in one unknown."""
    x, m, c = rng.randint(-9, 15), rng.randint(2, 12), rng.randint(1, 40)
    return (
        f"Solve {m}x + {c} = {m * x + c} for x.",
        (
            f"Take {c} from both sides: {m}x = {m * x + c} − {c} = {m * x}.\nDivide by {m}: x = {m * x} ÷ {m} = {x}.\n"
            f"Check: {m} × {f'({x})' if x < 0 else x} + {c} = {m * x + c}. ✓"
        ),
    )


def mean(rng: Random) -> Exchange:
    """Mean and median of a list that the user gives."""
    values = [rng.randint(1, 60) for _ in range(rng.choice([5, 7, 9, 11]))]
    total, ordered = sum(values), sorted(values)
    return (
        f"{rng.choice(COUNTS)}, day by day:\n\n"
        + "\n".join(f"day {day}: {value}" for day, value in enumerate(values, 1))
        + "\n\nWhat are the mean and the median?",
        (
            f"The sum is {' + '.join(map(str, values))} = {total}. There are {len(values)} days, so the mean is "
            f"{total} ÷ {len(values)} = {number(total / len(values))}.\n\nIn order: {', '.join(map(str, ordered))}. "
            f"The middle one is **{ordered[len(ordered) // 2]}**, and that is the median."
        ),
    )


def bill(rng: Random) -> Exchange:
    """A bill that the user pastes, added up."""
    names = rng.sample(
        ["tea", "coffee", "soup", "cheese roll", "salad", "lemonade", "plum cake", "rice bowl", "omelette"], 5
    )
    rows = [(name, rng.randint(1, 4), rng.randint(4, 24) / 2) for name in names[: rng.randint(3, 5)]]
    total, heads = sum(n * price for _, n, price in rows), rng.choice([2, 3, 4, 5])
    lines = [f"{n} × {number(price)} = {number(n * price)} ({name})" for name, n, price in rows]
    return (
        f"Can you check our bill and split it between {heads} of us?\n\n"
        + table(("Item", "Number", "Price each"), [(name, str(n), f"{price:.2f}") for name, n, price in rows]),
        (
            f"{bulleted(lines)}\n\nThe total is {number(total)}. Each of the {heads} pays {number(total)} ÷ "
            f"{heads} = **{total / heads:.2f}**."
        ),
    )


SUMS: tuple[Callable[[Random], Exchange], ...] = (multiplication, percentage, fractions, equation, mean, bill)


def sums(rng: Random) -> Material:
    """A handful of unlike sums."""
    asks = [make(rng) for make in (*rng.sample(SUMS, len(SUMS)), *rng.choices(SUMS, k=4))]
    things, hours = (
        rng.choice(["boxes", "crates", "sacks", "bottles"]),
        sorted(rng.sample(range(8, 20), rng.randint(4, 9))),
    )
    log = [f"{hour}:{rng.randint(10, 59)} {rng.choice(['in', 'out'])} {rng.randint(2, 60)} {things}" for hour in hours]
    came = sum(int(line.split()[2]) for line in log if " in " in line)
    went = sum(int(line.split()[2]) for line in log if " out " in line)
    stock = rng.randint(200, 400)
    store = (
        f"We began the day with {stock} {things}. This is the log of the store. How many are left?\n\n"
        + "\n".join(log),
        f"In: {came}. Out: {went}. {stock} + {came} − {went} = **{stock + came - went} {things}**.",
    )
    return Material(store[0], asks, [store, mean(rng), bill(rng)])
