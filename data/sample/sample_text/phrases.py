"""A phrase book in sixteen languages.

Why: tokens of several bytes, scripts without spaces and scripts from right to left must go through
the programs unharmed.

Example: `translation(random.Random(6)).asks[0]` asks for a phrase in one language.
"""

from random import Random

from .parts import Exchange, Material, as_json, bulleted, capital, fenced, listed, table

ENGLISH = (
    "good morning",
    "thank you",
    "goodbye",
    "water",
    "bread",
    "where is the station?",
    "how much is it?",
    "I do not understand",
)
PHRASES = {
    "French": (
        "bonjour",
        "merci",
        "au revoir",
        "l'eau",
        "le pain",
        "où est la gare ?",
        "combien ça coûte ?",
        "je ne comprends pas",
    ),
    "Spanish": (
        "buenos días",
        "gracias",
        "adiós",
        "el agua",
        "el pan",
        "¿dónde está la estación?",
        "¿cuánto cuesta?",
        "no entiendo",
    ),
    "German": (
        "guten Morgen",
        "danke",
        "auf Wiedersehen",
        "das Wasser",
        "das Brot",
        "wo ist der Bahnhof?",
        "wie viel kostet das?",
        "ich verstehe nicht",
    ),
    "Italian": (
        "buongiorno",
        "grazie",
        "arrivederci",
        "l'acqua",
        "il pane",
        "dov'è la stazione?",
        "quanto costa?",
        "non capisco",
    ),
    "Portuguese": (
        "bom dia",
        "obrigado",
        "adeus",
        "a água",
        "o pão",
        "onde fica a estação?",
        "quanto custa?",
        "não entendo",
    ),
    "Swedish": (
        "god morgon",
        "tack",
        "hej då",
        "vatten",
        "bröd",
        "var ligger stationen?",
        "vad kostar det?",
        "jag förstår inte",
    ),
    "Polish": (
        "dzień dobry",
        "dziękuję",
        "do widzenia",
        "woda",
        "chleb",
        "gdzie jest dworzec?",
        "ile to kosztuje?",
        "nie rozumiem",
    ),
    "Turkish": (
        "günaydın",
        "teşekkürler",
        "hoşça kal",
        "su",
        "ekmek",
        "istasyon nerede?",
        "bu ne kadar?",
        "anlamıyorum",
    ),
    "Vietnamese": (
        "chào buổi sáng",
        "cảm ơn",
        "tạm biệt",
        "nước",
        "bánh mì",
        "nhà ga ở đâu?",
        "bao nhiêu tiền?",
        "tôi không hiểu",
    ),
    "Russian": (
        "доброе утро",
        "спасибо",
        "до свидания",
        "вода",
        "хлеб",
        "где вокзал?",
        "сколько это стоит?",
        "я не понимаю",
    ),
    "Greek": (
        "καλημέρα",
        "ευχαριστώ",
        "αντίο",
        "το νερό",
        "το ψωμί",
        "πού είναι ο σταθμός;",
        "πόσο κάνει;",
        "δεν καταλαβαίνω",
    ),
    "Japanese": (
        "おはようございます",
        "ありがとう",
        "さようなら",
        "水",
        "パン",
        "駅はどこですか。",
        "いくらですか。",
        "わかりません",
    ),
    "Chinese": ("早上好", "谢谢", "再见", "水", "面包", "车站在哪里？", "多少钱？", "我不明白"),
    "Korean": (
        "좋은 아침입니다",
        "감사합니다",
        "안녕히 가세요",
        "물",
        "빵",
        "역이 어디예요?",
        "얼마예요?",
        "이해하지 못해요",
    ),
    "Arabic": ("صباح الخير", "شكرا", "مع السلامة", "ماء", "خبز", "أين المحطة؟", "كم الثمن؟", "لا أفهم"),
    "Hindi": ("सुप्रभात", "धन्यवाद", "अलविदा", "पानी", "रोटी", "स्टेशन कहाँ है?", "यह कितने का है?", "मैं नहीं समझा"),
}


def translation(rng: Random) -> Material:
    """Phrases: one, a table of several, and back into English."""
    one, two, three, four = rng.sample(list(PHRASES), 4)
    places = rng.sample(range(len(ENGLISH)), 5)
    pairs = [(ENGLISH[place], PHRASES[one][place]) for place in places]
    asks: list[Exchange] = [
        (f"How do you say “{pairs[0][0]}” in {one}?", f"In {one}: **{pairs[0][1]}**"),
        (
            f"And in {listed([two, three, four])}?",
            bulleted(f"{tongue}: {PHRASES[tongue][places[0]]}" for tongue in (two, three, four)),
        ),
        (
            f"Make me a little phrase book: {listed([f'“{english}”' for english, _ in pairs])}, in {one} and {two}.",
            table(
                ("English", one, two), [(ENGLISH[place], PHRASES[one][place], PHRASES[two][place]) for place in places]
            ),
        ),
        (f"What does “{PHRASES[three][places[1]]}” mean?", f"That is {three} for “{ENGLISH[places[1]]}”."),
        (
            f"Give me the {four} ones as JSON.",
            fenced("json", as_json({ENGLISH[place]: PHRASES[four][place] for place in places})),
        ),
        (
            f"Which of them is hardest to say in {two}?",
            (
                f"For most people the longest: “{max((PHRASES[two][p] for p in places), key=len)}”. Say it "
                "slowly, piece by piece."
            ),
        ),
    ]
    mixed = [(PHRASES[tongue][places[2]], tongue) for tongue in rng.sample(list(PHRASES), 6)]
    cards = "\n".join(f"{PHRASES[one][place]} = {ENGLISH[place]}" for place in places)
    slip = rng.choice(places)
    wrong = ENGLISH[(slip + 1) % len(ENGLISH)]
    spoiled = cards.replace(f"{PHRASES[one][slip]} = {ENGLISH[slip]}", f"{PHRASES[one][slip]} = {wrong}")
    reads: list[Exchange] = [
        (
            "Which language is each of these?\n\n" + bulleted(text for text, _ in mixed),
            bulleted(tongue for _, tongue in mixed),
        ),
        (
            "All of these mean the same. What?\n\n" + "\n".join(text for text, _ in mixed),
            f"“{capital(ENGLISH[places[2]])}”, in {listed([tongue for _, tongue in mixed])}.",
        ),
        (
            f"These are my {one} cards. One is wrong, which?\n\n{spoiled}",
            f"“{PHRASES[one][slip]}” does not mean “{wrong}”; it means “{ENGLISH[slip]}”.",
        ),
        (
            "Translate line by line into English.\n\n" + "\n".join(pair[1] for pair in pairs),
            "\n".join(pair[0] for pair in pairs),
        ),
    ]
    return Material(one, asks, reads)
