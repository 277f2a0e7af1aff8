"""A profile for a person, on one screen of 80 columns: the verdict, where the step's time goes, by part and by type of layer, and what would help.

print_profile(Profile.of(recording))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from packer.console import printable
from packer.terminal import new_console, new_table
from trainer.profile.analysis import LayerUse
from trainer.profile.document import Profile
from trainer.profile.words import Unit, told

_LAYERS = 7  # types shown; the rest is one line
_SYNCS = 3
_WIDEST = 120  # a table is not drawn wider than is read at a glance


def print_profile(profile: Profile) -> None:
    """To standard output, in colour where that is a terminal."""
    console = new_console()
    if console.width > _WIDEST:
        console.width = _WIDEST
    for part in _parts(profile):
        console.print(part)


def _parts(profile: Profile) -> Iterator[Text | Table | str]:
    verdict = profile.verdict
    yield Text.assemble(
        (f"{verdict.bound}-bound: {verdict.share:.0%}", "bold"), f" of the step {printable(verdict.said)}"
    )
    yield Text(_setting(profile), style="dim")
    yield ""
    both = Table.grid(padding=(0, 3, 0, 0))
    both.add_row(_times(profile), _phases(profile))
    yield both
    yield ""
    yield _layers(profile)
    yield ""
    yield Text(_counts(profile))
    yield from _syncs(profile)
    yield from _compiled(profile)
    yield ""
    yield from _advice(profile)


def _setting(profile: Profile) -> str:
    about = profile.about
    rows = _counted(about.rows_per_step, "row")
    what = f"the examples of {rows}, padded" if about.padded else rows
    where = "on the CPU" if about.device == "cpu" else f"on {about.device_name}"
    ranks = f", rank 0 of {about.world}" if about.world > 1 else ""
    passes = "pass" if round(about.passes) == 1 else "passes"
    return printable(
        f"{_counted(about.steps, 'step')} {where}{ranks} in {about.dtype}; a step: {what} in {about.passes:,.0f} {passes}, {about.slots:,.0f} slots, "
        f"{about.useful_tokens:,.0f} useful tokens"
    )


def _counted(number: int, one: str) -> str:
    return f"{number:,} {one if number == 1 else one + 's'}"


def _times(profile: Profile) -> Table:
    found, step = profile.found, profile.step_s
    unit = Unit.for_step(step)
    table = _table("Time of a step", "", unit.name, "")
    for name, seconds in (
        ("step", step),
        ("device busy", found.device_busy_s),
        ("CPU enqueues", profile.enqueue_s),
        ("waits for the CPU", profile.cpu_wait_s),
        ("waits for data", profile.shares.data),
        ("waits for ranks", found.communication_s),
    ):
        table.add_row(name, unit(seconds), f"{seconds / step:.0%}")
    return table


def _phases(profile: Profile) -> Table:
    unit = Unit.for_step(profile.step_s)
    table = _table("By part", "", f"work, {unit.name}", "launches", "peak MB")
    for use in profile.found.phases:
        memory = profile.memory.get(use.phase)
        table.add_row(
            use.phase, unit(use.work_s), f"{use.launches:,.0f}", "" if memory is None else f"{memory / 1e6:,.0f}"
        )
    return table


def _layers(profile: Profile) -> Table:
    found, unit = profile.found, Unit.for_step(profile.step_s)
    table = _table("By type of layer", "", "launches", "", f"work, {unit.name}", "")
    table.add_column("most of it in")
    whole = sum(use.seconds for use in found.layers) or 1.0
    for use in (*found.layers[:_LAYERS], *_rest(found.layers[_LAYERS:])):
        table.add_row(
            printable(use.layer),
            f"{use.launches:,.0f}",
            f"{use.launches / max(found.launches, 1):.0%}",
            unit(use.seconds),
            f"{use.seconds / whole:.0%}",
            # The one column that gives way on a narrow terminal.
            Text(
                ", ".join(f"{printable(name)} {seconds / (use.seconds or 1):.0%}" for name, seconds in use.top),
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = new_table(title, *columns)
    for column in table.columns:
        column.no_wrap = True
    return table


def _rest(uses: Iterable[LayerUse]) -> list[LayerUse]:
    uses = list(uses)
    if not uses:
        return []
    launches, seconds = sum(use.launches for use in uses), sum(use.seconds for use in uses)
    return [LayerUse(layer=f"{len(uses)} others", launches=launches, seconds=seconds, top=())]


def _counts(profile: Profile) -> str:
    found, about = profile.found, profile.about
    things = "operations" if about.device == "cpu" else "launches"
    return (
        f"{found.launches:,.0f} {things} a step, {found.launches / about.useful_tokens:.2f} a useful token. "
        f"Under the profiler a step takes {told(found.step_s)}: what it adds is taken off"
    )


def _syncs(profile: Profile) -> Iterator[Text]:
    if not profile.syncs:
        yield Text("No source line waits for the device")
        return
    for each in profile.syncs[:_SYNCS]:
        yield Text(f"waits for the device, {each.count:,} a step: {printable(each.where)}")
    if len(profile.syncs) > _SYNCS:
        yield Text(f"and {len(profile.syncs) - _SYNCS} more lines (--json lists them)")


def _compiled(profile: Profile) -> Iterator[Text]:
    graphs = sum(each.kind == "graph" for each in profile.compiled)
    tuned = len(profile.compiled) - graphs
    if profile.compiled:
        yield Text(f"Compiled in the window: {graphs} graphs, {tuned} kernels tuned")
    else:
        yield Text("No code was compiled or tuned in the window")


def _advice(profile: Profile) -> Iterator[Text]:
    if not profile.advice:
        yield Text("No change is predicted to save more than a hundredth of the step")
        return
    for place, each in enumerate(profile.advice, start=1):
        yield Text.assemble(
            (f"{place}. up to {told(each.gain_s)} ({each.gain_s / profile.step_s:.0%})", "bold"),
            f": {printable(each.text)}",
        )
