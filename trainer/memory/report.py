"""A plan as tables on a terminal, and as one JSON document.

print_plan(plan)
"""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from packer.console import printable
from packer.terminal import new_console, new_table
from trainer.memory.moments import Parts
from trainer.memory.plan import HEADROOM, Plan
from trainer.metrics import duration

_PARTS = {
    "parameters": "master weights of this rank, and buffers",
    "gradients": "of this rank",
    "optimizer": "both moments, of this rank",
    "activations": "kept by forward for backward",
    "unsharded": "whole blocks and root: weights, gradients, buffers they travel in",
    "loss": "chunks of logits, and the gradients made with them",
    "workspace": "what a block computes with besides, kernels included",
    "batch": "rows",
}
_PHASES = {
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "reduce": "gradients summed over ranks",
    "update": "update",
}


def print_plan(plan: Plan) -> None:
    """To stdout."""
    console = new_console()
    _say(console, [("model", _model(plan)), ("step", _step(plan))])
    console.print()
    _memory(console, plan)
    console.print()
    told = ", ".join(f"{_PHASES[moment.phase]} {size(moment.parts.total)}" for moment in plan.phases)
    lines = [("phases", f"at most in each: {told}")]
    if plan.host:
        lines.append(("host", f"{size(plan.host)} of the host's memory a rank: weights, gradients, moments"))
    lines += _answers(plan)
    if plan.work is not None:
        lines.append(("work", _work(plan)))
    _say(console, lines + [("assumed", text) for text in assumptions(plan)])


def plan_json(plan: Plan) -> str:
    """Bytes, counts and seconds."""
    config, work = plan.config, plan.work
    document = {
        "model": config.model,
        "parameters": plan.parameters,
        "blocks": plan.blocks,
        "kinds_of_block": plan.kinds,
        "ranks": config.ranks,
        "replicas": config.replicas,
        "device": config.device,
        "dtype": config.dtype,
        "kernels": plan.kernels,
        "activation_checkpointing": config.activation_checkpointing,
        "capacity": plan.rows.capacity,
        "micro_rows": config.micro_rows,
        "rows_per_step": config.rows_per_step,
        "passes": plan.passes,
        "memory_bytes": {
            "total": plan.peak.parts.total,
            "phase": plan.peak.phase,
            "parts": asdict(plan.peak.parts),
            "phases": {moment.phase: moment.parts.total for moment in plan.phases},
            "host": plan.host,
        },
        "given_memory_bytes": config.memory,
        "headroom": HEADROOM,
        "fits": plan.fits,
        "fewest_ranks": plan.fewest_ranks,
        "work": None if work is None else asdict(work),
        "flops": None if plan.flops is None else asdict(plan.flops),
        "assumptions": assumptions(plan),
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


def assumptions(plan: Plan) -> list[str]:
    """What the numbers take for granted."""
    config = plan.config
    said = [
        "what torch's allocator hands out is counted; the CUDA context, NCCL and memory lying free between tensors are not, and "
        f"{HEADROOM:.0%} of --memory is left for them"
        if config.device == "cuda"
        else "what torch's allocator hands out is counted, not the process's other memory",
    ]
    if plan.kernels == "fused":
        said.append("fused kernels take what flash-linear-attention 0.6 and flash-attention 2 do, by their source")
    said.append("blocks run eagerly; --compile usually needs less")
    if config.shards is None:
        said.append(
            f"rows are full, all tokens are targets, and segments have {plan.rows.capacity // plan.rows.segments:,} tokens"
        )
    return said


def size(count: float) -> str:
    """Bytes for a person: 1.25 GB, 12.3 MB."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.2f} MB" if count else "0"


def _say(console: Console, lines: list[tuple[str, str]]) -> None:
    """Labelled lines, the text folded beside its label."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=7, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(label, printable(text))
    console.print(grid)


def _model(plan: Plan) -> str:
    kinds = f"{plan.blocks} blocks of {plan.kinds} kind{'s' if plan.kinds > 1 else ''}"
    return f"{plan.config.model}: {plan.parameters:,} parameters, {kinds}"


def _step(plan: Plan) -> str:
    config = plan.config
    replicas = f" in {config.replicas} replicas" if config.replicas > 1 else ""
    offload = ", weights and optimiser offloaded" if config.cpu_offload else ""
    filling = f", {plan.filling} of {plan.filling + config.rows_per_step} places filling" if plan.filling else ""
    return (
        f"{config.ranks} rank{'s' if config.ranks > 1 else ''}{replicas} on {config.device}, {config.rows_per_step:,} rows of {plan.rows.capacity:,} slots: "
        f"{plan.passes} pass{'es' if plan.passes > 1 else ''} of {config.micro_rows} a rank{filling}; {config.dtype}, {plan.kernels} kernels, activation "
        f"checkpointing {config.activation_checkpointing}{offload}"
    )


def _memory(console: Console, plan: Plan) -> None:
    parts = plan.peak.parts
    table = new_table(f"Memory of a rank, at its highest ({_PHASES[plan.peak.phase]})", "part", "", "share", "")
    table.columns[-1].justify = "left"
    for name, meaning in _PARTS.items():
        value: int = getattr(parts, name)
        table.add_row(name, size(value), f"{value / parts.total:.1%}", meaning)
    table.add_row("total", size(parts.total), "", "")
    console.print(table)


def _answers(plan: Plan) -> list[tuple[str, str]]:
    config = plan.config
    if config.memory is None:
        return []
    usable = config.memory * (1 - HEADROOM)
    verdict = "fits" if plan.fits else "does not fit"
    lines = [
        (
            "memory",
            f"{verdict}: {size(plan.peak.parts.total)} of {size(usable)} ({size(config.memory)} less {HEADROOM:.0%})",
        )
    ]
    if plan.fewest_ranks is not None:
        lines.append(("ranks", f"fewest that fit: {plan.fewest_ranks:,}"))
        return lines
    lines.append(
        ("ranks", f"no number of ranks fits: {_what_stays(plan.peak.parts)} of a rank do not shrink with their number")
    )
    ways = [
        way
        for way, there in (
            ("--activation-checkpointing full", config.activation_checkpointing != "full"),
            ("--micro-rows 1", config.micro_rows > 1),
            ("rows of fewer slots", True),
        )
        if there
    ]
    lines.append(("hint", f"try {', '.join(ways)}"))
    return lines


def _what_stays(parts: Parts) -> str:
    return size(parts.activations + parts.workspace + parts.loss + parts.unsharded)


def _work(plan: Plan) -> str:
    work = plan.work
    assert work is not None
    said = f"{work.steps:,} steps, {work.rows:,} rows, {work.slots:,} slots"
    if work.useful_tokens is not None:
        said += f", {work.useful_tokens:,} useful tokens, {work.supervised_tokens:,} supervised"
    if work.hours is None:
        return said + "; hours where --tokens-per-s or --run gives a rate"
    return said + f"; at {work.tokens_per_s:,.0f} useful tokens/s {duration(work.hours * 3600)} (h:mm:ss)"
