"""What to change, the largest predicted gain first, each with the numbers that it follows from. Pure.

A gain is predicted from what was measured, on these assumptions: starting costs the same for every launch; work and exchanges that are left out take
their time with them; a compiler makes elementwise work half as long, since a chain of operations then reads and writes once.

    for each in advise(found, about, syncs=(), compiled=()):
        each.gain_s, each.text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.profile.about import About, Compiled, Sync
from trainer.profile.analysis import Analysis
from trainer.profile.attribute import COMMUNICATION, OPTIMISER
from trainer.profile.events import KERNEL
from trainer.profile.verdict import Shares, divide
from trainer.profile.words import told

_MOST = 3
_WORTH = 0.01  # of the step
_FALLBACKS = {"delta": "gated delta", "conv": "convolution", "scan": "state-space scan", "attention": "attention"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """gain_s: seconds of a step that it is predicted to save."""

    gain_s: float
    text: str


def advise(found: Analysis, about: About, *, syncs: Sequence[Sync], compiled: Sequence[Compiled]) -> tuple[Advice, ...]:
    """At most three, each worth at least a hundredth of the step."""
    shares = divide(found, about)
    every = [
        *_fallbacks(found, about, shares),
        *_fewer_passes(found, about, shares),
        *_compile(found, about, shares),
        *_padding(about, shares),
        *_data(about, shares),
        *_reduce(found, about, shares),
        *_syncs(found, syncs),
        *_compiled(about, compiled),
        *_recompute(found, about),
        *_dtype(about, shares),
    ]
    worth = [each for each in every if each.gain_s >= _WORTH * shares.total]
    return tuple(sorted(worth, key=lambda each: -each.gain_s)[:_MOST])


def _fallbacks(found: Analysis, about: About, shares: Shares) -> Iterator[Advice]:
    """Kernels of ours in plain torch on a device that has fused ones."""
    if about.device == "cpu":
        return
    for choice in about.layers:
        if choice.kernel != "reference":
            continue
        name = _FALLBACKS.get(choice.layer, choice.layer)
        launches = sum(use.launches for use in found.layers if _computed_by(use.layer, name))
        yield Advice(
            gain_s=shares.launch * launches / max(found.launches, 1),
            text=f"fused {name} kernel not in use: {launches:,.0f} of {found.launches:,.0f} launches are its fallback; --kernels fused "
            f"({choice.reason})",
        )


def _computed_by(layer: str, kernel: str) -> bool:
    return layer == kernel + KERNEL or (kernel == "attention" and layer.endswith("Attention"))


def _fewer_passes(found: Analysis, about: About, shares: Shares) -> Iterator[Advice]:
    """Twice the rows a pass: the same work in half the launches, but for kernels in plain torch, which take more of them for more slots."""
    if about.padded or about.passes < 2:
        return
    grows = {_FALLBACKS.get(choice.layer, choice.layer) for choice in about.layers if choice.kernel == "reference"}
    saved = 1 - -(-about.passes // 2) / about.passes
    counted = sum(
        use.launches
        for use in found.layers
        if use.layer != OPTIMISER and not any(_computed_by(use.layer, kernel) for kernel in grows)
    )
    gathers = 0.0 if about.reduce == "step" else shares.communication
    yield Advice(
        gain_s=shares.launch * saved * counted / max(found.launches, 1) + gathers * saved,
        text=f"--micro-rows {about.micro_rows * 2}: {about.passes:,.0f} passes a step become {-(-about.passes // 2):,.0f}, and {counted * saved:,.0f} of "
        f"{found.launches:,.0f} launches go, at the price of memory for twice the activations",
    )


def _compile(found: Analysis, about: About, shares: Shares) -> Iterator[Advice]:
    if about.compiled or about.padded:  # padded shapes change from pass to pass: each would be compiled anew
        return
    yield Advice(
        gain_s=shares.launch * found.fusible / max(found.launches, 1) + found.fusible_s / 2,
        text=f"--compile: {found.fusible:,.0f} of {found.launches:,.0f} launches are small operations between the matrix products ({told(found.fusible_s)} "
        "of work), which a compiler fuses",
    )


def _padding(about: About, shares: Shares) -> Iterator[Advice]:
    if about.padded:
        text = (
            f"train on packed rows (leave out --padded): {about.slots - about.useful_tokens:,.0f} of {about.slots:,.0f} slots a step hold no token of an "
            "example"
        )
    else:
        text = f"fuller rows: {about.padding:.1%} of the slots are padding; `packer build` with a larger --capacity or --max-segments 0"
    yield Advice(gain_s=shares.padding, text=text)


def _data(about: About, shares: Shares) -> Iterator[Advice]:
    where = (
        "the shards come from an address: copy the folder to a disk of this machine"
        if about.at_address
        else "put the shards on a faster disk, and leave a core to the thread that reads them"
    )
    yield Advice(
        gain_s=shares.data, text=f"rows come too late: the device waits {told(shares.data)} a step for them; {where}"
    )


def _reduce(found: Analysis, about: About, shares: Shares) -> Iterator[Advice]:
    if about.reduce == "step" or about.passes < 2:
        return
    talk = next((use for use in found.layers if use.layer == COMMUNICATION), None)
    if talk is None or not talk.seconds:
        return
    reducing = sum(seconds for name, seconds in talk.top if "reduce" in name.lower()) / talk.seconds
    yield Advice(
        gain_s=shares.communication * reducing * (1 - 1 / about.passes),
        text=f"--reduce step: gradients are summed over {about.world:,} ranks {about.passes:,.0f} times a step and once would do, at the price of 4 bytes "
        "a parameter on every rank",
    )


def _syncs(found: Analysis, syncs: Sequence[Sync]) -> Iterator[Advice]:
    if not found.idle_after_waits_s:
        return
    first = f"; most often at {syncs[0].where} ({syncs[0].count:,} a step)" if syncs else ""
    yield Advice(
        gain_s=found.idle_after_waits_s,
        text=f"take out what waits for the device: {found.waits:,.0f} waits a step leave it idle for {told(found.idle_after_waits_s)}{first}",
    )


def _compiled(about: About, compiled: Sequence[Compiled]) -> Iterator[Advice]:
    seconds = sum(each.seconds for each in compiled) / about.steps
    if compiled:
        one = compiled[0]
        told = ", ".join(part for part in (one.where, one.why) if part)
        yield Advice(
            gain_s=seconds,
            text=f"{len(compiled):,} compiled within the window, where nothing should be: {one.name}"
            + (f" ({told})" if told else ""),
        )


def _recompute(found: Analysis, about: About) -> Iterator[Advice]:
    if about.checkpointing != "none":
        yield Advice(
            gain_s=found.recompute_s,
            text=f"--activation-checkpointing {'selective or none' if about.checkpointing == 'full' else 'none'}, where memory allows: "
            f"{told(found.recompute_s)} a step compute activations again",
        )


def _dtype(about: About, shares: Shares) -> Iterator[Advice]:
    if about.device != "cpu" and about.dtype == "fp32":
        yield Advice(
            gain_s=shares.compute / 2,
            text=f"--dtype bf16: {told(shares.compute)} of matrix products run in fp32, bf16 is at least twice as fast",
        )
