"""What a person reads from `trainer compare`: the ladder, the losses, and the verdict in words."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from packer.console import printable
from packer.terminal import new_console, new_table
from trainer.compare.comparison import Comparison
from trainer.compare.document import document_of
from trainer.compare.setting import Setting
from trainer.compare.statistics import Outcome
from trainer.compare.strict import TOLERANCE, Strict


def print_comparison(found: Comparison) -> None:
    """Two tables and what they come to."""
    console = new_console()
    _ladder(console, found)
    _losses(console, found)
    _bound(console, found)
    for name, outcome in found.outcomes.items():
        style = {True: "green", False: "bold red", None: "yellow"}[outcome.equivalent]
        console.print(Text(f"{name}: {_verdict(outcome, found)}", style=style))


def print_strict(found: Strict, setting: Setting) -> None:
    """How far the rungs stayed together, or where they parted."""
    console = new_console()
    table = new_table("Weights after every step, in float64", "against padded-stock", "largest difference")
    for name, error in found.errors.items():
        table.add_row(name, f"{error:.1e} of the way gone")
    console.print(table)
    console.print()
    if found.parted is None:
        seeds = len(setting.seeds)
        console.print(
            Text(
                f"equal: {found.steps:,} steps ({seeds} seed{'s' if seeds > 1 else ''}), every parameter within {TOLERANCE:g} of the way it has gone",
                style="green",
            )
        )
        return
    parted = found.parted
    when = f"after step {parted.step:,}" if parted.step else "at the start"
    console.print(
        Text(
            f"not equal: {parted.rung} parts from padded-stock {when} (seed {parted.seed}), most of all in {printable(parted.parameter)}: "
            f"{parted.error:.1e} of the way it has gone, allowed {TOLERANCE:g}; {parted.parameters:,} of {parted.of:,} parameters differ",
            style="bold red",
        )
    )


def _ladder(console: Console, found: Comparison) -> None:
    rungs = document_of(found)["ladder"]
    assert isinstance(rungs, list)
    on_gpu = any(rung["launches_per_useful_token"] is not None for rung in rungs)
    steps = " or ".join(dict.fromkeys(f"{rung['steps']:,}" for rung in rungs))
    compiled = any(rung["graphs_compiled"] for rung in rungs)
    table = new_table(
        f"Speed ({steps} steps, {_seeds(found)})",
        "\nrung",
        "useful\ntokens/s",
        "\nratio",
        "slots\na token",
        "\npasses",
        "ops\na token",
        *(["launches\na token"] if on_gpu else []),
        *(["graphs\nmade"] if compiled else []),
        "memory\nMB",
    )
    table.padding, table.columns[0].no_wrap = (0, 1, 0, 0), True
    for rung in rungs:
        operations, launches, memory = (
            rung[name] for name in ("ops_per_useful_token", "launches_per_useful_token", "peak_memory_bytes")
        )
        table.add_row(
            rung["name"],
            f"{rung['useful_tokens_per_s']:,.0f}",
            f"{rung['ratio']:.2f}",
            f"{rung['slots_per_useful']:.2f}",
            f"{rung['passes']:,.0f}",
            "" if operations is None else f"{operations:,.2f}",
            *([f"{launches:,.2f}"] if on_gpu else []),
            *([f"{rung['graphs_compiled']:,}"] if compiled else []),
            "" if memory is None else f"{memory / 1e6:,.0f}",
        )
    console.print(table)
    console.print(
        Text(
            "A token is one of an example, padding not counted. Operations and memory are those of one step"
            f"{'' if compiled else '; no graphs were compiled'}."
        )
    )
    console.print()


def _losses(console: Console, found: Comparison) -> None:
    setting, reference = found.setting, found.rungs[0][0].name
    table = new_table(
        f"Held-out loss ({len(setting.held_out):,} examples, each alone)",
        "rung",
        "mean",
        "std",
        f"less {reference}",
        "95 % interval",
    )
    for rung, _ in found.rungs:
        held_out, outcome = found.held_out(rung.name), found.outcomes.get(rung.name)
        table.add_row(
            rung.name,
            f"{held_out.mean:.4f}",
            "" if held_out.std is None else f"{held_out.std:.4f}",
            "" if outcome is None else _signed(outcome.differences.mean),
            "" if outcome is None or outcome.interval is None else " to ".join(map(_signed, outcome.interval)),
        )
    table.columns[0].no_wrap = True
    console.print(table)
    console.print()
    table = new_table("Held-out loss by seed", "rung", *map(str, setting.seeds))
    for rung, _ in found.rungs:
        table.add_row(rung.name, *(f"{value:.4f}" for value in found.held_out(rung.name).per_seed))
    if found.replicates:
        table.add_row(f"{reference}, in another order", *(f"{run.held_out:.4f}" for run in found.replicates))
    console.print(table)
    console.print()


def _bound(console: Console, found: Comparison) -> None:
    outcome = next(iter(found.outcomes.values()))
    margin = f"{found.margin_share:.2%} of the padded loss, ±{outcome.margin:.4f}"
    if outcome.floor is None:
        said = f"Held against the margin: {margin}. What the order of examples inside a step makes was not measured."
    elif outcome.floor > outcome.margin:
        said = (
            f"Held against ±{outcome.floor:.4f}: so far apart do two padded runs come that differ only in the order of examples inside a step. "
            f"It is more than the margin: {margin}."
        )
    else:
        said = (
            f"Held against the margin: {margin}. Two padded runs that differ only in the order of examples inside a step come "
            f"{_signed(outcome.floor).removeprefix('+')} apart."
        )
    console.print(Text(said))


def _verdict(outcome: Outcome, found: Comparison) -> str:
    match outcome.verdict:
        case "equivalent":
            return "equivalent: the whole interval lies inside"
        case "not equivalent":
            return "not equivalent: the whole interval lies outside"
        case "not shown":
            return f"not shown to be equivalent: the interval of {_seeds(found)} reaches over it; more --seeds make it narrower"
        case "too few seeds":
            return f"too few seeds to say: {_seeds(found)}, and 3 are the least"


def _signed(value: float) -> str:
    """A difference of losses; one that five places would make 0 is shown by its size."""
    return f"{value:+.5f}" if value == 0 or abs(value) >= 1e-4 else f"{value:+.1e}"


def _seeds(found: Comparison) -> str:
    count = len(found.setting.seeds)
    return f"{count} seed{'' if count == 1 else 's'}"
