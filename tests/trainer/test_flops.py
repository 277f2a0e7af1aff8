"""What a step's arithmetic is counted as, against numbers worked out by hand for each kind of layer, and against torch's own counter.

The models are those of `tiny_models`: hidden 32, MLP 48, 4 query and 2 key heads of width 8, a vocabulary of 61, two layers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.tiny_models import VOCABULARY, packed_model
from trainer.flops import Attention, Flops, flops_of, peak_flops, peak_of, squares, told
from trainer.isolate import SHAPE
from trainer.segments import Segments

# q 32·32 + k 32·16 + v 32·16 + o 32·32, and three matrices of an MLP.
ATTENTION, MLP = 1024 + 512 + 512 + 1024, 3 * 32 * 48
# One layer of full attention, a unit of Σ length²: 3 · 4 heads · (8 + 8).
SQUARE = 192.0
BY_HAND: dict[str, tuple[float, tuple[Attention, ...]]] = {
    "qwen3": (6.0 * 2 * (ATTENTION + MLP), (Attention(window=None, square=2 * SQUARE),)),
    # The same layers, every one with a window of 7.
    "mistral": (6.0 * 2 * (ATTENTION + MLP), (Attention(window=7, square=2 * SQUARE),)),
    # Norms on queries and keys are not matrices. One layer of each kind.
    "gemma3": (
        6.0 * 2 * (ATTENTION + MLP),
        (Attention(window=7, square=SQUARE), Attention(window=None, square=SQUARE)),
    ),
    # Delta layer: qkv 32·64, gate 32·32, strength and decay 32·4 each, out 32·32, a convolution of 64 channels and 4 tokens, and the rule, 18 · key
    # width 8 · value width 8 · 4 value heads. Attention has a gate as wide as its queries: q is 32·64.
    "qwen3_5": (
        6.0 * (2048 + 1024 + 128 + 128 + 1024 + 256 + MLP) + 18 * 8 * 8 * 4 + 6.0 * (ATTENTION + 1024 + MLP),
        (Attention(window=None, square=SQUARE),),
    ),
    # Instead of the MLP: a router 32·4, two of four experts (two of 3·32·16), a shared expert 3·32·16 and its gate 32.
    "qwen3_5_moe": (
        6.0 * (2048 + 1024 + 128 + 128 + 1024 + 256 + ATTENTION + 1024)
        + 18 * 8 * 8 * 4
        + 6.0 * 2 * (128 + 2 * 1536 + 1536 + 32),
        (Attention(window=None, square=SQUARE),),
    ),
    # Convolution layer: in 32·96, 32 channels and 3 tokens, out 32·32. LFM2 makes its MLP's width 256 of 48.
    "lfm2": (
        6.0 * (3072 + 96 + 1024 + 3 * 32 * 256) + 6.0 * (ATTENTION + 3 * 32 * 256),
        (Attention(window=None, square=SQUARE),),
    ),
    # Mamba-2 layer: in 32·(64 gate + 88 convolved + 8 steps), 88 channels (64 + 2·2 groups·6 state) and 4 tokens, out 64·32, and the scan, 12 · state
    # 6 · head width 8 · 8 heads.
    "bamba": (
        6.0 * (32 * 160 + 352 + 2048 + MLP) + 12 * 6 * 8 * 8 + 6.0 * (ATTENTION + MLP),
        (Attention(window=None, square=SQUARE),),
    ),
}
LENGTHS = [40, 24]


def run(name: str, folder: Path) -> tuple[Flops, dict[str, int]]:
    """Our count, and torch's of a pass of two segments with 30 targets, by operation."""
    model = packed_model(name, folder)
    flops = flops_of(model)
    assert flops is not None
    ids = torch.randint(1, VOCABULARY, (1, sum(LENGTHS)))
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    targets = torch.arange(30)
    with FlopCounterMode(display=False) as counter:
        model(ids, places, Segments.from_lengths(LENGTHS), targets, targets, 30).backward()
    return flops, {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_layer_of_each_kind_costs_what_it_does_by_hand(name: str, tmp_path: Path) -> None:
    token, attention = BY_HAND[name]
    assert flops_of(packed_model(name, tmp_path)) == Flops(token=token, supervised=6.0 * 61 * 32, attention=attention)


@pytest.mark.parametrize(
    ("name", "not_matrices"), [("qwen3", 0), ("mistral", 0), ("qwen3_5", 6 * 256 + 4608), ("bamba", 6 * 352 + 4608)]
)
def test_matrices_and_head_are_what_torch_counts_in_a_real_pass(name: str, not_matrices: int, tmp_path: Path) -> None:
    flops, counted = run(name, tmp_path)
    # Of the head torch sees two of three products: the third is added in place, which it has no formula for.
    expected = (flops.token - not_matrices) * sum(LENGTHS) + flops.supervised * 30 * 2 / 3
    assert counted["aten.mm"] == expected


def test_attention_is_what_torch_counts_of_the_whole_square_halved() -> None:
    with FlopCounterMode(display=False) as counter:
        for length in LENGTHS:
            q, k, v = (torch.empty(1, 4, length, 8, device="meta", requires_grad=True) for _ in range(3))
            scores = (q @ k.mT).softmax(-1)
            (scores @ v).sum().backward()
    flops = Flops(token=0, supervised=0, attention=(Attention(window=None, square=SQUARE),))
    assert flops.step(tokens=64, supervised=30, lengths=np.array(LENGTHS)) == counter.get_total_flops() / 2


def test_a_window_counts_each_token_and_those_before_it_that_it_sees() -> None:
    # Twice the pairs, a token counted half with itself: of 10 tokens with a window of 4, the first 4 see 16 halves, each further one 4 pairs.
    assert squares(np.array([10]), 4) == 16 + 6 * 2 * 4
    assert squares(np.array([3, 4]), 4) == 9 + 16
    assert squares(np.array([10, 3]), None) == 109


def test_experts_without_a_known_number_a_token_are_not_guessed(tmp_path: Path) -> None:
    model = packed_model("qwen3_5_moe", tmp_path)
    model.model.config.num_experts_per_tok = 0
    assert flops_of(model) is None
    assert "no MFU" in told(None, 1e12, "cuda", "bf16")


def test_a_model_that_was_never_run_has_no_count(tmp_path: Path) -> None:
    model = packed_model("qwen3", tmp_path)
    delattr(model.blocks[0].self_attn, SHAPE)
    assert flops_of(model) is None


def test_a_peak_is_known_by_name_and_dtype_or_not_at_all() -> None:
    known = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H200": 989e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA A10": 125e12,
        "NVIDIA L4": 121e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA GB200": 2500e12,
        "NVIDIA A10G": None,
        "Tesla V100-SXM2-16GB": None,
    }
    assert {name: peak_of(name, torch.bfloat16) for name in known} == known
    assert peak_of("NVIDIA H100 80GB HBM3", torch.float32) == 67e12
    assert peak_of("NVIDIA H100 80GB HBM3", torch.float64) is None
    assert peak_flops(torch.device("cpu"), torch.bfloat16) is None


def test_the_first_lines_say_what_utilisation_is_reckoned_with() -> None:
    flops = Flops(token=2e9, supervised=5e8, attention=(Attention(window=4096, square=3e6),))
    assert told(flops, 989e12, "cuda", "bf16") == (
        "2 GFLOP a token, 0.5 a target, 3 MFLOP a unit of Σ length² in windows of 4,096; MFU against 989 TFLOP/s a rank"
    )
    assert told(flops, None, "cpu", "fp32").endswith("no MFU: the peak of cpu in fp32 is not known")
