"""Chats for benchmarks: real turns of ultrachat_200k joined to lengths as the whole set has them, written once.

python -m tests.benchmarks.chats /tmp/chats.jsonl --rows ROWS.jsonl --count 16000
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path


def write(path: Path, rows: Path, *, count: int, seed: int = 0) -> None:
    """`count` conversations of about 1,250 tokens: turns of the given rows, each conversation's own mixture, first words numbered."""
    source = [json.loads(line)["messages"] for line in rows.read_text(encoding="utf-8").splitlines()]
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            # Of ultrachat's modelled lengths (gamma of shape 4.2, mean 1,228 tokens) at about 4.6 characters a token.
            wanted = draw.gammavariate(4.2, 1228 / 4.2) * 4.6
            messages: list[dict[str, str]] = []
            while not messages or sum(len(message["content"]) for message in messages) < wanted:
                part = draw.choice(source)
                messages += [{"role": message["role"], "content": message["content"]} for message in part]
            messages[0] = {**messages[0], "content": f"{number}. {messages[0]['content']}"}
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--count", type=int, default=16_000)
    arguments = parser.parse_args()
    write(arguments.path, arguments.rows, count=arguments.count)


if __name__ == "__main__":
    main()
