"""Travel: twelve cities, what to see there and what it costs.

Why: names and money in prose that stays true whatever chance puts together.

Example: `travel(random.Random(4)).asks[0][0]` asks for a plan of some days in one city.
"""

from random import Random
from typing import NamedTuple

from .parts import Material, bulleted, capital, listed, reading, table


class City(NamedTuple):
    """A city and what a guest should know of it."""

    name: str
    country: str
    language: str
    sights: tuple[str, str, str, str]
    eat: str
    months: str
    water: str
    greeting: str


CITIES = (
    City(
        "Lisbon",
        "Portugal",
        "Portuguese",
        ("the Alfama quarter", "the tower of Belém", "the lift of Santa Justa", "the tile museum"),
        "custard tarts",
        "April to June",
        "the Tagus",
        "Bom dia",
    ),
    City(
        "Kyoto",
        "Japan",
        "Japanese",
        ("the gates of Fushimi Inari", "the Golden Pavilion", "the bamboo grove of Arashiyama", "Nishiki market"),
        "tofu in hot broth",
        "March to May",
        "the Kamo",
        "こんにちは",
    ),
    City(
        "Vienna",
        "Austria",
        "German",
        ("Schönbrunn palace", "the Naschmarkt", "the State Opera", "the Prater wheel"),
        "apple strudel",
        "May to September",
        "the Danube",
        "Grüß Gott",
    ),
    City(
        "Istanbul",
        "Türkiye",
        "Turkish",
        ("Hagia Sophia", "the Grand Bazaar", "the Galata tower", "the Basilica Cistern"),
        "simit with white cheese",
        "April to June",
        "the Bosphorus",
        "Merhaba",
    ),
    City(
        "Mexico City",
        "Mexico",
        "Spanish",
        ("the Zócalo", "the anthropology museum", "the canals of Xochimilco", "Coyoacán"),
        "tacos al pastor",
        "November to April",
        "Lake Xochimilco",
        "Buenos días",
    ),
    City(
        "Cairo",
        "Egypt",
        "Arabic",
        ("the pyramids of Giza", "the Khan el-Khalili bazaar", "the citadel", "the hanging church"),
        "koshari",
        "November to March",
        "the Nile",
        "صباح الخير",
    ),
    City(
        "Edinburgh",
        "Scotland",
        "English",
        ("the castle", "Arthur's Seat", "the Royal Mile", "the botanic garden"),
        "oatcakes with cheese",
        "May to September",
        "the Firth of Forth",
        "Good morning",
    ),
    City(
        "Prague",
        "Czechia",
        "Czech",
        ("Charles Bridge", "the castle", "the old town clock", "Petřín hill"),
        "dumplings with plums",
        "April to June",
        "the Vltava",
        "Dobrý den",
    ),
    City(
        "Athens",
        "Greece",
        "Greek",
        ("the Acropolis", "the agora", "Plaka", "Lycabettus hill"),
        "spinach pie",
        "April to June",
        "the Saronic Gulf",
        "Καλημέρα",
    ),
    City(
        "Seoul",
        "South Korea",
        "Korean",
        ("Gyeongbokgung palace", "Bukchon village", "the Namsan tower", "Gwangjang market"),
        "bibimbap",
        "September to November",
        "the Han",
        "안녕하세요",
    ),
    City(
        "Kraków",
        "Poland",
        "Polish",
        ("the Cloth Hall", "Wawel castle", "Kazimierz", "the salt mine of Wieliczka"),
        "pierogi",
        "May to September",
        "the Vistula",
        "Dzień dobry",
    ),
    City(
        "Montréal",
        "Canada",
        "French",
        ("Mount Royal", "the old port", "the Jean-Talon market", "the botanical garden"),
        "bagels from a wood oven",
        "June to September",
        "the Saint Lawrence",
        "Bonjour",
    ),
)
SEASONS = {
    "umbrella": "for an hour of rain",
    "good shoes": "for cobbles and hills",
    "a paper map": "for when the battery is flat",
}
COMPANY = ("our grandmother", "two children", "friends who love food", "hardly any money")
HALVES = ("In the morning", "After lunch", "In the evening")


def travel(rng: Random) -> Material:
    """One city: a plan, a budget, a phrase, a letter to the hotel."""
    city, days = rng.choice(CITIES), rng.choice([2, 3, 4])
    bed, food, fares = rng.choice([45, 60, 75, 90]), rng.choice([20, 25, 30, 35]), rng.choice([6, 8, 10])
    daily = bed + food + fares
    walks = rng.sample(city.sights, 4)
    plan = []
    for day in range(1, days + 1):
        morning, later = walks[(2 * day - 2) % 4], walks[(2 * day - 1) % 4]
        verb = "see" if day < 3 else "go back to"
        plan.append(
            f"**Day {day}.** {HALVES[0]} {verb} {morning}. {HALVES[1]} {verb} {later}. {HALVES[2]} "
            + ("walk along the water and try " + city.eat if day % 2 else "rest your feet in a café")
            + "."
        )
    text = [
        f"{city.name} lies in {city.country}, on {city.water}. People there speak {city.language}.",
        (
            f"Nobody should leave without having seen {listed(city.sights[:3])}. Those who have more time go "
            f"on to {city.sights[3]}."
        ),
        (
            f"The best months are {city.months}. When you are hungry, ask for {city.eat}; when you enter a "
            f"shop, say “{city.greeting}”."
        ),
    ]
    facts = [
        ("The best months", city.months),
        ("The language", city.language),
        ("What to eat", city.eat),
        ("The water it lies on", city.water),
    ]
    who, nights = rng.choice(["Ms Keller", "Mr Okafor", "the Lindqvist family", "two cousins"]), days
    asks = [
        (
            rng.choice(
                [
                    f"Plan {days} days in {city.name} for me.",
                    (
                        f"We are going to {city.name} for {days} days with {rng.choice(COMPANY)}. "
                        "What would you do on each day?"
                    ),
                    f"{days} days in {city.name}?? ideas please 🙏",
                ]
            ),
            "\n\n".join(plan) + f"\n\nThe best months for {city.name} are {city.months}.",
        ),
        (
            f"What will {days} days cost if a bed is {bed}, food {food} and fares {fares} euros a day?",
            table(
                ("What", "A day", f"{days} days"),
                [
                    ("bed", str(bed), str(bed * days)),
                    ("food", str(food), str(food * days)),
                    ("fares", str(fares), str(fares * days)),
                ],
            )
            + f"\n\n{bed} + {food} + {fares} = {daily} a day, and {daily} × {days} = **{daily * days} euros**.",
        ),
        (
            "How do I greet people there?",
            (
                f"They speak {city.language}; with “{city.greeting}” you cannot go wrong. A smile is "
                "understood everywhere. 😊"
            ),
        ),
        (
            "What should I eat?",
            f"{capital(city.eat)}. Ask where the people of {city.name} themselves go, and go there at their hours.",
        ),
        (
            "What do I pack?",
            bulleted(f"{what}, {why}" for what, why in SEASONS.items())
            + f"\n\nFrom {city.months} that is all you need to add.",
        ),
        (
            f"Write to the hotel for me: {who}, {nights} nights, a quiet room.",
            f"Dear Sir or Madam,\n\nI should like to book a quiet room for {who} for {nights} nights in "
            f"{city.name}. Could you tell me the price, breakfast included, "
            "and whether the room looks on to the court?\n\nWith many thanks and kind regards,\n" + capital(who),
        ),
    ]
    return Material(city.name, asks, reading(rng, city.name, text, facts))
