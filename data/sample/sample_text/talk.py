"""Small talk held wholly in one of ten languages other than English.

Why: whole messages in one script, so that long runs of it occur.

Example: `talk(random.Random(6)).asks[0][0]` is a question in one of them.
"""

from random import Random

from .parts import Exchange, Material

# Each: sum question and answer with {a} {b} {c}; capital question and answer with {land} {city}; lands; and small talk.
TALK: dict[str, tuple[Exchange, Exchange, tuple[tuple[str, str], ...], tuple[Exchange, ...]]] = {
    "fr": (
        ("Combien font {a} plus {b} ?", "{a} plus {b} font {c}."),
        ("Quelle est la capitale de {land} ?", "La capitale de {land} est {city}."),
        (("la Suède", "Stockholm"), ("l'Égypte", "Le Caire"), ("la Corée du Sud", "Séoul"), ("la Norvège", "Oslo")),
        (
            (
                "Que puis-je faire un dimanche de pluie ?",
                (
                    "Faites une soupe, lisez un bon livre ou écrivez une lettre à un vieil ami. Et si la "
                    "pluie s'arrête, allez marcher : l'air sent bon après l'orage. ☔"
                ),
            ),
            (
                "Comment garder le pain frais ?",
                (
                    "Gardez-le dans un linge propre, à l'abri de la lumière, et coupez-le seulement au "
                    "moment de manger. Le pain dur fait encore du très bon pain perdu."
                ),
            ),
            (
                "Écris une phrase sur l'automne.",
                "Les feuilles tombent une à une, comme des lettres que l'été aurait oublié d'envoyer.",
            ),
        ),
    ),
    "es": (
        ("¿Cuánto es {a} más {b}?", "{a} más {b} es {c}."),
        ("¿Cuál es la capital de {land}?", "La capital de {land} es {city}."),
        (("Grecia", "Atenas"), ("Suecia", "Estocolmo"), ("Chile", "Santiago"), ("Japón", "Tokio")),
        (
            (
                "¿Cómo se hace una tortilla de patatas?",
                (
                    "Fríe despacio las patatas con la cebolla, mézclalas con seis huevos batidos y cuájalo "
                    "todo en la sartén. Dale la vuelta con un plato, ¡sin miedo!"
                ),
            ),
            (
                "Dame un consejo para aprender idiomas.",
                "Diez minutos cada día valen más que dos horas el domingo. Habla en voz alta, aunque estés solo. 🗣️",
            ),
            (
                "¿Por qué el cielo es azul?",
                (
                    "Porque el aire dispersa mucho más la luz azul que la roja, y así el azul nos llega "
                    "desde todas partes."
                ),
            ),
        ),
    ),
    "de": (
        ("Wie viel ist {a} plus {b}?", "{a} plus {b} ist {c}."),
        ("Wie heißt die Hauptstadt von {land}?", "Die Hauptstadt von {land} heißt {city}."),
        (("Ungarn", "Budapest"), ("Finnland", "Helsinki"), ("Österreich", "Wien"), ("Kanada", "Ottawa")),
        (
            (
                "Wann säe ich Möhren?",
                (
                    "Von März bis Juli, einen Zentimeter tief, in lockere Erde. Nach etwa vierzehn Wochen "
                    "können Sie ernten. 🥕"
                ),
            ),
            (
                "Wie schreibe ich eine höfliche Absage?",
                (
                    "Danken Sie zuerst, sagen Sie dann klar und in einem Satz ab, und schließen Sie mit "
                    "einem guten Wunsch. Mehr braucht es nicht."
                ),
            ),
            ("Erkläre mir den Hebel in einem Satz.", "Ein langer Arm spart Kraft und kostet dafür Weg."),
        ),
    ),
    "ru": (
        ("Сколько будет {a} плюс {b}?", "{a} плюс {b} будет {c}."),
        ("Как называется столица страны {land}?", "Столица страны {land} — {city}."),
        (("Япония", "Токио"), ("Франция", "Париж"), ("Египет", "Каир"), ("Греция", "Афины")),
        (
            (
                "Как заварить хороший чай?",
                (
                    "Согрейте чайник, положите ложку чая на чашку, залейте кипятком и подождите четыре "
                    "минуты. Сахар и лимон — по вкусу. 🫖"
                ),
            ),
            (
                "Почему лёд плавает?",
                "Потому что лёд легче воды: при замерзании вода расширяется примерно на девять процентов.",
            ),
            ("Напиши предложение о зиме.", "Снег лежит на крышах, и весь город говорит шёпотом."),
        ),
    ),
    "el": (
        ("Πόσο κάνει {a} συν {b};", "{a} συν {b} κάνει {c}."),
        ("Ποια πόλη είναι η πρωτεύουσα στη χώρα «{land}»;", "Στη χώρα «{land}» πρωτεύουσα είναι η πόλη «{city}»."),
        (("Ιταλία", "Ρώμη"), ("Γαλλία", "Παρίσι"), ("Ισπανία", "Μαδρίτη"), ("Ιαπωνία", "Τόκιο")),
        (
            (
                "Τι να μαγειρέψω σήμερα;",
                "Μια φασολάδα: φασόλια, καρότα, κρεμμύδι, ντομάτα και καλό λάδι. Θέλει χρόνο, αλλά λίγη δουλειά.",
            ),
            ("Γράψε μια πρόταση για τη θάλασσα.", "Η θάλασσα το πρωί είναι σαν σελίδα που δεν έγραψε ακόμη κανείς. 🌊"),
        ),
    ),
    "ja": (
        ("{a}足す{b}はいくつですか。", "{a}足す{b}は{c}です。"),
        ("{land}の首都はどこですか。", "{land}の首都は{city}です。"),
        (("フランス", "パリ"), ("イタリア", "ローマ"), ("エジプト", "カイロ"), ("韓国", "ソウル")),
        (
            (
                "おいしいお茶のいれ方を教えてください。",
                "お湯を少し冷まして、茶葉に静かに注ぎ、一分ほど待ちます。最後の一滴まで注いでください。🍵",
            ),
            ("春について一文書いてください。", "桜の花が散ると、川の水まで春の色になります。"),
            ("なぜ空は青いのですか。", "空気が青い光を赤い光よりもずっと強く散らすからです。"),
        ),
    ),
    "zh": (
        ("{a}加{b}等于多少？", "{a}加{b}等于{c}。"),
        ("{land}的首都是哪里？", "{land}的首都是{city}。"),
        (("法国", "巴黎"), ("日本", "东京"), ("埃及", "开罗"), ("希腊", "雅典")),
        (
            (
                "怎样煮好一碗米饭？",
                "先把米洗两遍，水比米高出一个指节，大火煮开后改小火，十五分钟后关火，再焖五分钟。🍚",
            ),
            ("写一句关于月亮的话。", "月亮走得很慢，好像在等每一个晚回家的人。"),
            ("为什么冰会浮在水上？", "因为水结冰时体积变大，所以冰比水轻。"),
        ),
    ),
    "ko": (
        ("{a} 더하기 {b}는 얼마예요?", "{a} 더하기 {b}는 {c}입니다."),
        ("나라 이름이 {land}일 때 수도는 어디예요?", "{land}의 수도는 {city}입니다."),
        (("프랑스", "파리"), ("일본", "도쿄"), ("이집트", "카이로"), ("그리스", "아테네")),
        (
            (
                "비 오는 날에는 무엇을 하면 좋을까요?",
                "따뜻한 차를 마시면서 책을 읽어 보세요. 비가 그치면 산책도 좋습니다. 🌧️",
            ),
            ("가을에 대해 한 문장 써 주세요.", "가을 하늘은 높고, 마음은 그보다 조금 더 높습니다."),
        ),
    ),
    "ar": (
        ("كم يساوي {a} زائد {b}؟", "{a} زائد {b} يساوي {c}."),
        ("ما هي عاصمة {land}؟", "عاصمة {land} هي {city}."),
        (("مصر", "القاهرة"), ("فرنسا", "باريس"), ("اليابان", "طوكيو"), ("المغرب", "الرباط")),
        (
            ("كيف أحضّر الشاي بالنعناع؟", "اغلِ الماء، أضف الشاي والسكر، ثم ضع النعناع الطازج واتركه خمس دقائق. 🌿"),
            ("اكتب جملة عن البحر.", "البحر كتاب مفتوح، وكل موجة فيه سطر جديد."),
        ),
    ),
    "hi": (
        ("{a} और {b} का योग कितना है?", "{a} और {b} का योग {c} है।"),
        ("{land} की राजधानी क्या है?", "{land} की राजधानी {city} है।"),
        (("भारत", "नई दिल्ली"), ("जापान", "टोक्यो"), ("मिस्र", "काहिरा"), ("नेपाल", "काठमांडू")),
        (
            (
                "अच्छी चाय कैसे बनाएँ?",
                ("पानी में अदरक उबालें, चाय पत्ती और दूध डालें, फिर तीन मिनट तक पकाएँ। चीनी स्वाद के अनुसार। ☕"),
            ),
            ("बारिश पर एक वाक्य लिखिए।", "पहली बारिश में मिट्टी की खुशबू सबसे पुरानी कविता है।"),
        ),
    ),
}


def talk(rng: Random) -> Material:
    """A chat held wholly in one language other than English."""
    tongue = rng.choice(list(TALK))
    plus, where, lands, small = TALK[tongue]
    asks: list[Exchange] = list(small)
    for land, city in rng.sample(lands, 3):
        asks.append((where[0].format(land=land), where[1].format(land=land, city=city)))
    for _ in range(3):
        left, right = rng.randint(2, 99), rng.randint(2, 99)
        asks.append((plus[0].format(a=left, b=right), plus[1].format(a=left, b=right, c=left + right)))
    rng.shuffle(asks)
    many = [(rng.randint(2, 99), rng.randint(2, 99)) for _ in range(6)]
    reads: list[Exchange] = [
        (
            "\n".join(plus[0].format(a=left, b=right) for left, right in many),
            "\n".join(str(left + right) for left, right in many),
        ),
        ("\n".join(where[0].format(land=land) for land, _ in lands), "\n".join(city for _, city in lands)),
    ]
    return Material(tongue, asks, reads)
