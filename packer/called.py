"""What options are called elsewhere, so that a name brought from another trainer or packer is answered with the one it has here.

nearest_option("--learning-rte", ["--lr", "--seed"])     # "--lr", by way of learning-rate
nearest_option("tensor_paralel", ["tensor_parallel"])    # "tensor_parallel"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# By the name here, without dashes in front: the names in TRL and transformers, axolotl, LLaMA-Factory, torchtitan, Megatron and NeMo.
_ELSEWHERE = {
    "shards": "dataset dataset-path dataset-name data data-path train-data train-file",
    "model": "model-name-or-path model-name base-model pretrained-model-name-or-path",
    "steps": "max-steps num-steps train-steps train-iters",
    "epochs": "num-train-epochs num-epochs max-epochs",
    "rows-per-step": "batch-size global-batch-size train-batch-size gradient-accumulation-steps grad-accum",
    "micro-rows": "micro-batch-size per-device-train-batch-size per-device-batch-size local-batch-size",
    "lr": "learning-rate max-lr peak-lr",
    "warmup": "warmup-steps warmup-ratio warmup-iters lr-warmup-iters",
    "schedule": "lr-scheduler-type lr-scheduler scheduler lr-decay-style",
    "betas": "adam-beta1 adam-beta2 adam-betas",
    "clip": "max-grad-norm max-norm clip-grad gradient-clipping grad-clip",
    "dtype": "bf16 fp16 mixed-precision torch-dtype precision",
    "activation-checkpointing": "gradient-checkpointing recompute recompute-activations",
    "compile": "torch-compile",
    "kernels": "attn-implementation flash-attention use-flash-attn use-liger use-liger-kernel",
    "cpu-offload": "offload offload-optimizer offload-params",
    "save-every": "save-steps save-interval save-freq checkpoint-interval",
    "eval-every": "eval-steps eval-interval eval-freq",
    "log-every": "logging-steps log-interval log-freq",
    "keep": "save-total-limit keep-latest-k",
    "out": "output-dir output save-dir output-path",
    "resume": "resume-from-checkpoint resume-from load-checkpoint",
    "tracker": "report-to logger",
    "router-aux-loss": "router-aux-loss-coef moe-aux-loss-coeff aux-loss-coef",
    "seed": "random-seed data-seed manual-seed",
    "context-parallel": "cp context-parallel-size cp-size ulysses-size",
    "sequence-parallel": "sp sequence-parallel-size",
    "tensor-parallel": "tp tensor-parallel-size tensor-model-parallel-size",
    "pipeline-parallel": "pp pipeline-parallel-size pipeline-model-parallel-size",
    "lora": "use-lora use-peft peft lora-r lora-rank qlora",
    "packing": "sample-packing use-packing",
    "capacity": "max-seq-length max-seq-len max-length seq-length seq-len sequence-len cutoff-len pack-length block-size",
    "max-segments": "max-sequences-per-pack",
    "tokenizer": "tokenizer-name-or-path tokenizer-name tokenizer-path tokenizer-model",
    "workers": "num-proc num-workers dataset-num-proc preprocessing-num-workers processes",
    "eval-fraction": "val-set-size val-size eval-ratio test-size validation-split",
    "strategy": "packing-strategy",
    "limit": "max-samples max-train-samples max-examples",
    "train-on": "train-on-inputs completion-only-loss assistant-only-loss mask-history",
    "mix": "interleave-probs mixture weights",
    "format": "dataset-format prompt-format",
}
_HERE = {other: here for here, others in _ELSEWHERE.items() for other in others.split()}


def nearest_option(word: str, options: Iterable[str]) -> str | None:
    """The option, spelled as in `options`, that a name which is none of them most likely meant: mistyped, or called so elsewhere. None: no idea."""
    known = {_plain(option): option for option in options}
    also = {other: known[here] for other, here in _HERE.items() if here in known}
    names = {**also, **known}
    typed = _plain(word)
    # Of a short word one letter is a large part.
    found = difflib.get_close_matches(typed, list(names), n=1, cutoff=0.8 if len(typed) <= 3 else 0.65)
    return names[found[0]] if found else None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()
