"""Write the bundled sample: conversations, and a tiny hybrid model's folder with a tokenizer trained on them.

Why: a newcomer must be able to try both programs without a download, and a test must know exactly what it reads. So the
text is our own (`sample_text/`), put together by one seeded generator, and every run gives the same bytes.

Example: `python data/sample/make_sample.py` writes into its own folder, `--out DIR` into another; it prints statistics.
"""

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from sample_model import ADDED_TOKENS, train_tokenizer, write_model_folder
from sample_text.code import data, programming
from sample_text.garden import garden
from sample_text.kitchen import cooking
from sample_text.letters import letters
from sample_text.life import daily
from sample_text.parts import Exchange, Material
from sample_text.phrases import translation
from sample_text.physics import physics
from sample_text.planets import planets
from sample_text.stories import stories
from sample_text.sums import sums
from sample_text.talk import talk
from sample_text.tools import tools
from sample_text.travel import travel
from tokenizers import Tokenizer

SEED = 20_240_607
CONVERSATIONS = 480
MAX_TURNS = 9
MAX_SUBJECTS = 20  # looked at for one conversation
MAX_SIZE = 10_800  # see `size`: keeps the longest conversation under 3,000 tokens
LONG_SHARE = 0.05  # conversations drawn from the long tail
SYSTEM_SHARE = 0.15
ASSISTANT_SHARE = 0.60  # of the characters; the user pastes a text whenever the assistant is ahead
TOPICS: tuple[Callable[[Random], Material], ...] = (
    cooking, garden, sums, physics, planets, programming, data,
    travel, tools, letters, stories, daily, translation, talk,
)  # fmt: skip
SYSTEM_TURNS = (
    "You are a helpful assistant. Answer briefly.",
    "You are a patient teacher. Show every step.",
    "Answer in plain words. Use lists where they help.",
    "You help the readers of a small library. Be friendly and exact.",
    "You are careful. If a question is unclear, say what you assume.",
    "Format:\n- short sentences\n- numbers as digits\n- no tables unless asked",
    "Reply in the language of the question.",
)
OPENINGS = ("Hi! ", "Hello! ", "Hey, quick question: ", "Good evening. ", "Please help me. ")
THANKS = ("Thanks! ", "Great. ", "Good to know. ", "I see. ", "Perfect, thank you. ", "Hm. ", "OK. ")
FAREWELLS = (
    ("Thank you! 🙏🏽", "You are welcome! 😊"),
    ("That is all, thanks.", "Glad to help. Have a good day! ☀️"),
    ("Great, bye 👋🏾", "Goodbye! 👋🏼"),
    ("👍", "😊"),
)
EDGES = (("", "\n"), ("", "  "), ("\n", ""), (" ", ""), ("\n\n", "\n\n"), ("", "\n\n\n"), ("\t", ""))


def target_size(rng: Random) -> int:
    """How long the next conversation should be: a gamma-like body and a long tail."""
    if rng.random() < LONG_SHARE:
        return rng.randint(6_400, MAX_SIZE)
    return min(int(rng.gammavariate(1.4, 800)) + 60, MAX_SIZE)


def size(exchanges: list[Exchange]) -> int:
    """About four times the tokens: UTF-8 bytes, and three more for each digit and each character outside ASCII."""
    texts = [text for exchange in exchanges for text in exchange]
    return sum(len(text.encode()) + 3 * sum(c.isdigit() or not c.isascii() for c in text) for text in texts)


def bundled(rng: Random, exchanges: list[Exchange], most: int) -> list[Exchange]:
    """The same exchanges, up to `most` asked in one breath and answered under headings."""
    result: list[Exchange] = []
    queue = list(exchanges)
    while queue:
        taken = [queue.pop(0) for _ in range(min(len(queue), rng.randint(max(1, most - 1), most)))]
        if len(taken) == 1:
            result += taken
            continue
        lead = rng.choice(["I have some questions.", f"{len(taken)} things at once:", "Let me ask it all together."])
        questions = "\n\n".join(f"({place}) {question}" for place, (question, _) in enumerate(taken, 1))
        answers = "\n\n".join(f"### {place}\n\n{answer}" for place, (_, answer) in enumerate(taken, 1))
        result.append((f"{lead}\n\n{questions}", answers))
    return result


def draft(rng: Random, topic: Callable[[Random], Material], target: int, wants_reading: bool) -> list[Exchange]:
    """Exchanges about one subject after another, until the target or the largest number of turns is reached."""
    turns: list[Exchange] = []
    subjects: set[str] = set()
    given: set[str] = set()
    for _ in range(MAX_SUBJECTS):  # drawn with repeats, which are passed over
        material = topic(rng)
        if material.subject in subjects:
            continue
        subjects.add(material.subject)
        reads = rng.sample(material.reads, len(material.reads))
        first, *asks = material.asks
        rng.shuffle(asks)
        if wants_reading and rng.random() < 0.5:
            queue = reads[:2] if turns else reads[:1]
        else:
            queue = [first, *asks[:4]]
            for read in reads[: 2 if wants_reading else 0]:
                queue.insert(rng.randint(1, len(queue)), read)
        queue = [exchange for exchange in queue if exchange[1] not in given]
        given.update(answer for _, answer in queue)
        if topic is not talk and rng.random() < (0.9 if target > 5_000 else 0.12):
            queue = bundled(rng, queue, 3 if target > 5_000 else 2)
        for exchange in queue:
            if turns and (len(turns) == MAX_TURNS or size([*turns, exchange]) > min(target * 1.15, MAX_SIZE)):
                return turns
            turns.append(exchange)
        if size(turns) > target * 0.8 or len(turns) == MAX_TURNS or topic is talk:  # one chat, one language
            break
    return turns


def spoken(rng: Random, turns: list[Exchange]) -> list[Exchange]:
    """The same exchanges as people type them: greetings, thanks, lower case, white space at the edges."""
    result: list[Exchange] = []
    for place, (asked, answered) in enumerate(turns):
        question, answer = asked, answered
        short = "\n" not in question and question.isascii() and len(question) < 160
        if short and rng.random() < 0.16:
            question = rng.choice(THANKS if place else OPENINGS) + question
        elif short and rng.random() < 0.08:
            question = question.lower().rstrip(".?") + rng.choice(["", "??", " pls"])
        if rng.random() < 0.04:
            before, after = rng.choice(EDGES)
            question = before + question + after
        if rng.random() < 0.03:
            before, after = rng.choice(EDGES)
            answer = before + answer + after
        result.append((question, answer))
    if len(turns) < MAX_TURNS and rng.random() < 0.07:
        result.append(rng.choice(FAREWELLS))
    return result


def conversation(system: str | None, turns: list[Exchange]) -> dict[str, object]:
    """One line of the file."""
    messages = [{"content": system, "role": "system"}] if system else []
    for question, answer in turns:
        messages += [{"content": question, "role": "user"}, {"content": answer, "role": "assistant"}]
    prompt = turns[0][0]
    return {"prompt": prompt, "prompt_id": hashlib.sha256(prompt.encode()).hexdigest(), "messages": messages}


def conversations(seed: int) -> list[dict[str, object]]:
    """All conversations, no two with the same first message."""
    rng = Random(seed)
    result: list[dict[str, object]] = []
    seen: set[str] = set()
    asked, answered = 0, 1
    while len(result) < CONVERSATIONS:
        topic, target = TOPICS[len(result) % len(TOPICS)], target_size(rng)
        wants_reading = answered > ASSISTANT_SHARE * (asked + answered)
        drafts = [draft(rng, topic, target, wants_reading) for _ in range(8)]
        turns = spoken(rng, min(drafts, key=lambda turns: abs(size(turns) - target)))
        if turns[0][0] in seen:
            continue
        seen.add(turns[0][0])
        system = rng.choice(SYSTEM_TURNS) if rng.random() < SYSTEM_SHARE else None
        asked += len(system or "") + sum(len(question) for question, _ in turns)
        answered += sum(len(answer) for _, answer in turns)
        result.append(conversation(system, turns))
    rng.shuffle(result)
    return result


def messages_of(line: dict[str, object]) -> list[dict[str, str]]:
    """The messages of one line."""
    messages = line["messages"]
    assert isinstance(messages, list)
    return messages


def statistics(lines: list[dict[str, object]], tokenizer: Tokenizer) -> str:
    """What the README quotes: turns, tokens as ChatML renders them, and the share that the assistant wrote."""
    lengths, written, turns, systems = [], 0, [], 0
    for line in lines:
        messages = messages_of(line)
        chat = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        lengths.append(len(tokenizer.encode(chat).ids))
        answers = [message["content"] + "<|im_end|>" for message in messages if message["role"] == "assistant"]
        written += sum(len(tokenizer.encode(answer).ids) for answer in answers)
        turns.append(sum(message["role"] == "user" for message in messages))
        systems += messages[0]["role"] == "system"
    order = sorted(lengths)
    at = {name: order[min(len(order) - 1, len(order) * part // 100)] for name, part in
          (("p10", 10), ("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99))}  # fmt: skip
    text = [len(m["content"]) for line in lines for m in messages_of(line)]
    mine = [len(m["content"]) for line in lines for m in messages_of(line) if m["role"] == "assistant"]
    return "\n".join(
        [
            f"conversations {len(lines)}, with a system turn {systems}",
            f"turns {sum(turns)}, a conversation: mean {sum(turns) / len(turns):.2f}, {min(turns)} to {max(turns)}",
            (
                f"tokens {sum(lengths)}, a conversation: mean {sum(lengths) / len(lengths):.0f}, {order[0]} "
                f"to {order[-1]}, {at}"
            ),
            f"over 1500 tokens: {sum(n > 1500 for n in lengths)}",
            f"assistant: {sum(mine) / sum(text):.3f} of the characters, {written / sum(lengths):.3f} of the tokens",
        ]
    )


def main() -> None:
    """Write everything and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder to write into (default: this one)"
    )
    out: Path = parser.parse_args().out
    lines = conversations(SEED)
    texts = [message["content"] for line in lines for message in messages_of(line)]
    for text in texts:
        if any(token in text for token in ADDED_TOKENS):
            raise ValueError(f"the text spells a token of the tokenizer: {text!r}")
    out.mkdir(parents=True, exist_ok=True)
    body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (out / "chats.jsonl").write_bytes(body.encode())
    tokenizer = train_tokenizer(texts)
    write_model_folder(out / "tiny-hybrid", tokenizer)
    print(statistics(lines, tokenizer))


if __name__ == "__main__":
    main()
