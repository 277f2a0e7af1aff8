"""Texts on which tokenizers disagree first, made from a tokenizer's own vocabulary: an encoder that is wrong anywhere should be wrong here.

    texts = stress_texts(backend)     # some 600 short texts, 20,000 characters: always the same ones for the same tokenizer

Encoders differ where one pre-tokenizer's regular expressions meet: `(・)and` under DeepSeek V3's, which splits kana first, punctuation with a
letter behind it second. So the texts hold every ordered pair of a wide choice of characters, and every ordered triple of those that the
pre-tokenizer tells apart. Sequences are de Bruijn's, the shortest that hold every n-gram, from the FKM algorithm (Fredricksen, Kessler and Maiorana).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from packer.tokenization.description import describe

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Representatives of what regular expressions can tell apart, of several scripts and ages: the first of a kind stands for it in the triples.
REPRESENTATIVES: dict[str, str] = {
    "lower case": "aéßſж",
    "upper case": "BÉİДΣ",
    "title case": "ǅ",
    "modifier letters": "ʰー",
    "other letters": "ªא中ひカ한ᄀกहﬁ",
    "marks": "\u0301\u0323\u093e\u20dd\ufe0f\u3099",
    "digits": "1٣",
    "letter numbers": "Ⅷ",
    "other numbers": "²½①",
    "punctuation": "_-–(（]»«“”’.,'\"¿…。「」・/\\",
    "symbols": "+<=|~$€^`¨©°🇩👍",
    "blanks": " \t\u00a0\u3000\u2009\u2028\u0085\v",
    "line ends": "\n\r",
    "controls": "\x00\x1b\x7f",
    "format characters": "\u200b\u200d\ufeff\u00ad\u0600",
    "private use and not assigned": "\ue000\u0378\U000e0001",
}
# What every pre-tokenizer is asked about, besides what its own expressions name.
_PROPERTIES = ("L", "M", "N", "P", "S")
_SETS = (frozenset("\r\n"), frozenset(" "))
_TRIPLE_SYMBOLS = 22
_SYMBOLS_PER_TEXT = 48
_TOKENS_LOOKED_AT = 4096
_TOKENS_TAKEN = 320
_FIXED = (
    "",
    # Contractions in both cases, with both apostrophes, after letters, digits, blanks.
    "It's it'S IT'LL we'Ve I'm I'D can't you're 's 'll don’t he’s o'clock 5's 'tis x'sy '’s ''s a'ſ",
    *("x" + "7" * length + "," + "9" * length for length in range(1, 8)),
    # A long s is an s to some engines that ignore case. It shows only where its bytes are merged with those that follow.
    "".join(f"'ſ{letter}" for letter in "abeinorstuzéßжαאعकनपबरहাกあカ中한ｱ"),
    # Seams: runs of blanks in front of everything that may take the last of them.
    *(
        "".join("x" + blank * length + after for length in (1, 2, 3, 4, 7, 8, 15, 16, 17, 33) for after in "a1.\n中")
        + blank
        for blank in (" ", "\t", "\n", "\u00a0", "\u3000", "\r\n", " \n")
    ),
    # Normalization: order of marks, old and new ones (Unicode 16), singletons, exclusions, Hangul, compatibility forms.
    *(
        "".join(
            "a" + first + second
            for second in "\u0301\u0323\u0338\u0345\u05b0\u3099\u0f71\u1cea\U00010d27\U0001163f\U0001e135\u1dfa\u08ca"
        )
        for first in "\u0301\u0323\u0338\u0345\u05b0\u3099\u0f71\u1ced\U00010d27\U0001163f\U0001e135\u1dfa\u08ca"
    ),
    "e\u0301 A\u030a o\u0302\u0301 \u1e9b\u0323 \u212b \u2126 \u0958 \u0dd9\u0dca \u1100\u1161\u11a8 각\u11a8 か\u3099 ﾊﾞ >\u0338 \U00016d63\U00016d67\U00016d67",
    "ﬁ ㎏ ① ｱ Ａ １ ² ª ℌ ﷺ ！ \u2026 \u00a0 \u1e9e İ ǅ ς",
    # Emoji in sequences, flags, keycaps, tags.
    "👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 👍🏽👍🏽 🇩🇪🇫🇷🇩 1️⃣ #️⃣ ☺️☺︎ 🏴\U000e0067\U000e0062\U000e007f ❤️a",
    "日本語のテキスト・テスト（例）と中文文本、한국어 텍스트 그리고 ไทยภาษา हिन्दी עִברית العَربية Ελληνικά",
    'def f(x):\n    return x**2  # comment\n\n\n{}[]();:\'"<>/\\|`~!@#$%^&*-_=+ https://a.b/c?d=e&f=%20 {"k": [1.5e-7]}',
    # Past the lengths at which encoders change their way (caches of words, chunks of texts).
    *(symbol * length for symbol in "a .\n1中_" for length in (70, 257, 600)),
    "abcdefghijklmnopqrstuvwxyz" * 45,
    "".join(map(chr, range(0x100))),
)


def stress_texts(backend: Backend) -> tuple[str, ...]:
    """Return the texts that an encoder must encode as this tokenizer does; some 20,000 characters, without any random choice."""
    description = json.dumps(describe(backend.pre_tokenizer), ensure_ascii=False)
    patterns = [json.loads(f'"{found}"') for found in re.findall(r'"Regex": "((?:\\.|[^"\\])*)"', description)]
    wide = list(dict.fromkeys((*"".join(REPRESENTATIVES.values()), *_edges(patterns))))
    return (
        *wide,
        *_all_sequences(wide, 2),
        *_all_sequences(_distinguished(wide, patterns), 3),
        *_added_token_texts(backend),
        *_token_texts(backend),
        *_FIXED,
    )


def _distinguished(characters: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """One character of each class that the expressions tell apart, and short strings that one expression takes as a whole."""
    tests = _tests(patterns)
    classes: dict[tuple[bool, ...], str] = {}
    for character in characters:
        classes.setdefault(tuple(test(character) for test in tests), character)
    return ["'s", " b", "(c", "'LL", *classes.values()][:_TRIPLE_SYMBOLS]


def _tests(patterns: Sequence[str]) -> list[Callable[[str], bool]]:
    """Every property, range and set of characters that the expressions name."""
    properties = dict.fromkeys(
        (*_PROPERTIES, *(name for pattern in patterns for name in re.findall(r"\\[pP]\{\^?(\w+)\}", pattern)))
    )
    ranges, sets = _explicit(patterns)
    return [
        str.isspace,
        *(lambda c, p=name: unicodedata.category(c).startswith(p) for name in properties),
        *(lambda c, r=pair: r[0] <= c <= r[1] for pair in ranges),
        *(lambda c, s=members: c in s for members in dict.fromkeys((*_SETS, *sets))),
    ]


def _explicit(patterns: Sequence[str]) -> tuple[list[tuple[str, str]], list[frozenset[str]]]:
    """The ranges and the sets of single characters in the expressions' brackets."""
    ranges: list[tuple[str, str]] = []
    sets: list[frozenset[str]] = []
    for inside in re.findall(r"\[\^?((?:\\.|[^\]\\])+)\]", "".join(patterns)):
        named = re.sub(r"\\[pP]\{\^?\w+\}|\\[sSdDwW]", "", inside)
        plain = re.sub(
            r"\\(.)", lambda m: {"r": "\r", "n": "\n", "t": "\t"}.get(m[1], "\ufff0" * (m[1] == "-") or m[1]), named
        )
        ranges += re.findall(r"(?s)(.)-(.)", plain)
        sets.append(frozenset(re.sub(r"(?s).-.", "", plain).replace("\ufff0", "-")))
    return list(dict.fromkeys(ranges)), sets


def _edges(patterns: Sequence[str]) -> Iterator[str]:
    """The ends of each range in the expressions, and what lies right outside."""
    for first, last in _explicit(patterns)[0]:
        for code in (ord(first) - 1, ord(first), ord(last), ord(last) + 1):
            if not 0xD800 <= code < 0xE000:
                yield chr(code)


def _all_sequences(symbols: Sequence[str], length: int) -> Iterator[str]:
    """Texts that together hold every sequence of so many symbols."""
    order = _de_bruijn(len(symbols), length)
    order += order[: length - 1]
    for start in range(0, len(order) - length + 1, _SYMBOLS_PER_TEXT):
        yield "".join(symbols[number] for number in order[start : start + _SYMBOLS_PER_TEXT + length - 1])


def _de_bruijn(count: int, length: int) -> list[int]:
    """The lexicographically least cyclic sequence that holds every word of `length` over range(count) once: Lyndon words, concatenated."""
    sequence: list[int] = []
    word = [-1]
    while word:
        word[-1] += 1
        if length % len(word) == 0:
            sequence += word
        word = [word[place % len(word)] for place in range(length)]
        while word and word[-1] == count - 1:
            word.pop()
    return sequence


def _added_token_texts(backend: Backend) -> Iterator[str]:
    """One added token of each shape (digits and runs of one character apart): glued, doubled, between blanks, and cut short at either end."""
    shapes = {
        (re.sub(r"\d+|(.)\1+", "0", token.content), token.special): token.content
        for token in backend.get_added_tokens_decoder().values()
    }
    for token in shapes.values():
        yield f"a{token}{token}b {token} {token}\n{token}  \u0301{token}(・){token[:-1]} {token[1:]}{token[:-2]}{token}"
    yield "".join(shapes.values())
    yield from (token for token in shapes.values())


def _token_texts(backend: Backend) -> Iterator[str]:
    """Tokens from all over the vocabulary, the longest and the rarest, glued to each other and apart."""
    size = backend.get_vocab_size(with_added_tokens=False)
    ids = range(0, size, max(1, size // _TOKENS_LOOKED_AT))
    by_length = sorted(ids, key=lambda token_id: len(backend.id_to_token(token_id) or ""))
    taken = [*by_length[-_TOKENS_TAKEN // 8 :], *by_length[:: max(1, len(by_length) * 8 // (_TOKENS_TAKEN * 7))]]
    tokens = [
        text for text in backend.decode_batch([[i] for i in taken], skip_special_tokens=False) if "\ufffd" not in text
    ]
    for start in range(0, len(tokens), 8):
        yield " ".join(tokens[start : start + 8])
        yield "".join(tokens[start : start + 8])
