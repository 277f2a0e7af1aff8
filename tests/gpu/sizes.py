"""How large everything is: on a GPU as in training, on a CPU as small as shows that the script runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.isolation import Pass, pack
from trainer.kernels import Mode
from trainer.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """lengths: of the segments of one row for kernels. width: a head's. capacity, examples: of the rows of the ladder. steps: timed ones."""

    device: torch.device
    dtype: torch.dtype
    fused: Mode
    lengths: tuple[int, ...]
    width: int
    capacity: int
    mean_length: int
    steps: int
    hidden: int
    layers: int
    vocabulary: int
    loss_vocabulary: int
    loss_tokens: int
    loss_width: int


def gpu() -> Sizes:
    """One GPU: rows of 8,192 slots, lengths as ultrachat has them."""
    return Sizes(
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        fused="fused",
        lengths=(1, 2, 63, 64, 65, 127, 128, 129, 700, 769),
        width=64,
        capacity=8192,
        mean_length=1228,
        steps=10,
        hidden=1024,
        layers=8,
        vocabulary=32_768,
        loss_vocabulary=151_936,
        loss_tokens=8192,
        loss_width=2048,
    )


def cpu() -> Sizes:
    """Seconds on a CPU: the reference stands for the fast path."""
    return Sizes(
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        fused="reference",
        lengths=(1, 2, 63, 64, 65, 29),
        width=16,
        capacity=256,
        mean_length=40,
        steps=2,
        hidden=32,
        layers=4,
        vocabulary=128,
        loss_vocabulary=300,
        loss_tokens=128,
        loss_width=16,
    )


def on(flat: Pass, device: torch.device) -> Pass:
    """The same row with its tensors on a device."""
    return Pass(
        input_ids=flat.input_ids.to(device),
        position_ids=flat.position_ids.to(device),
        segments=flat.segments.to(device),
        positions=flat.positions.to(device),
        targets=flat.targets.to(device),
        count=flat.count,
    )


def rows(sizes: Sizes, number: int) -> list[list[int]]:
    """Lengths of the examples of `number` rows that are as full as packing makes them, the pad tail left out."""
    import numpy as np

    from packer.plan import make_plan

    generator = np.random.default_rng(0)
    wanted = max(4 * number, number * sizes.capacity // sizes.mean_length)
    lengths = np.clip(generator.gamma(4.2, sizes.mean_length / 4.2, wanted).astype(np.int64), 2, sizes.capacity)
    plan = make_plan(lengths, capacity=sizes.capacity, max_segments=None, strategy="optimal", seed=0)
    bounds = plan.offsets.tolist()
    members = [plan.members[start:end].tolist() for start, end in itertools.pairwise(bounds)]
    return [[int(lengths[example]) for example in row] for row in members[:number]]


def packed(sizes: Sizes, lengths: list[int], seed: int) -> Pass:
    """One row of random examples of these lengths, filled to the capacity, on the device."""
    generator = torch.Generator().manual_seed(seed)
    examples: list[Tensor] = [torch.randint(1, sizes.vocabulary, (n,), generator=generator) for n in lengths]
    return on(pack(examples, pad=sizes.capacity - sum(lengths)), sizes.device)


def padded(sizes: Sizes, lengths: list[int], seed: int) -> Pass:
    """A batch of examples each padded to the longest, laid flat: what a 2-D batch computes, slot for slot. Padding is part of its example's segment
    and no target."""
    longest, generator = max(lengths), torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), longest, dtype=torch.int64)
    for place, length in enumerate(lengths):
        ids[place, :length] = torch.randint(1, sizes.vocabulary, (length,), generator=generator)
    supervised = torch.cat(
        [torch.arange(place * longest, place * longest + length - 1) for place, length in enumerate(lengths)]
    )
    flat = ids.flatten()
    positions, targets = torch.zeros(2, len(flat), dtype=torch.int64)
    positions[: len(supervised)], targets[: len(supervised)] = supervised, flat[supervised + 1]
    return on(
        Pass(
            input_ids=flat[None],
            position_ids=torch.arange(longest).repeat(len(lengths))[None],
            segments=Segments.from_lengths([longest] * len(lengths)),
            positions=positions,
            targets=targets,
            count=len(supervised),
        ),
        sizes.device,
    )


def forget_peak(device: torch.device) -> None:
    """Peak memory is counted from here."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_megabytes(device: torch.device) -> str:
    """The most memory that was held since it was last reset, as a cell."""
    return f"{torch.cuda.max_memory_allocated(device) / 1e6:,.0f}" if device.type == "cuda" else "–"
