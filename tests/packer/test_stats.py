"""Every number of `packer stats` against a reckoning by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.config import BuildConfig
from packer.distributions import doubling
from packer.ledger import Books
from packer.report_stats import octaves
from packer.savings import compare
from packer.stats import measure
from tests.support import SAMPLE, TINY, chat, write_jsonl


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stats") / "packed"
    packer.build(
        BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=out, eval_fraction=0.1, workers=1)
    )
    return out


def test_the_baselines_of_four_examples_by_hand() -> None:
    """10, 20, 30 and 60 tokens; 64 slots a row."""
    padded = compare(np.array([10, 20, 30, 60]), capacity=64)
    assert (padded["longest"].batches, padded["longest"].slots, padded["longest"].pad_slots) == (4, 256, 136)
    assert (padded["rows_4"].batches, padded["rows_4"].slots) == (1, 240)
    # By length: 10 and 20 are 40 slots, a third (30) would make 90; 30 alone, since 60 beside it would make 120; 60 alone.
    assert (padded["grouped"].batches, padded["grouped"].slots) == (3, 40 + 30 + 60)


def slow_budget(lengths: list[int], budget: int) -> tuple[int, int]:
    batches: list[list[int]] = [[]]
    for length in lengths:
        if batches[-1] and (len(batches[-1]) + 1) * max([*batches[-1], length]) > budget:
            batches.append([])
        batches[-1].append(length)
    return len(batches), sum(len(batch) * max(batch) for batch in batches)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=50))
def test_the_budget_baselines_by_a_slow_reckoning(lengths: list[int]) -> None:
    padded = compare(np.array(lengths), capacity=64)
    assert (padded["grouped"].batches, padded["grouped"].slots) == slow_budget(sorted(lengths), 64)
    assert padded["token_budget"].slots - padded["token_budget"].pad_slots == sum(lengths)
    assert padded["rows_4"].batches == -(-len(lengths) // 4)
    assert padded["rows_4"].slots <= sum(max(lengths) for _ in lengths)


def test_stats_agree_with_the_rows(built: Path) -> None:
    stats = measure(built).to_json()
    corpus = packer.open(built)
    train = stats["splits"]["train"]
    lengths = np.concatenate([np.diff(row.cu_seqlens[: row.num_examples + 1]) for row in corpus])
    assert train["rows"] == len(corpus)
    assert train["tokens"] == lengths.sum()
    assert train["density"] == lengths.sum() / (len(corpus) * 4096)
    assert train["pad_tokens"] == len(corpus) * 4096 - lengths.sum()
    assert train["supervised_tokens"] == sum(int(row.loss_mask.sum()) for row in corpus)
    assert train["length"]["max"] == lengths.max()
    assert train["length"]["mean"] == pytest.approx(lengths.mean())
    assert train["length"]["p50"] == sorted(lengths)[(len(lengths) - 1) // 2]
    assert train["segments_per_row"]["max"] == max(row.num_segments for row in corpus)
    assert train["segments_per_row"]["mean"] == pytest.approx(np.mean([row.num_segments for row in corpus]))
    slots = len(corpus) * 4096
    assert stats["baselines"]["longest"]["slots"] == len(lengths) * 4096
    assert stats["savings"]["longest"]["fewer_slots"] == pytest.approx(1 - slots / (len(lengths) * 4096))
    assert stats["savings"]["rows_4"]["fewer_batches"] == pytest.approx(1 - len(corpus) / -(-len(lengths) // 4))
    size = sum(path.stat().st_size for split in ("train", "eval") for path in (built / split).iterdir())
    assert stats["bytes_per_token"] == pytest.approx(size / sum(split["tokens"] for split in stats["splits"].values()))
    assert stats["recipe"]["examples_per_row"] == pytest.approx(len(lengths) / len(corpus))


def test_json_has_the_documented_keys_and_nothing_else_on_stdout(built: Path, packer_cli) -> None:
    run = packer_cli("stats", built, "--json")
    assert (run.returncode, run.stderr) == (0, "")
    document = json.loads(run.stdout)
    split_keys = {
        "rows",
        "capacity",
        "max_segments",
        "examples",
        "tokens",
        "supervised_tokens",
        "pad_tokens",
        "density",
        "lower_bound_rows",
    }
    for split in ("train", "eval"):
        assert split_keys | {"segments_per_row", "length"} == set(document["splits"][split])
        assert set(document["splits"][split]["length"]) == {"mean", "p50", "p90", "p99", "max"}
    assert set(document["baselines"]) == set(document["savings"]) == {"rows_4", "token_budget", "grouped", "longest"}
    assert set(document["recipe"]) == {
        "examples_per_row",
        "rows_for_128_examples",
        "steps_per_epoch",
        "padded_steps_per_epoch",
    }


def test_histograms_count_every_example_and_every_row_where_it_belongs(built: Path) -> None:
    document = measure(built).to_json()
    for split in ("train", "eval"):
        corpus = packer.open(built, split=split)
        lengths = [int(length) for row in corpus for length in row.lengths]
        values = {
            "length": lengths,
            "length_log": lengths,
            "fill": [100 * row.tokens // corpus.capacity for row in corpus],
            "segments": [row.num_segments for row in corpus],
        }
        for name, found in document["distributions"][split].items():
            edges, counts = found["edges"], found["counts"]
            assert sum(counts) == len(values[name])
            for low, high, count in zip(edges, edges[1:], counts, strict=False):
                assert count == sum(low <= value < high for value in values[name]), (split, name, low)


def test_steps_an_epoch_padded_are_those_of_128_examples_a_step(built: Path) -> None:
    stats = measure(built)
    assert stats.recipe.padded_steps_per_epoch == -(-stats.splits["train"].examples // 128)


def test_waiting_and_order_are_reckoned_from_the_rows(built: Path, packer_cli) -> None:
    document = json.loads(packer_cli("stats", built, "--json", "--ranks", "2", "--rows-per-step", "4").stdout)
    waiting = document["waiting"]
    assert (waiting["ranks"], waiting["rows_per_step"]) == (2, 4)
    for block in ("every_layer", "one_layer_in_four"):
        assert set(waiting[block]) == {"batch", "window", "off"}
    assert "65,536" in waiting["cost_model"]
    assert set(waiting["make_up"]) == {"random", "window"}
    corpus = packer.open(built)
    assert waiting["steps"] == -(-len(corpus) // 4)
    means = [float(np.diff(row.cu_seqlens[: row.num_examples + 1]).mean()) for row in corpus]
    places = [sum(other < one for other in means) + (means.count(one) + 1) / 2 for one in means]
    expected = np.corrcoef(places, np.arange(len(means)))[0, 1]
    assert document["order"]["length_rank_correlation"] == pytest.approx(expected, abs=1e-9)
    assert document["order"]["length_autocorrelation"] == pytest.approx(np.corrcoef(means[:-1], means[1:])[0, 1])
    default = json.loads(packer_cli("stats", built, "--json").stdout)["waiting"]
    assert (default["ranks"], default["rows_per_step"]) == (8, 8)


@pytest.mark.parametrize("option", ["--ranks", "--rows-per-step"])
def test_no_ranks_or_too_many_rows_are_two_lines(built: Path, packer_cli, option: str) -> None:
    for value in ("0", "65537"):
        run = packer_cli("stats", built, option, value)
        assert run.returncode == 2
        assert run.stderr.splitlines() == [f"error: {option} {value}: must be from 1 to 65536", f"hint: try {option} 8"]


def test_the_report_fits_80_columns_without_colour(built: Path, packer_cli) -> None:
    run = packer_cli("stats", built, COLUMNS="80")
    assert run.returncode == 0
    assert max(len(line) for line in run.stdout.splitlines()) <= 80
    assert "\x1b" not in run.stdout
    for word in (
        "read",
        "of encoded",
        "Lengths",
        "p50",
        "p99",
        "longest",
        "█",
        "density",
        "lower bound",
        "supervised",
        "Recipe",
        "padding",
        "Waiting",
        "window",
        "Order",
    ):
        assert word in run.stdout


def test_text_of_the_data_cannot_write_to_the_terminal(tmp_path: Path, packer_cli) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [{"messages": [{"role": "\x1b[31mred[bold]", "content": "q"}]}])
    run = packer_cli("build", data, "--tokenizer", TINY, "-o", tmp_path / "packed")
    assert run.returncode == 2
    assert "\x1b" not in run.stdout + run.stderr
    assert "[bold]" in run.stderr


def test_an_empty_eval_split_is_reported_as_empty(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a")] * 3)
    packer.build(
        BuildConfig(
            datasets=(str(data),),
            tokenizer=str(TINY),
            capacity=64,
            out=tmp_path / "packed",
            eval_fraction=0.0001,
            workers=1,
        )
    )
    stats = measure(tmp_path / "packed")
    assert stats.splits["eval"].rows == 0
    assert stats.splits["eval"].density == 0


def test_the_histogram_in_the_terminal_has_every_example_and_names_the_percentiles(built: Path, packer_cli) -> None:
    stats = measure(built)
    lines = packer_cli("stats", built, COLUMNS="80").stdout.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("Lengths")) + 3
    shown = []
    for line in lines[first:]:
        found = re.match(r"([\d,]+)(?: to ([\d,]+))? +([\d,]+) *(█*[▏▎▍▌▋▊▉]?) *(.*)$", line)
        if not found:
            break
        low, high, count = (int((found[group] or found[1]).replace(",", "")) for group in (1, 2, 3))
        shown.append((low, high, count, len(found[4]), found[5]))
    train = stats.splits["train"]
    assert sum(count for _, _, count, _, _ in shown) == train.examples
    spread = {"p50": train.length.p50, "p90": train.length.p90, "p99": train.length.p99, "longest": train.length.max}
    for low, high, count, bar, names in shown:
        assert names.strip() == ", ".join(name for name, value in spread.items() if low <= value <= high)
        assert (bar > 0) == (count > 0)
    assert max(shown, key=lambda one: one[2])[3] == max(bar for _, _, _, bar, _ in shown)


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=40))
def test_octaves_are_bins_put_together(lengths: list[int]) -> None:
    merged = octaves(doubling(np.array(lengths)))
    assert sum(merged.counts) == len(lengths)
    for low, high, count in zip(merged.edges, merged.edges[1:], merged.counts, strict=False):
        assert count == sum(low <= length < high for length in lengths)
        assert high <= 2 * low
    assert len(merged.counts) <= 2 + max(lengths).bit_length() - min(lengths).bit_length()


def test_the_books_do_not_close_on_a_wrong_sum() -> None:
    books = Books()
    books.take(tokens=5)
    books.check()
    books.conversations["read"] += 1
    with pytest.raises(RuntimeError, match="does not add up"):
        books.check()
