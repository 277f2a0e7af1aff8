"""Contender: what TRL's SFTTrainer does to the same chats before it trains: chat template with assistant mask, then bfd packing. Its own code, run by
making the trainer (a model of a few parameters). Prints tokens, the seconds of the preparation, and start-up."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.perf_counter()


def main() -> None:
    data, tokenizer_folder, processes, limit = sys.argv[1:5]
    import datasets
    import torch
    import trl
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    # Only its own training templates carry the tags that its assistant mask needs.
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja").read_text(
        encoding="utf-8"
    )
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", data_files=data, split="train", cache_dir=cache)
        rows = rows.select(range(min(int(limit), len(rows))))
        arguments = SFTConfig(
            output_dir=str(Path(cache) / "out"),
            assistant_only_loss=True,
            packing=True,
            packing_strategy="bfd",
            max_length=8192,
            dataset_num_proc=int(processes),
            report_to="none",
            bf16=False,
            use_cpu=True,
        )
        ready = time.perf_counter()
        trainer = SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
        seconds = time.perf_counter() - ready
        tokens = sum(len(row["input_ids"]) for row in trainer.train_dataset)
    print(json.dumps({"tokens": tokens, "seconds": seconds, "start": ready - STARTED}))


if __name__ == "__main__":
    main()
