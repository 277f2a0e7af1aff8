"""The page of `trainer compare --html`: its numbers are the document's, its verdict says what they say, and no text is markup in it."""

from __future__ import annotations

import copy

import pytest

from tests.packer.html.test_page import HOSTILE, Reader
from tests.packer.test_stats_page import Tables
from tests.trainer.compare_document import RUNGS, document
from trainer.compare_page import compare_page, verdict


def test_the_numbers_are_those_of_the_document() -> None:
    found = document()
    tables = Tables(compare_page(found)).tables
    ladder = {row[0]: row[1:] for row in tables["The ladder"]}
    for rung in found["ladder"]:
        speed, ratio, slots, steps, ops, graphs, memory = ladder[rung["name"]]
        assert speed == f"{rung['useful_tokens_per_s']:,.0f}"
        assert ratio == f"{rung['ratio']:.2f}×"
        assert slots == f"{rung['slots_per_useful']:.3f}"
        assert (steps, ops, graphs, memory) == ("200", "41.25", str(rung["graphs_compiled"]), "3.00 GiB")
    losses = tables["Held-out loss by seed"]
    assert losses[1] == ["0", "3.6012", "3.6020", "+0.0008"]
    assert losses[-1] == ["mean (standard deviation)", "3.6036 (0.0063)", "3.6037 (0.0055)", "+0.0002"]
    ends = {row[0]: row[1:] for row in tables["Ends of the curves"]}
    assert len(ends) == 1 + 4 * 3
    run = found["curves"][RUNGS[3]][2]
    assert ends[f"{RUNGS[3]}, seed 2"] == [f"{run['loss'][0]:.4f}", f"{run['loss'][-1]:.4f}", "200"]


@pytest.mark.parametrize(
    ("equivalent", "starts", "card"),
    [
        (True, "Equivalent: packed less padded is +0.0002 on average over 3 seeds, 95% interval -0.0019 to +0.0022, inside the margin of ±0.0100.", "equivalent"),
        (False, "Not shown to be equivalent: packed less padded is +0.0002", "not shown equal"),
        (None, "No verdict: packed less padded is +0.0002 on average over 3 seeds, and fewer than 3 seeds", "no verdict"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_the_document_does(equivalent: bool | None, starts: str, card: str) -> None:
    found = document(equivalent=equivalent)
    assert verdict(found["loss"]).startswith(starts)
    html = compare_page(found)
    assert starts in html.replace("&#39;", "'")
    assert f"<dd>{card}</dd>" in html


def test_what_was_not_measured_is_said_and_breaks_nothing() -> None:
    found = document(equivalent=None)
    found["ladder"][1] = {**found["ladder"][1], "useful_tokens_per_s": None, "ratio": None, "peak_memory_bytes": None}
    found["loss"] |= {"interval_95": None, "margin": None, "replicate_floor": None}
    found["loss"]["padded"]["std"] = None
    found["curves"][RUNGS[0]][0]["loss"][3] = None
    found["curves"][RUNGS[0]][1]["loss"] = [float("nan")] * 200
    del found["setting"]
    tables = Tables(compare_page(found)).tables
    row = next(row for row in tables["The ladder"] if row[0] == RUNGS[1])
    assert (row[1], row[2], row[-1]) == ("not measured", "not measured", "not measured")
    assert f"{RUNGS[0]}, seed 1" not in {row[0] for row in tables["Ends of the curves"]}


def test_a_document_without_curves_and_setting_has_no_empty_sections() -> None:
    found = document()
    del found["curves"], found["setting"]
    sections = [attributes.get("id") for tag, attributes in Reader(compare_page(found)).elements if tag == "section"]
    assert sections == ["held-out", "speed"]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_the_document_are_only_text(text: str) -> None:
    plain, hostile = document(), copy.deepcopy(document())
    hostile["ladder"][0]["name"] = text
    hostile["curves"] = {text if name == RUNGS[0] else name: runs for name, runs in hostile["curves"].items()}
    hostile["setting"] = {text: text, **{str(n): "x" for n in range(len(plain["setting"]) - 1)}}
    tags = [tag for tag, _ in Reader(compare_page(plain)).elements]
    assert [tag for tag, _ in Reader(compare_page(hostile)).elements] == tags


def test_the_page_runs_no_script_and_is_small() -> None:
    found = document()
    found["curves"] = {
        name: [{"seed": seed, "steps": list(range(20_000)), "loss": [3.5] * 20_000} for seed in range(5)]
        for name in RUNGS
    }
    html = compare_page(found)
    assert "script-src 'none'" in html.replace("&#39;", "'")
    assert len(html.encode()) < 500_000
