"""Letters: eight occasions, several tones, and letters to be mended.

Why: the user pastes a text and the answer repeats most of it, as in every proof-reading chat.

Example: `scramble(random.Random(5), text)` puts slips of the keyboard into a text.
"""

from random import Random

from .parts import Exchange, Material, bulleted, numbered

NAMES = ("Mara", "Tomás", "Ingrid", "Yusuf", "Noé", "Priya", "Søren", "Zoë", "Ewa", "Kenji", "Leïla", "Marek")
OCCASIONS = (
    (
        "to thank a neighbour",
        (
            "Thank you for watering my plants while I was away. Not one of them has died, which is more than "
            "I manage when I am at home."
        ),
    ),
    (
        "to invite somebody to a concert",
        (
            "Our choir sings on Saturday at seven in the old mill, and I should be very glad to see you "
            "there. There will be soup afterwards."
        ),
    ),
    (
        "to apologise for being late",
        "I am sorry that I kept you waiting on Tuesday. I missed the bus by a minute and should have called at once.",
    ),
    (
        "to ask for a day off",
        (
            "I should like to take next Friday off, because my sister is moving house. Everything that is "
            "due on that day will be done by Thursday."
        ),
    ),
    (
        "to cancel a subscription",
        (
            "Please end my subscription at the next possible date and confirm the day in writing. I have "
            "enjoyed the paper, but I no longer find the time for it."
        ),
    ),
    (
        "to congratulate on a new job",
        (
            "I have just heard that you got the post. Nobody has worked harder for it, and I am as pleased "
            "as if it were mine."
        ),
    ),
    (
        "to complain about a broken kettle",
        (
            "The kettle that I bought from you three weeks ago no longer switches itself off. I enclose the "
            "receipt and ask you to replace it."
        ),
    ),
    (
        "to wish a friend a quick recovery",
        (
            "I hear that you are in bed with a broken ankle and a pile of books. Tell me which you have "
            "finished and I shall bring new ones."
        ),
    ),
)
BUSINESS = ("day off", "cancel", "complain")
FAMILY = ("👩‍👧‍👦", "👨‍👩‍👧", "🙋🏽‍♀️", "🤝🏿", "🧑‍🍳", "🏳️‍🌈", "❤️", "👍🏼", "🇫🇮", "🇧🇷", "1️⃣", "☀️")


def scramble(rng: Random, text: str) -> str:
    """The text with slips of the keyboard: here and there two neighbouring letters change places."""
    words = text.split(" ")
    for place in rng.sample(range(len(words)), max(2, len(words) // 6)):
        word = words[place]
        if len(word) > 4 and word.isalpha():
            cut = rng.randint(1, len(word) - 3)
            words[place] = word[:cut] + word[cut + 1] + word[cut] + word[cut + 2 :]
    return " ".join(words)


def letters(rng: Random) -> Material:
    """One letter, in several tones; and letters that the user pastes to be mended."""
    purpose, body = rng.choice(OCCASIONS)
    to, sender, third = rng.sample(NAMES, 3)
    face = rng.choice(FAMILY)
    first = body.split(". ")[0].rstrip(".") + "."
    formal = (
        "And a more formal version?",
        (
            f"Dear Sir or Madam,\n\nI am writing {purpose}. {body}\n\n"
            f"I look forward to your reply.\n\nYours faithfully,\n{sender}"
        ),
    )
    warm = (
        "And a warmer version?",
        f"My dear {to},\n\n{body}\n\nI often think of you and hope to see you soon.\n\nWith love,\n{sender}",
    )
    asks = [
        (
            rng.choice(
                [
                    f"Write a short letter {purpose}. It goes to {to} and is from {sender}.",
                    (
                        f"I have to write to {to} {purpose} and I never know how to begin. Can you help? My "
                        f"name is {sender}."
                    ),
                ]
            ),
            f"Dear {to},\n\n{body}\n\nWith kind regards,\n{sender}",
        ),
        ("Shorter, for a text message.", f"Hi {to}! {first} {face} {sender}"),
        formal if any(word in purpose for word in BUSINESS) else warm,
        (
            f"How should I sign if I know {to} well?",
            "Any of these will do:\n\n" + bulleted(["Yours", "All the best", "With love", "See you soon " + face]),
        ),
        (
            f"Make it from {sender} and {third} together.",
            f"Dear {to},\n\n{body.replace(' I ', ' we ')}\n\nWith kind regards from us both,\n{sender} and {third}",
        ),
    ]
    asks = asks[:4] if " my " in body or " mine" in body or " am " in body else asks
    broken, pair = scramble(rng, body), rng.sample(OCCASIONS, 2)
    reads: list[Exchange] = [
        (f"Correct the typing mistakes, change nothing else:\n\n{broken}", body),
        (
            f"Please proofread my letter.\n\nDear {to},\n\n{broken}\n\nKind regards\n{sender}",
            f"Dear {to},\n\n{body}\n\nKind regards,\n{sender}",
        ),
        (
            f"What does this letter want, in a few words?\n\n“Dear {to},\n\n{body}\n\nYours, {sender}”",
            f"{sender} writes {purpose}.",
        ),
        (
            "Which of these letters is friendly and which is a matter of business?\n\n"
            + numbered(text for _, text in pair)
            + "\n\nOne line each.",
            numbered("business" if any(word in what for word in BUSINESS) else "friendly" for what, _ in pair),
        ),
    ]
    return Material(purpose, asks, reads)
