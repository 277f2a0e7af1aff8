"""The page of `packer stats --html`: its numbers are those of `--json`, its size is bounded, and no text of the data is markup in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from packer.excerpt import take
from packer.html.axes import share
from packer.html.page import write_page
from packer.stats import measure
from packer.stats_page import stats_page
from tests.packer.hostile import TEXTS, hostile_folder
from tests.support import SAMPLE, TINY

MOST_BYTES = 500_000


class Tables(HTMLParser):
    """Every table by its caption: rows of cells, the head's first."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[str] = []
        self._rows: list[list[str]] = []
        self._inside = ""
        self._caption = ""
        self.feed(html)

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        if tag in ("td", "th", "caption"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "caption"):
            self._inside = ""
        elif tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if self._inside == "caption":
            self._caption += data
        elif self._inside:
            self._rows[-1][-1] += data


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "packed"
    packer.build(
        BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=out, eval_fraction=0.1, workers=1)
    )
    return out


def page_of(folder: Path) -> str:
    return stats_page(measure(folder), take(packer.open(folder)), name=str(folder))


def test_the_numbers_of_the_page_are_those_of_the_json(built: Path, packer_cli, tmp_path: Path) -> None:
    run = packer_cli("stats", built, "--json", "--html", tmp_path / "stats.html")
    assert (run.returncode, run.stderr) == (0, "")
    document = json.loads(run.stdout)
    tables = Tables((tmp_path / "stats.html").read_text(encoding="utf-8")).tables
    splits = document["splits"]

    rows = {row[0]: row[1:] for row in tables["Rows by split"]}
    for label, key in (
        ("rows", "rows"),
        ("slots a row", "capacity"),
        ("examples", "examples"),
        ("tokens", "tokens"),
        ("targets", "supervised_tokens"),
        ("padding", "pad_tokens"),
    ):
        assert rows[label] == [f"{splits[name][key]:,}" for name in ("train", "eval")]
    assert rows["tokens of the slots (density)"] == [share(splits[name]["density"]) for name in ("train", "eval")]
    assert rows["segments a row, most"] == [str(splits[name]["segments_per_row"]["max"]) for name in ("train", "eval")]

    lengths = {row[0]: row[1:] for row in tables["Tokens an example"]}
    for label, key in (("half are at most (p50)", "p50"), ("p90", "p90"), ("p99", "p99"), ("longest", "max")):
        assert lengths[label] == [f"{splits[name]['length'][key]:,}" for name in ("train", "eval")]

    padded = {row[0]: row[1:] for row in tables["The train split, packed and padded in four ways"]}
    for label, key in (
        ("4 examples a batch", "rows_4"),
        ("as many as fit in a row's slots", "token_budget"),
        ("the same, grouped by length", "grouped"),
        ("every example to the capacity", "longest"),
    ):
        baseline, saving = document["baselines"][key], document["savings"][key]
        assert padded[label] == [
            f"{baseline['batches']:,}",
            f"{baseline['slots']:,}",
            share(baseline["pad_fraction"]),
            share(saving["fewer_slots"]),
        ]

    recipe = {row[0]: row[1:] for row in tables["A recipe of 128 examples a step"]}
    assert recipe["batches or rows a step"][1] == f"{document['recipe']['rows_for_128_examples']:,}"
    assert recipe["steps an epoch"] == [
        f"{document['recipe'][key]:,}" for key in ("padded_steps_per_epoch", "steps_per_epoch")
    ]

    waiting = {row[0]: row[1:] for row in tables["8 ranks, 8 rows a step, 6 steps simulated"]}
    assert waiting["full attention in every layer"] == [
        share(document["waiting"]["every_layer"][name]) for name in ("off", "batch", "window")
    ]

    ledger = {row[0]: row[1:] for row in tables["The ledger"]}
    assert ledger["read"][0] == f"{document['ledger']['conversations']['read']:,}"
    assert ledger["in rows"][2] == f"{document['ledger']['tokens']['in_rows']:,}"


def test_the_tables_behind_the_charts_hold_every_bin_of_the_json(built: Path) -> None:
    document = measure(built).to_json()
    tables = Tables(page_of(built)).tables
    for caption, key in (
        ("Examples by length, bins of the linear scale", "length"),
        ("Examples by length, bins of the logarithmic scale", "length_log"),
        ("Rows of the train split by segments", "segments"),
    ):
        found = document["distributions"]["train"][key]
        wanted = [
            [f"{low:,}" if high - low == 1 else f"{low:,} to {high - 1:,}", f"{count:,}"]
            for low, high, count in zip(found["edges"], found["edges"][1:], found["counts"], strict=False)
            if count
        ]
        assert tables[caption][1:] == wanted
    fill = document["distributions"]["train"]["fill"]["counts"]
    assert [row[1] for row in tables["Rows of the train split by how full they are"][1:]] == [
        f"{count:,}" for count in reversed(fill)
    ]


def test_every_reason_of_the_ledger_is_in_its_table(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path)
    ledger = {row[0]: row[1:] for row in Tables(page_of(folder)).tables["The ledger"]}
    assert ledger["left out: <script>window.ran=1</script>"][0] == "5"


@pytest.mark.parametrize(("copies", "capacity", "segments"), [(1, 512, None), (400, 32_768, 0)], ids=["few", "many"])
def test_a_page_of_hostile_text_is_below_500_kb_and_has_the_elements_of_any_other(
    tmp_path: Path, copies: int, capacity: int, segments: int | None
) -> None:
    html = page_of(hostile_folder(tmp_path, copies=copies, capacity=capacity, segments=segments))
    assert len(html.encode()) < MOST_BYTES
    tags = Tables(html).tags
    assert tags.count("script") == 3
    assert tags.count("style") == 1
    assert not {"img", "iframe", "b"} & set(tags) - {"b"}
    assert "49" not in "".join(text for text in TEXTS)
    assert "{{ 7*7 }}" in html
    assert "\u202e" not in html


def test_the_page_is_written_whole_or_an_error_says_why(built: Path, packer_cli, tmp_path: Path) -> None:
    run = packer_cli("stats", built, "--html", tmp_path / "no" / "stats.html")
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        f"error: --html {tmp_path / 'no' / 'stats.html'}: cannot be written (No such file or directory)",
        "hint: give a file in a folder that is there, --html page.html",
    ]
    with pytest.raises(UserError, match="Is a directory"):
        write_page(tmp_path, "<html>", option="--html")
    assert not list(tmp_path.iterdir())


def test_equal_folders_give_equal_pages(built: Path) -> None:
    assert page_of(built) == page_of(built)
