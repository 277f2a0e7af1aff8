"""Programming: small tasks in several languages, data as JSON, CSV, SQL and XML.

Why: code has its own spacing, brackets and rare characters, and chats about code paste a lot of it.

Example: `programming(random.Random(3)).asks[0][1]` is a function in a fenced block with a sentence about it.
"""

from random import Random
from typing import NamedTuple

from .parts import Material, as_json, bulleted, fenced, listed, numbered, table


class Task(NamedTuple):
    """A function, what it does, how to try it, and a classic slip (right, wrong, why) in Python."""

    wish: str
    how: str
    code: dict[str, str]
    trial: tuple[str, str]
    slip: tuple[str, str, str]


TASKS = (
    Task(
        "finds the greatest common divisor of two whole numbers",
        "Euclid's idea: replace the larger number by the remainder until nothing is left.",
        {
            "python": "def gcd(a: int, b: int) -> int:\n    while b:\n        a, b = b, a % b\n    return a",
            "javascript": "function gcd(a, b) {\n  while (b !== 0) {\n    [a, b] = [b, a % b];\n  }\n  return a;\n}",
            "rust": "fn gcd(mut a: u64, mut b: u64) -> u64 {\n    while b != 0 {\n        (a, b) = (b, a % "
            "b);\n    }\n    a\n}",
            "go": "func gcd(a, b int) int {\n\tfor b != 0 {\n\t\ta, b = b, a%b\n\t}\n\treturn a\n}",
            "c": "int gcd(int a, int b) {\n    while (b != 0) {\n        int rest = a % b;\n        a = b;\n  "
            "      b = rest;\n    }\n    return a;\n}",
        },
        ("gcd(84, 36)", "12"),
        (
            "a, b = b, a % b",
            "a = b\n        b = a % b",
            "after `a = b` the old value of `a` is lost, so the remainder is always 0",
        ),
    ),
    Task(
        "counts how often each word occurs in a text",
        "It goes through the words once and keeps a count for each in a map.",
        {
            "python": "def count_words(text: str) -> dict[str, int]:\n    counts: dict[str, int] = {}\n    for "
            "word in text.lower().split():\n"
            "        counts[word] = counts.get(word, 0) + 1\n    return counts",
            "javascript": "function countWords(text) {\n  const counts = new Map();\n  for (const word of "
            "text.toLowerCase().split(/\\s+/)) {\n"
            "    counts.set(word, (counts.get(word) ?? 0) + 1);\n  }\n  return counts;\n}",
            "rust": "use std::collections::HashMap;\n\nfn count_words(text: &str) -> HashMap<String, usize> "
            "{\n    let mut counts = HashMap::new();\n"
            "    for word in text.split_whitespace() {\n        "
            "*counts.entry(word.to_lowercase()).or_insert(0) += 1;\n    }\n    counts\n}",
            "go": "func countWords(text string) map[string]int {\n\tcounts := map[string]int{}\n\tfor _, word "
            ":= range strings.Fields(strings.ToLower(text)) {\n"
            "\t\tcounts[word]++\n\t}\n\treturn counts\n}",
        },
        ('count_words("the cat and the dog")["the"]', "2"),
        (
            "counts.get(word, 0) + 1",
            "counts[word] + 1",
            "the first time a word is met it has no entry yet, and that raises `KeyError`",
        ),
    ),
    Task(
        "checks whether a word is a palindrome",
        "It compares the word with itself read backwards, without regard to case.",
        {
            "python": "def is_palindrome(word: str) -> bool:\n    word = word.lower()\n    return word == word[::-1]",
            "javascript": "function isPalindrome(word) {\n  const w = word.toLowerCase();\n  return w === "
            '[...w].reverse().join("");\n}',
            "rust": "fn is_palindrome(word: &str) -> bool {\n    let w = word.to_lowercase();\n    "
            "w.chars().eq(w.chars().rev())\n}",
            "c": "bool is_palindrome(const char *w) {\n    size_t i = 0, j = strlen(w);\n    while (i + 1 < j) {\n"
            "        if (tolower(w[i++]) != tolower(w[--j])) return false;\n    }\n    return true;\n}",
        },
        ('is_palindrome("Level")', "True"),
        (
            "word = word.lower()",
            "word.lower()",
            "strings cannot be changed in place; the lower-case copy is thrown away",
        ),
    ),
    Task(
        "gives the n-th Fibonacci number",
        "Two variables walk along the sequence, so it takes n steps and no memory to speak of.",
        {
            "python": "def fibonacci(n: int) -> int:\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = "
            "b, a + b\n    return a",
            "javascript": "function fibonacci(n) {\n  let [a, b] = [0n, 1n];\n  for (let i = 0; i < n; i++) "
            "{\n    [a, b] = [b, a + b];\n  }\n  return a;\n}",
            "go": "func fibonacci(n int) int {\n\ta, b := 0, 1\n\tfor i := 0; i < n; i++ {\n\t\ta, b = b, "
            "a+b\n\t}\n\treturn a\n}",
            "haskell": "fibonacci :: Int -> Integer\nfibonacci n = sequence !! n\n  where sequence = 0 : 1 : "
            "zipWith (+) sequence (tail sequence)",
        },
        ("fibonacci(10)", "55"),
        (
            "range(n)",
            "range(n - 1)",
            "the loop runs one time too few, so every answer is the number before the one you want",
        ),
    ),
    Task(
        "finds a number in a sorted list by halving the range",
        "Each look at the middle throws away half of what is left: a million items need at most twenty looks.",
        {
            "python": "def find(items: list[int], wanted: int) -> int | None:\n    low, high = 0, len(items)\n "
            "   while low < high:\n"
            "        middle = (low + high) // 2\n        if items[middle] < wanted:\n            low = "
            "middle + 1\n        else:\n"
            "            high = middle\n    return low if low < len(items) and items[low] == wanted else None",
            "java": "static int find(int[] items, int wanted) {\n    int low = 0, high = items.length;\n    "
            "while (low < high) {\n"
            "        int middle = (low + high) >>> 1;\n        if (items[middle] < wanted) low = middle "
            "+ 1;\n        else high = middle;\n    }\n"
            "    return low < items.length && items[low] == wanted ? low : -1;\n}",
            "rust": "fn find(items: &[i32], wanted: i32) -> Option<usize> {\n    items.binary_search(&wanted).ok()\n}",
        },
        ("find([2, 3, 5, 7, 11], 7)", "3"),
        (
            "low = middle + 1",
            "low = middle",
            "with two items left `middle` equals `low`, nothing changes and the loop never ends",
        ),
    ),
    Task(
        "turns seconds into hours, minutes and seconds",
        "Two divisions with remainder do it.",
        {
            "python": "def clock(seconds: int) -> str:\n    minutes, seconds = divmod(seconds, 60)\n    hours, "
            'minutes = divmod(minutes, 60)\n    return f"{hours}:{minutes:02}:{seconds:02}"',
            "javascript": 'function clock(s) {\n  const pad = (n) => String(n).padStart(2, "0");\n  return '
            "`${Math.floor(s / 3600)}:${pad(Math.floor(s / 60) % 60)}:${pad(s % 60)}`;\n}",
            "bash": 'clock() {\n  printf "%d:%02d:%02d\\n" $(($1 / 3600)) $(($1 / 60 % 60)) $(($1 % 60))\n}',
        },
        ("clock(3725)", "'1:02:05'"),
        (
            "divmod(minutes, 60)",
            "divmod(seconds, 60)",
            "the hours are taken from what is left of the seconds, so they are always 0",
        ),
    ),
)
NAMES = {
    "python": "Python",
    "javascript": "JavaScript",
    "rust": "Rust",
    "go": "Go",
    "c": "C",
    "haskell": "Haskell",
    "java": "Java",
    "bash": "Bash",
}


def programming(rng: Random) -> Material:
    """One small function: written, explained, tested, ported, mended."""
    task = rng.choice(TASKS)
    one, two = rng.sample(list(task.code), 2)
    right, wrong, why = task.slip
    python = task.code["python"]
    call, result = task.trial
    asks = [
        (
            rng.choice(
                [
                    f"Write a function in {NAMES[one]} that {task.wish}.",
                    (
                        f"I am learning {NAMES[one]}. Could you show me a function that {task.wish}, and say "
                        "in a sentence how it works?"
                    ),
                    f"{NAMES[one].lower()} function that {task.wish}",
                ]
            ),
            f"{fenced(one, task.code[one])}\n\n{task.how}",
        ),
        (f"And the same in {NAMES[two]}?", f"In {NAMES[two]}:\n\n{fenced(two, task.code[two])}"),
        (
            "How do I test the Python version?",
            (
                f"With one line that must hold:\n\n{fenced('python', f'assert {call} == {result}')}\n\nIf it "
                "says nothing, all is well."
            ),
        ),
        ("Why does it work?", task.how),
        (
            "What should I look out for?",
            f"The classic slip is to write\n\n{fenced('python', wrong)}\n\nwhere it should be `{right}`: {why}.",
        ),
    ]
    reads = [
        (
            (
                f"This should be a function that {task.wish}, but it does not work. What is "
                f"wrong?\n\n{fenced('python', python.replace(right, wrong))}"
            ),
            f"Here {why}. Write `{right}` in its place.",
        ),
        (f"What does this do?\n\n{fenced(two, task.code[two])}", f"It is a function that {task.wish}. {task.how}"),
        (
            (
                f"Please review this, it is the first {NAMES[one]} I ever "
                f"wrote:\n\n{fenced(one, task.code[one])}\n\nIs it right, and is it fast enough?"
            ),
            f"It is right. {task.how} I would add a test and a comment, and leave the rest as it is. 🎉",
        ),
        (f"What does `{call}` give?\n\n{fenced('python', python)}", f"`{result}`"),
    ]
    return Material(task.wish, asks, reads)


PEOPLE = ("Ana", "Björn", "Chloé", "Dmitri", "Eun-ji", "Fatima", "Giorgos", "Hana", "Iván", "Jasmine", "Kofi", "Łucja")
TOWNS = ("Porto", "Malmö", "Genève", "Kraków", "Izmir", "Nairobi", "Osaka", "Leeds")


def data(rng: Random) -> Material:
    """A little table of people: as JSON, CSV, XML, SQL and in words."""
    rows = [(name, rng.choice(TOWNS), rng.randint(18, 79)) for name in rng.sample(PEOPLE, rng.randint(3, 7))]
    prose = " ".join(f"{name} is {age} and lives in {town}." for name, town, age in rows)
    records = [{"name": name, "town": town, "age": age} for name, town, age in rows]
    csv = "name,town,age\n" + "\n".join(f"{name},{town},{age}" for name, town, age in rows)
    xml = (
        "<people>\n"
        + "\n".join(f'  <person age="{age}" town="{town}">{name}</person>' for name, town, age in rows)
        + "\n</people>"
    )
    oldest = max(rows, key=lambda row: row[2])
    limit = rng.choice([25, 30, 40, 50])
    over = [name for name, _, age in rows if age > limit] or ["nobody"]
    town = rows[0][1]
    tag = rng.choice(["thinking", "plan", "scratchpad", "reasoning"])
    total = sum(age for _, _, age in rows)
    asks = [
        (
            f"How do I get everybody over {limit} from a table `people` in SQL, oldest first?",
            fenced("sql", f"SELECT name, town, age\nFROM people\nWHERE age > {limit}\nORDER BY age DESC;")
            + "\n\n`WHERE` picks the rows and `ORDER BY … DESC` puts the oldest first.",
        ),
        (
            f"And how many live in {town}?",
            fenced("sql", f"SELECT count(*) AS people\nFROM people\nWHERE town = '{town}';"),
        ),
        (
            f"What is the tag <{tag}> for in the answers of some programs?",
            (
                f"What stands between `<{tag}>` and `</{tag}>` is a draft for the program itself; what "
                "follows it is meant for you. It is plain text like any other. "
                "In XML every tag that is opened must be closed, in the reverse order."
            ),
        ),
        (
            "Is `<br/>` the same as `<br></br>`?",
            (
                "In XML yes: `<br/>` is the short form of an empty element. In HTML write `<br>`, because "
                "there the element has no closing tag."
            ),
        ),
        (
            "Show me the same question in Python, on a list of dicts.",
            fenced(
                "python",
                f'older = sorted((p for p in people if p["age"] > {limit}), key=lambda p: p["age"], reverse=True)',
            ),
        ),
    ]
    reads = [
        (f"Turn this into JSON: {prose}", fenced("json", as_json(records))),
        (
            f"Turn this JSON into a table.\n\n{as_json(records)}",
            table(("Name", "Town", "Age"), [(n, t, str(y)) for n, t, y in rows]),
        ),
        (f"{fenced('csv', csv)}\n\nWho is the oldest?", f"{oldest[0]}, who is {oldest[2]} and lives in {oldest[1]}."),
        (f"Who is over {limit}?\n\n{fenced('json', as_json(records))}", f"{listed(over)}."),
        (f"{fenced('xml', xml)}\n\nWrite it as CSV.", fenced("csv", csv)),
        (f"Name the people in this XML, one a line:\n\n{xml}", bulleted(name for name, _, _ in rows)),
        (
            f"Answer in the form <{tag}>…</{tag}><answer>…</answer>. What is the sum of the ages?\n\n{prose}",
            f"<{tag}>{' + '.join(str(age) for _, _, age in rows)} = {total}</{tag}>\n<answer>{total}</answer>",
        ),
        (
            f"Sort them by age, youngest first.\n\n{csv}",
            numbered(f"{n} ({y})" for n, _, y in sorted(rows, key=lambda r: (r[2], r[0]))),
        ),
    ]
    return Material(prose, asks, reads)
