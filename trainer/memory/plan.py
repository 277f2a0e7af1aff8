"""The memory of a rank, by part, for one number of ranks, and the fewest ranks whose memory would do.

    plan = make_plan(PlanConfig(model="Qwen/Qwen3-0.6B", capacity=8192, ranks=8))
    plan.peak.parts.total, plan.fewest_ranks

No weight is read and no GPU is used: the model is built on the meta device from its config alone, one pass of it is traced, and the rest follows from
shapes. What is counted is what torch's allocator would hand out; what a device holds besides (the CUDA context, NCCL's buffers, memory that lies free between
tensors) is allowed for by `HEADROOM`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from packer.errors import UserError
from trainer.batch import Shape
from trainer.flops import Flops, flops_of
from trainer.memory.config import PlanConfig
from trainer.memory.moments import Moment, Setting, moments, on_host
from trainer.memory.trace import Kernels, Pass, trace
from trainer.memory.units import Units
from trainer.memory.work import Rows, Work, prepared_of, rows_of, work_of
from trainer.model import PackedModel, plan_model
from trainer.parallel import DTYPES, master_dtype
from trainer.prepare import Prepared, fits_model

# Share of a device's memory that a plan leaves free.
HEADROOM = 0.1
_MOST_HOLDERS = 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """config: with model and dtype resolved. blocks: decoder layers, of `kinds` different kinds. peak: the moment at which most is held; phases: the
    largest of each phase. host: bytes in the host's memory (--cpu-offload). fits: whether the peak leaves HEADROOM of the memory given, None without
    one; fewest_ranks: that fit, None where no number does. passes: of a rank in a step, filling: places of a step that no row fills."""

    config: PlanConfig
    rows: Rows
    parameters: int
    blocks: int
    kinds: int
    kernels: Kernels
    passes: int
    filling: int
    peak: Moment
    phases: tuple[Moment, ...]
    host: int
    fits: bool | None
    fewest_ranks: int | None
    work: Work | None
    flops: Flops | None


def make_plan(config: PlanConfig) -> Plan:
    """Raises UserError where the shards, the model or the numbers will not do."""
    if config.ranks % config.replicas:
        raise UserError(
            f"--replicas {config.replicas}: {config.ranks} ranks cannot be shared out evenly among them",
            "give a number that divides the number of ranks; 1 shards the model over all of them",
        )
    prepared = prepared_of(config)
    source = config.model if prepared is None else prepared.model
    assert source is not None  # PlanConfig has seen to it
    dtype = config.dtype if config.dtype != "auto" else "bf16" if config.device == "cuda" else "fp32"
    config = replace(config, model=source, dtype=dtype)
    rows = rows_of(config, prepared)
    model = _model(config, prepared, rows)
    units = Units.of(model)
    head, kernels = model.head.shape, _kernels(config)
    traced = trace(model, pass_of=_pass(config, rows), kernels=kernels, checkpointing=config.activation_checkpointing)

    def step(holders: int) -> list[Moment]:
        return moments(traced, units, _setting(config, rows, holders=holders, head=tuple(head)))

    holders = config.ranks // config.replicas
    made = step(holders)
    usable = None if config.memory is None else config.memory * (1 - HEADROOM)
    peak = max(made, key=_total)
    fewest = None if usable is None else _fewest(lambda count: _total(max(step(count), key=_total)) <= usable)
    passes = _passes(config, config.ranks)
    return Plan(
        config=config,
        rows=rows,
        parameters=units.whole,
        blocks=len(units.blocks),
        kinds=traced.kinds,
        kernels=kernels,
        passes=passes,
        filling=passes * config.ranks * config.micro_rows - config.rows_per_step,
        peak=peak,
        phases=_largest_of_each(made),
        host=on_host(units, _setting(config, rows, holders=holders, head=tuple(head))),
        fits=None if usable is None else peak.parts.total <= usable,
        fewest_ranks=None if fewest is None else fewest * config.replicas,
        work=work_of(config, prepared),
        flops=flops_of(model),
    )


def _model(config: PlanConfig, prepared: Prepared | None, rows: Rows) -> PackedModel:
    """On the meta device, in the dtype that FSDP computes in."""
    assert config.model is not None
    model, _ = plan_model(
        config.model,
        init="random",
        seed=0,
        dtype=DTYPES[config.dtype],
        kernels="reference",
        device="cpu",
        vocab_at_least=rows.vocabulary,
    )
    limit = getattr(model.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if prepared is not None:
        fits_model(prepared, rows=None, positions=limit)
    return model


def _kernels(config: PlanConfig) -> Kernels:
    if config.kernels == "auto":
        return "fused" if config.device == "cuda" else "reference"
    return config.kernels


def _pass(config: PlanConfig, rows: Rows) -> Pass:
    return Pass(
        tokens=config.micro_rows * rows.capacity,
        segments=config.micro_rows * rows.segments,
        supervised=config.micro_rows * rows.supervised,
        weighted=config.loss_weighting == "example" or rows.row_weights,
    )


def _passes(config: PlanConfig, ranks: int) -> int:
    return -(-config.rows_per_step // (ranks * config.micro_rows))


def _setting(config: PlanConfig, rows: Rows, *, holders: int, head: tuple[int, ...]) -> Setting:
    dtype = DTYPES[config.dtype]
    shape = Shape(
        rows=config.micro_rows,
        capacity=rows.capacity,
        max_segments=rows.max_segments,
        max_segment_len=rows.capacity,
        weighted=config.loss_weighting == "example",
        row_weights=rows.row_weights,
    )
    # On a CPU the loss makes its factors float32 first: the head, and the hidden states.
    widened = (head[0] + shape.slots) * head[1] * 4 if config.device == "cpu" and dtype == torch.bfloat16 else 0
    return Setting(
        holders=holders,
        compute=dtype.itemsize,
        master=master_dtype(dtype).itemsize,
        passes=_passes(config, holders * config.replicas),
        reduce=config.reduce,
        offload=config.cpu_offload and config.device == "cuda",
        batch=shape.words * 8,
        widened=widened,
        on_cpu=config.device == "cpu",
    )


def _total(moment: Moment) -> int:
    return moment.parts.total


def _largest_of_each(made: list[Moment]) -> tuple[Moment, ...]:
    """The largest moment of each phase, in the order of a step."""
    phases = dict.fromkeys(moment.phase for moment in made)
    return tuple(max((moment for moment in made if moment.phase == phase), key=_total) for phase in phases)


def _fewest(fits: Callable[[int], bool]) -> int | None:
    """The least number for which it fits; more ranks never hold more, but for a few rows of padding."""
    high = 1
    while not fits(high):
        high *= 2
        if high > _MOST_HOLDERS:
            return None
    low = high // 2  # 0, or does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
