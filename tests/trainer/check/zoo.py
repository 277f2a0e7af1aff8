"""The zoo: every known way to pack wrongly, each as a function that plants it in a case and says how the proof must name it.

Plant(name, families, plant, check, module, mechanism): `plant(case)` gives the case with the fault; the first check to fail must be `check`, and its
words must have `module` and `mechanism` in them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from packer.types import Row
from tests.trainer.check.benches import SLOTS
from trainer.batch import Batch
from trainer.check.proof import Case
from trainer.isolate import register_attention
from trainer.kernels import attention, conv, delta
from trainer.segments import Segments

HYBRIDS = ("qwen3_5", "qwen3_next", "olmo_hybrid")
ALL = (*HYBRIDS, "qwen3")
Seen = Callable[[Segments], Segments]


# How a kernel, or the making of a batch, may see the segments wrongly.
def whole_row(segments: Segments) -> Segments:
    return Segments.from_lengths([segments.num_tokens])


def late(segments: Segments) -> Segments:
    """Every boundary a token late: a segment's first token is taken for the last of the one before."""
    first, *rest, last = segments.lengths
    return Segments.from_lengths([first + 1, *rest, last - 1])


def early(segments: Segments) -> Segments:
    first, *rest, last = segments.lengths
    return Segments.from_lengths([first - 1, *rest, last + 1])


def first_ignored(segments: Segments) -> Segments:
    first, second, *rest = segments.lengths
    return Segments.from_lengths([first + second, *rest])


def last_ignored(segments: Segments) -> Segments:
    *rest, one, other = segments.lengths
    return Segments.from_lengths([*rest, one + other])


def short_ones_joined(segments: Segments) -> Segments:
    """Right for segments of at least 4 tokens: shorter ones run on from what is before them."""
    lengths: list[int] = []
    for length in segments.lengths:
        if length < 4 and lengths:
            lengths[-1] += length
        else:
            lengths.append(length)
    return Segments.from_lengths(lengths)


def attention_that_sees(seen: Seen, *, layer: int | None = None) -> Callable[[Case], Case]:
    def plant(case: Case) -> Case:
        def kernel(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
            return attention.reference(q, k, v, segments=seen(segments), scale=scale, window=window)

        return _with_attention(case, kernel, layer)

    return plant


def attention_past_64(case: Case) -> Case:
    """Right for the first 64 tokens of a segment; from there on all that came before in the row is seen."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
        right = attention.reference(q, k, v, segments=segments, scale=scale, window=window)
        wrong = attention.reference(q, k, v, segments=whole_row(segments), scale=scale, window=window)
        place = torch.cat([torch.arange(length) for length in segments.lengths])
        return torch.where((place >= 64)[None, None, :, None], wrong, right)

    return _with_attention(case, kernel, None)


def attention_backward_only(case: Case) -> Case:
    """Forward right; backward the gradient of a causal attention over the whole row."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, segments: Segments, scale: float, window: int | None) -> Tensor:
        right = attention.reference(q, k, v, segments=segments, scale=scale, window=window)
        wrong = attention.reference(q, k, v, segments=whole_row(segments), scale=scale, window=window)
        return cast(Tensor, _OneForwardOtherBackward.apply(right.detach(), wrong))

    return _with_attention(case, kernel, None)


class _OneForwardOtherBackward(torch.autograd.Function):
    @staticmethod
    def forward(_: object, shown: Tensor, __: Tensor) -> Tensor:
        return shown.clone()

    @staticmethod
    def backward(_: object, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def _with_attention(case: Case, kernel: Callable[..., Tensor], layer: int | None) -> Case:
    """The kernel in all layers, or in the one of this number."""
    assert case.model is not None

    def chosen(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        calls.append(None)
        wanted = layer is None or (len(calls) - 1) % len(case.model.blocks) == layer  # type: ignore[union-attr]
        return (kernel if wanted else attention.reference)(q, k, v, **options)  # type: ignore[arg-type]

    calls: list[None] = []
    case.model.model.set_attn_implementation(register_attention(chosen, "planted"))
    return case


def delta_that_sees(seen: Seen) -> Callable[[Case], Case]:
    def plant(case: Case) -> Case:
        for module in _layers_with(case, "delta"):
            module.delta_kernel = lambda *x, segments: delta.reference(*x, segments=seen(segments))  # type: ignore[assignment]
        return case

    return plant


def conv_that_sees(seen: Seen) -> Callable[[Case], Case]:
    def plant(case: Case) -> Case:
        for module in _layers_with(case, "conv"):
            module.conv_kernel = lambda *x, segments: conv.reference(*x, segments=seen(segments))  # type: ignore[assignment]
        return case

    return plant


def _layers_with(case: Case, kernel: str) -> list[nn.Module]:
    assert case.model is not None
    return [module for module in case.model.modules() if f"{kernel}_kernel" in vars(module)]


def batch_that_is(wrong: Callable[[Batch, Sequence[Row]], Batch]) -> Callable[[Case], Case]:
    def plant(case: Case) -> Case:
        right = case.subject.batch
        return dataclasses.replace(
            case, subject=dataclasses.replace(case.subject, batch=lambda rows: wrong(right(rows), rows))
        )

    return plant


def positions_run_on(batch: Batch, _: Sequence[Row]) -> Batch:
    return dataclasses.replace(batch, position_ids=torch.arange(batch.input_ids.shape[1])[None])


def segments_seen(seen: Seen) -> Callable[[Batch, Sequence[Row]], Batch]:
    return lambda batch, _: dataclasses.replace(batch, segments=seen(batch.segments))


def tail_glued(batch: Batch, rows: Sequence[Row]) -> Batch:
    """Each row's pad tail belongs to its last example."""
    lengths: list[int] = []
    for row in rows:
        own = torch.tensor(row.cu_seqlens[: row.num_segments + 1]).diff().tolist()
        lengths += own if row.num_segments == row.num_examples else [*own[:-2], own[-2] + own[-1]]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return dataclasses.replace(batch, segments=Segments.from_lengths(lengths), position_ids=positions)


def labels_shifted(batch: Batch, _: Sequence[Row]) -> Batch:
    """Every slot but the last predicts the one behind it, as a shift of the flat row does."""
    total = batch.input_ids.shape[1]
    targets = torch.cat([batch.input_ids[0, 1:], torch.zeros(1, dtype=torch.int64)])
    return dataclasses.replace(batch, positions=torch.arange(total), targets=targets, count=total - 1)


def stretched_positions(case: Case) -> Case:
    """RoPE that looks at the longest position of the row, as longrope and dynamic do."""
    assert case.model is not None
    rotary = case.model.model.base_model.rotary_emb
    plain = type(rotary).forward

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        rotary.attention_scaling = 1.0 if int(position_ids.max()) < SLOTS else 1.2
        return plain(rotary, x, position_ids)  # type: ignore[no-any-return]

    rotary.forward = forward
    return case


def stock_with_cu_seqlens(case: Case) -> Case:
    """The library's hybrid as with flash-linear-attention but no causal-conv1d: its delta rule keeps boundaries, its convolution is not told of any."""
    modeling = sys.modules[type(case.subject.model).__module__]
    right = case.subject.hidden
    lengths: list[int] = []

    def cut(batch: Batch) -> Tensor:
        plain = modeling.torch_chunk_gated_delta_rule

        def by_segment(*x: Tensor, g: Tensor, beta: Tensor, **_: object) -> tuple[Tensor, None]:
            parts = [tensor.split(lengths, dim=1) for tensor in (*x, g, beta)]
            made = [
                plain(q, k, v, g=decay, beta=strength, use_qk_l2norm_in_kernel=True)[0]
                for q, k, v, decay, strength in zip(*parts, strict=True)
            ]
            return torch.cat(made, dim=1), None

        lengths[:] = batch.segments.lengths
        modeling.torch_chunk_gated_delta_rule = by_segment
        try:
            return right(batch)
        finally:
            modeling.torch_chunk_gated_delta_rule = plain

    return dataclasses.replace(case, subject=dataclasses.replace(case.subject, hidden=cut))


@dataclass(frozen=True, kw_only=True)
class Plant:
    plant: Callable[[Case], Case]
    check: str
    says: tuple[str, ...]
    families: tuple[str, ...] = ALL


_ATTENTION, _DELTA, _CONV = (
    ("self_attn (attention)",),
    ("(delta, in its kernel delta)",),
    ("(convolution, in its kernel conv)",),
)
_SEEN: dict[str, Seen] = {
    "no boundary": whole_row,
    "boundaries a token late": late,
    "boundaries a token early": early,
    "the first boundary ignored": first_ignored,
    "only the last boundary ignored": last_ignored,
    "right for segments of 4 tokens and more only": short_ones_joined,
}
ZOO: dict[str, Plant] = {
    **{
        f"{mechanism}: {name}": Plant(
            plant=of(seen), check="isolation", says=("first leak at ", *says), families=families
        )
        for name, seen in _SEEN.items()
        for mechanism, of, says, families in (
            ("attention", attention_that_sees, _ATTENTION, ALL),
            ("delta", delta_that_sees, _DELTA, HYBRIDS),
            ("convolution", conv_that_sees, _CONV, HYBRIDS),
        )
    },
    "attention: past position 64 only": Plant(plant=attention_past_64, check="isolation", says=_ATTENTION),
    "attention: backward only": Plant(
        plant=attention_backward_only, check="isolation", says=("self_attn (attention)", "its output does not show it")
    ),
    "batch: position ids that run on": Plant(
        plant=batch_that_is(positions_run_on), check="batch", says=("positions do not restart at 0",)
    ),
    "batch: boundaries a token late": Plant(
        plant=batch_that_is(segments_seen(late)), check="batch", says=("at 31 instead of 30 (off by one)",)
    ),
    "batch: boundaries a token early": Plant(
        plant=batch_that_is(segments_seen(early)), check="batch", says=("at 29 instead of 30 (off by one)",)
    ),
    "batch: the first boundary ignored": Plant(
        plant=batch_that_is(segments_seen(first_ignored)),
        check="batch",
        says=("1 of 12 boundaries between segments are missing, the first at 30",),
    ),
    "batch: no boundary": Plant(
        plant=batch_that_is(segments_seen(whole_row)), check="batch", says=("12 of 12 boundaries",)
    ),
    "batch: pad tail glued to the last example": Plant(
        plant=batch_that_is(tail_glued), check="batch", says=("the pad tail is glued to the last example",)
    ),
    "batch: labels shifted over boundaries": Plant(
        plant=batch_that_is(labels_shifted), check="batch", says=("is to predict the first token of the next",)
    ),
    "positions: frequencies from a long pad tail": Plant(
        plant=stretched_positions,
        check="isolation",
        says=("rotary_emb (positions)", "with the lengths of other segments"),
    ),
}
