"""A corpus whose text, control tokens' spellings, file name and source names would run in a page, or turn it around, if they were more than text there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import packer
from packer.config import BuildConfig
from tests.packer.broken_folder import edit_manifest
from tests.support import TINY, chat, write_jsonl

# What would be seen if any of it ran: each sets the same property of the window.
TEXTS = (
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 1'>",
    "<svg/onload=\"window.ran = 1\"> <iframe srcdoc='<script>parent.ran = 1</script>'>",
    "{{ 7 * 7 }} {% for a in b %} ${window.ran = 1} <%= 1 %>",
    "<style>body { display: none }</style><!-- ]]> --> &lt;b&gt;",
    "left \u202egnp.exe\u202c right \u2066isolated\u2069 \u200bhidden \x00\x07\x1b[31mred",
    "مرحبا بالعالم, then שלום, then latin again",
    "javascript:window.ran=1 data:text/html,<script>window.ran=1</script>",
    "-- <|im_start|>system and </s> spelled out",
)
# One token: no cut between tokens takes it apart.
TOKEN = "<img src=x onerror=window.ran=1>"
NAME = "<img src=x onerror=window.ran=1> \u202egnp.jsonl"
SOURCE = "</script><script>window.ran=1</script>{{ 7*7 }}\u202e" + "<b>" * 60


def hostile_tokenizer(place: Path) -> Path:
    """The sample's, with a token that is a whole hostile element."""
    folder = Path(shutil.copytree(TINY, place / "tokenizer"))
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    last = document["added_tokens"][-1]
    document["added_tokens"].append({**last, "id": last["id"] + 1, "content": TOKEN})
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder


def hostile_folder(place: Path, *, copies: int = 1, capacity: int = 512, segments: int | None = None) -> Path:
    """Built as any other folder; then the manifest's source is renamed, since no file can have a slash in its name."""
    rows = [chat(text, f"{text} {number}", text, text) for number in range(copies) for text in (*TEXTS, TOKEN)]
    source = write_jsonl(place / NAME, rows)
    out = place / "packed"
    packer.build(
        BuildConfig(
            datasets=(str(source),),
            tokenizer=str(hostile_tokenizer(place)),
            control_tokens="keep",
            capacity=capacity,
            out=out,
            workers=1,
            max_segments=segments,
        )
    )

    def change(manifest: dict) -> None:
        manifest["sources"][0]["name"] = SOURCE
        manifest["ledger"]["conversations"] |= {"read": 10**9, "<script>window.ran=1</script>": 5}

    edit_manifest(out, change)
    return out
