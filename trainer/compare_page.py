"""The page that `trainer compare --html FILE` writes, from the document of `trainer compare --json`: whether packing changed the loss, and what it gained.

    html = compare_page(document)

Loss curves of every rung and seed, the held-out loss with its interval beside the margin and a verdict in words, and the speed ladder. The shell and the
charts are those of `packer.html`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from markupsafe import Markup

from packer.html.charts import Bar, Part, bars
from packer.html.lines import Curve, Interval, curves, intervals
from packer.html.page import Page, Section, render
from packer.html.parts import Card, View, cards, facts, figure, legend, paragraph, table, views
from trainer.compare_document import Document, Loss, Run, Rung

_MOST_CURVES = 42
_UNKNOWN = "not measured"


def compare_page(document: Mapping[str, object]) -> str:
    """One self-contained HTML page. document: as `trainer.compare_document.Document` has it; raises KeyError where it lacks what that demands."""
    found = cast("Document", document)
    loss, ladder = found["loss"], found["ladder"]
    sections = [
        Section(
            key="held-out",
            title="Held-out loss",
            body=_held_out(loss),
            lead="The same examples, steps, seeds and recipe, padded and packed. Each seed gives a pair, so that what differs is the packing.",
        ),
        Section(
            key="speed",
            title="Speed ladder",
            short="Speed",
            body=_ladder(ladder),
            lead="Useful tokens are those of examples; padding is not counted, however fast it is computed.",
        ),
    ]
    if runs := found.get("curves"):
        sections.insert(0, Section(key="curves", title="Loss by step", short="Curves", body=_curves(runs)))
    if setting := found.get("setting"):
        sections.append(
            Section(
                key="setting",
                title="Setting",
                body=facts({_words(name): _value(value) for name, value in setting.items()}),
            )
        )
    return render(
        Page(
            title="Padded against packed",
            lead=verdict(loss),
            facts=_cards(loss, ladder),
            sections=sections,
            foot="The numbers are those of trainer compare --json.",
        )
    )


def verdict(loss: Loss) -> str:
    """What the held-out losses say, in a sentence."""
    difference, seeds = _mean(loss["difference_per_seed"]), len(loss["difference_per_seed"])
    found = f"packed less padded is {difference:+.4f} on average over {seeds} {'seed' if seeds == 1 else 'seeds'}"
    if loss["equivalent"] is None:
        return f"No verdict: {found}, and fewer than 3 seeds cannot tell a difference from chance."
    interval, margin = loss["interval_95"], loss["margin"]
    between = f", 95% interval {interval[0]:+.4f} to {interval[1]:+.4f}" if interval else ""
    beside = f" the margin of ±{margin:.4f}" if margin is not None else " the margin"
    if loss["equivalent"]:
        return f"Equivalent: {found}{between}, inside{beside}."
    return f"Not shown to be equivalent: {found}{between}, not inside{beside}."


def _cards(loss: Loss, ladder: Sequence[Rung]) -> Markup:
    names = {True: "equivalent", False: "not shown equal", None: "no verdict"}
    shown = [
        Card(
            value=names[loss["equivalent"]],
            label="held-out loss, packed and padded",
            note=f"{_mean(loss['difference_per_seed']):+.4f} on average",
        )
    ]
    best = max((rung for rung in ladder if rung["ratio"] is not None), key=_ratio, default=None)
    if best is not None and len(ladder) > 1:
        shown.append(
            Card(
                value=f"{_ratio(best):.2f}×",
                label="useful tokens a second",
                note=f"{best['name']}, against {ladder[0]['name']}",
            )
        )
    return cards(*shown)


def _held_out(loss: Loss) -> Markup:
    differences, margin = loss["difference_per_seed"], loss["margin"]
    rows = [
        [str(number), f"{padded:.4f}", f"{packed:.4f}", f"{difference:+.4f}"]
        for number, (padded, packed, difference) in enumerate(
            zip(loss["padded"]["per_seed"], loss["packed"]["per_seed"], differences, strict=True)
        )
    ]
    low, high = loss["interval_95"] or (None, None)
    ranges = [Interval(label="mean difference, 95% interval", middle=_mean(differences), low=low, high=high)]
    ranges += [
        Interval(label=f"seed {number}", middle=difference, low=None, high=None, style="one")
        for number, difference in enumerate(differences)
    ]
    known = [
        f"margin ±{margin:.4f}" if margin is not None else "no margin",
        f"two runs of the same differ by {loss['replicate_floor']:.4f}" if loss["replicate_floor"] is not None else "",
    ]
    notes = ", ".join(one for one in known if one)
    picture = figure(
        intervals(ranges, margin=margin, label=verdict(loss), unit="of loss"),
        title="Packed less padded, held-out loss",
        note=f"The band is the margin: a difference inside it counts for nothing. {notes[0].upper()}{notes[1:]}.",
    )
    foot = [
        "mean (standard deviation)",
        *(
            f"{held['mean']:.4f}" + (f" ({held['std']:.4f})" if held["std"] is not None else "")
            for held in (loss["padded"], loss["packed"])
        ),
        f"{_mean(differences):+.4f}",
    ]
    return Markup("{}{}{}").format(
        paragraph(verdict(loss)),
        picture,
        table(["seed", "padded", "packed", "packed less padded"], rows, caption="Held-out loss by seed", foot=foot),
    )


def _ladder(ladder: Sequence[Rung]) -> Markup:
    measured = [rung for rung in ladder if rung["useful_tokens_per_s"] is not None]
    drawn = bars(
        [
            Bar(
                label=rung["name"],
                parts=(Part(size=rung["useful_tokens_per_s"] or 0.0, style=_style(rung)),),
                value=f"{rung['useful_tokens_per_s'] or 0:,.0f} a second"
                + (f", {rung['ratio']:.2f}×" if rung["ratio"] is not None else ""),
            )
            for rung in measured
        ],
        end=max((rung["useful_tokens_per_s"] or 0.0 for rung in measured), default=1.0) or 1.0,
        label="Useful tokens a second of each rung",
    )
    rows = [
        [
            rung["name"],
            _number(rung["useful_tokens_per_s"], ",.0f"),
            _number(rung["ratio"], ".2f", "×"),
            _number(rung["slots_per_useful"], ".3f"),
            _number(rung["steps"], ","),
            _number(rung["ops_per_useful_token"], ",.2f"),
            _number(rung["graphs_compiled"], ","),
            _number(None if rung["peak_memory_bytes"] is None else rung["peak_memory_bytes"] / 2**30, ",.2f", " GiB"),
        ]
        for rung in ladder
    ]
    head = ["rung", "useful tokens a second", "ratio", "slots a useful token", "steps", "operations a useful token"]
    return Markup("{}{}").format(
        figure(drawn, title="Useful tokens a second"),
        table([*head, "graphs compiled", "peak memory"], rows, caption="The ladder"),
    )


def _curves(runs: Mapping[str, Sequence[Run]]) -> Markup:
    drawn: list[Curve] = []
    ends: list[list[str]] = []
    for style, (name, of_rung) in enumerate(runs.items()):
        for run in of_rung:
            points = [
                (float(step), float(value))
                for step, value in zip(run["steps"], run["loss"], strict=True)
                if value is not None and math.isfinite(value)
            ]
            if points:
                label = f"{name}, seed {run['seed']}"
                drawn.append(
                    Curve(label=label, style=style, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
                )
                ends.append([label, f"{points[0][1]:.4f}", f"{points[-1][1]:.4f}", f"{points[-1][0]:,.0f}"])
    left = len(drawn) - _MOST_CURVES
    drawn = drawn[:_MOST_CURVES]
    middle = max((curve.x[-1] for curve in drawn), default=0.0) / 2
    note = "A line a seed." + (f" {left} more are only in the table." if left > 0 else "")
    second = [part for part in (_from(curve, middle) for curve in drawn) if part is not None]
    choices = [
        View(
            label=name,
            body=figure(curves(shown, label=f"Training loss, {name}", x_name="step"), title="Training loss", note=note),
        )
        for name, shown in (("all steps", drawn), ("second half", second))
    ]
    behind = table(["", "first loss", "last loss", "last step"], ends, caption="Ends of the curves")
    return Markup("{}{}<details><summary>The numbers as a table</summary>{}</details>").format(
        legend(*((f"line line-{style % 7}", name) for style, name in enumerate(runs))),
        views(*choices, key="steps", legend="Steps"),
        behind,
    )


def _from(curve: Curve, first: float) -> Curve | None:
    """The places from `first` on, on a scale of their own."""
    kept = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if x >= first]
    return replace(curve, x=tuple(x for x, _ in kept), y=tuple(y for _, y in kept)) if kept else None


def _style(rung: Rung) -> str:
    return "padded" if "padded" in rung["name"] else "packed"


def _ratio(rung: Rung) -> float:
    return rung["ratio"] or 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _number(value: float | int | None, form: str, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:{form}}{unit}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(str(key))} {_value(inner)}" for key, inner in value.items())
    if value is None:
        return "none"
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return str(value)
    return ", ".join(map(_value, value))
