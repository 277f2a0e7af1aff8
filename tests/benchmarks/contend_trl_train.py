"""Contender: TRL's SFTTrainer on the same examples, padded (4 a batch, to the longest) or packed with its `bfd`. Its own sampler, packing, collator,
loss, optimiser and loop.

As it comes, TRL cannot train this hybrid packed on a CPU: the library's layers raise at the boundaries that its collator hands on. So the packed
contender's model is built with our segment-aware layers and told the collator's boundaries: that is a gift of ours, and the fastest TRL can
be here. The padded contender's model is the library's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.train_input import Clock, examples


def segment_aware(source: str) -> object:
    """The model with our layers, whose backbone makes `segments` of the boundaries that TRL's collator gives."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainer.isolate import bind, isolating, register_attention
    from trainer.kernels import attention
    from trainer.segments import Segments

    config = AutoConfig.from_pretrained(source)
    with isolating(config.model_type):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=register_attention(attention.reference, "reference"), dtype=torch.float32
        )
    bind(model, "auto", torch.device("cpu"))
    backbone = model.base_model  # TRL's own loss calls it without the model's forward
    forward = backbone.forward

    def told(**options: object) -> object:
        boundaries = options.pop("cu_seq_lens_q")
        for name in ("cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "attention_mask"):
            options.pop(name, None)
        return forward(segments=Segments.from_lengths(boundaries.diff().tolist()), **options)

    backbone.forward = told
    return model


def main() -> None:
    way, shards, source, steps, capacity = sys.argv[1:6]
    import datasets
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    if way == "bfd":
        model = segment_aware(source)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)
    clock, sizes = Clock(), []

    class Counting(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            clock.step_done(sizes[clock.steps])

    with tempfile.TemporaryDirectory() as place:
        arguments = SFTConfig(
            output_dir=str(Path(place) / "out"),
            max_length=int(capacity),
            packing=way == "bfd",
            packing_strategy="bfd",
            per_device_train_batch_size=1 if way == "bfd" else 4,
            max_steps=int(steps),
            learning_rate=1e-3,
            gradient_checkpointing=False,  # ours recomputes nothing either
            logging_steps=5,
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=datasets.Dataset.from_list(examples(Path(shards))),
            processing_class=AutoTokenizer.from_pretrained(source),
            callbacks=[Counting()],
        )
        collate = trainer.data_collator

        def counted(rows: list[dict[str, list[int]]]) -> object:
            sizes.append(sum(len(row["input_ids"]) for row in rows))
            return collate(rows)

        trainer.data_collator = counted
        trainer.train()
    print(json.dumps(clock.figures()))


if __name__ == "__main__":
    main()
