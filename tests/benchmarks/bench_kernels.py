"""The reference kernels on a CPU: gated delta rule, short convolution and attention beside what transformers falls back to, forward and backward.

What they stand beside does not keep segments apart (the fall-backs run over boundaries; attention gets a mask over the whole row). Calls are
interleaved and the fastest of each is taken: on a shared machine the fastest is what the code costs.

python -m tests.benchmarks.bench_kernels --tokens 2048 8192 --segments 4 65
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.benchmarks.harness import add_outputs, leave, table
from trainer.kernels import attention, conv, delta, scan
from trainer.segments import Segments

THREADS = 2
Call = Callable[[], Tensor]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def delta_pair(tokens: int, segments: Segments) -> tuple[Call, Call, list[Tensor]]:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    made = [normal(1, tokens, heads, 64, seed=i) for i, heads in enumerate((4, 4, 8))]
    decay = (-F.softplus(normal(1, tokens, 8, seed=3))).detach().requires_grad_()
    strength = normal(1, tokens, 8, seed=4).sigmoid().detach().requires_grad_()

    def fallback() -> Tensor:
        # It wants as many key heads as value heads, as the layer that calls it repeats them.
        query, key = (x.repeat_interleave(2, dim=2) for x in made[:2])
        out: Tensor = torch_chunk_gated_delta_rule(
            query, key, made[2], g=decay, beta=strength, use_qk_l2norm_in_kernel=True
        )[0]
        return out

    inputs = [*made, decay, strength]
    return lambda: delta.reference(*inputs, segments=segments), fallback, inputs


def conv_pair(tokens: int, segments: Segments) -> tuple[Call, Call, list[Tensor]]:
    x, weight = normal(1, tokens, 1024, seed=0), normal(1024, 4, seed=1)

    def fallback() -> Tensor:
        out = F.conv1d(x.transpose(1, 2), weight[:, None], padding=3, groups=1024)[..., :tokens]
        return F.silu(out).transpose(1, 2)

    return lambda: conv.reference(x, weight, None, "silu", segments=segments), fallback, [x, weight]


def scan_pair(tokens: int, segments: Segments) -> tuple[Call, Call, list[Tensor]]:
    from transformers.models.bamba.modeling_bamba import mamba2_chunk_scan

    x, b, c = normal(1, tokens, 8, 64, seed=0), normal(1, tokens, 1, 64, seed=1), normal(1, tokens, 1, 64, seed=2)
    step = F.softplus(normal(1, tokens, 8, seed=3)).detach().requires_grad_()
    a, d = (-torch.arange(1.0, 9.0)).requires_grad_(), torch.ones(8).requires_grad_()

    def fallback() -> Tensor:
        out: Tensor = mamba2_chunk_scan(x, step, a, b, c, chunk_size=64, D=d)
        return out

    inputs = [x, step, a, b, c, d]
    return lambda: scan.reference(*inputs, segments=segments), fallback, inputs


def attention_pair(tokens: int, segments: Segments) -> tuple[Call, Call, list[Tensor]]:
    q, k, v = (normal(1, heads, tokens, 64, seed=i) for i, heads in enumerate((8, 2, 2)))
    ids = segments.seq_idx[0]
    mask = ((ids[:, None] == ids[None]) & torch.ones(tokens, tokens, dtype=torch.bool).tril())[None, None]

    def masked() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    return lambda: attention.reference(q, k, v, segments=segments, scale=0.125, window=None), masked, [q, k, v]


PAIRS = {
    "delta ÷ transformers' fall-back": delta_pair,
    "conv ÷ F.conv1d": conv_pair,
    "scan ÷ transformers' fall-back": scan_pair,
    "attention ÷ a mask over the row": attention_pair,
}


def seconds(call: Call, inputs: list[Tensor]) -> float:
    started = time.perf_counter()
    out = call()
    torch.autograd.grad(out, inputs, torch.ones_like(out))
    return time.perf_counter() - started


def even(tokens: int, number: int) -> Segments:
    """`number` segments, as equal as they can be and none on a chunk's edge by design."""
    lengths = [tokens // number] * number
    lengths[-1] += tokens - sum(lengths)
    return Segments.from_lengths(lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--segments", type=int, nargs="+", default=[4, 65])
    parser.add_argument("--repeats", type=int, default=5)
    add_outputs(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    lines = []
    for name, pair in PAIRS.items():
        for tokens in arguments.tokens:
            for number in arguments.segments:
                ours, theirs, inputs = pair(tokens, even(tokens, number))
                for call in (ours, theirs):
                    seconds(call, inputs)  # memory of both is touched once before either is timed
                taken = [(seconds(ours, inputs), seconds(theirs, inputs)) for _ in range(arguments.repeats)]
                mine, other = min(own for own, _ in taken), min(own for _, own in taken)
                lines.append([name, f"{tokens:,}", str(number), f"{mine:.3f}", f"{other:.3f}", f"{mine / other:.2f}"])
                rows.append({"name": name, "tokens": tokens, "segments": number, "ratio": mine / other})
    leave(
        arguments,
        {"ratios": rows},
        table(["forward and backward", "tokens", "segments", "ours, s", "theirs, s", "ratio"], lines),
    )


if __name__ == "__main__":
    main()
