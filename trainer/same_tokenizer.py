"""Whether the ids in the shards are the ids of this model, and its chats the model's: its tokenizer and chat template against those that made them.

An id past the embedding is noticed anyway; a tokenizer of the same size whose ids mean other words is not, and the loss still falls.
`tokenizer.json` decides ids, so it is what is compared: byte for byte, and where that differs, part by part (libraries write it in their own
order and spelling, and what they add at the ends or pad to has no part in packed rows). A chat template that is another than the shards were rendered
with is refused too, since the model would be asked in other words than it learns; unless the build was given one of its own (`--chat-template`).

    for label, text in check_tokenizer(prepared, fetch=True): ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from packer.digest import digest_file
from packer.errors import UserError
from trainer.prepare import Prepared, build_noted
from trainer.source import model_file

_TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")
_PARTS = ("model", "added_tokens", "normalizer", "pre_tokenizer")


def check_tokenizer(prepared: Prepared, *, fetch: bool) -> list[tuple[str, str]]:
    """What is to be said, as (label, text); raises UserError where the model's tokenizer or chat template is not that of the shards."""
    if not prepared.config.tokenizer_check:
        return [("note", "--no-tokenizer-check: the model's tokenizer was not held against that of the shards")]
    made = prepared.corpus.fetch("tokenizer")
    ours = model_file(prepared.model, "tokenizer.json", fetch=fetch)
    if ours is None and not fetch and not Path(prepared.model).is_dir():
        return [
            ("note", f"the tokenizer of {prepared.model} is not in the hub's cache: the run fetches and compares it")
        ]
    if ours is None or not (made / "tokenizer.json").is_file():
        lacking = prepared.model if ours is None else prepared.corpus.name
        return [("note", f"{lacking} has no tokenizer.json: nothing shows that shards and model have the same ids")]
    if digest_file(ours) != digest_file(made / "tokenizer.json"):
        part = _first_difference(ours, made / "tokenizer.json")
        if part is not None:
            raise UserError(
                f"{ours}: not the tokenizer of {prepared.corpus.name} ({part} differs): its ids would mean other tokens to this model",
                "build the shards with this model's own tokenizer, or --no-tokenizer-check where the ids are known to agree",
            )
    files = [model_file(prepared.model, name, fetch=fetch) for name in _TEMPLATE_FILES]
    template, theirs = _template([made / name for name in _TEMPLATE_FILES]), _template(files)
    if template is None or theirs is None or template == theirs:
        return []
    if not build_noted(prepared.corpus, "chat_template_path"):
        raise UserError(
            f"{prepared.model}: its chat template is not the one that {prepared.corpus.name} was rendered with",
            "build the shards again with this model's tokenizer, or --no-tokenizer-check to train on them as they are",
        )
    return [
        ("note", f"{prepared.model} has another chat template than --chat-template, which the shards were built with")
    ]


def _first_difference(ours: Path, theirs: Path) -> str | None:
    one, other = _read(ours), _read(theirs)
    return next((part for part in _PARTS if _plain(one.get(part)) != _plain(other.get(part))), None)


def _read(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not readable ({error})", "restore the file, or --no-tokenizer-check") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: not a JSON object", "restore the file, or --no-tokenizer-check")
    return document


def _plain(part: object) -> object:
    """Merges are written as "a b" by older libraries and as ["a", "b"] by newer ones; what is absent is what is null or empty."""
    if not isinstance(part, dict):
        return part or None
    plain = {key: value for key, value in part.items() if value not in (None, False, "", [])}
    merges = plain.get("merges")
    if isinstance(merges, list):
        plain["merges"] = [" ".join(map(str, merge)) if isinstance(merge, list) else merge for merge in merges]
    return plain


def _template(files: Sequence[Path | None]) -> str | None:
    """The chat template in a chat_template.jinja, else in a tokenizer_config.json; None where neither has one, or one of several by name."""
    jinja, config = files
    try:
        if jinja is not None and jinja.is_file():
            return _as_compiled(jinja.read_text(encoding="utf-8"))
        said = json.loads(config.read_text(encoding="utf-8")) if config is not None else None
        found = said.get("chat_template") if isinstance(said, dict) else None
        return _as_compiled(found) if isinstance(found, str) else None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return None  # no reader of the model could take it either, and none of it decides ids


def _as_compiled(template: str) -> str:
    """What jinja makes the same of: it knows one kind of line end, and drops the last."""
    return template.replace("\r\n", "\n").removesuffix("\n")
