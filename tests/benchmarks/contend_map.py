"""Contender: the usual script of a few lines: `datasets.map` over `apply_chat_template` with the assistant mask, then `save_to_disk`. It does not pack.
Prints tokens, the seconds of map and save, and start-up."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.perf_counter()


def main() -> None:
    data, tokenizer_folder, processes, limit = sys.argv[1:5]
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    spec = importlib.util.find_spec("trl")
    if spec is not None and spec.origin is not None:
        # A template with generation tags, which the mask needs; the one that TRL trains with, so that both do the same.
        template = Path(spec.origin).parent / "chat_templates" / "qwen3_training.jinja"
        tokenizer.chat_template = template.read_text(encoding="utf-8")

    def encode(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer.apply_chat_template(
            rows["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": encoded["input_ids"], "assistant_masks": encoded["assistant_masks"]}

    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", data_files=data, split="train", cache_dir=cache)
        rows = rows.select(range(min(int(limit), len(rows))))
        ready = time.perf_counter()
        done = rows.map(encode, batched=True, num_proc=int(processes), remove_columns=rows.column_names)
        done.save_to_disk(str(Path(cache) / "saved"))
        seconds = time.perf_counter() - ready
        tokens = sum(len(row) for row in done["input_ids"])
    print(json.dumps({"tokens": tokens, "seconds": seconds, "start": ready - STARTED}))


if __name__ == "__main__":
    main()
