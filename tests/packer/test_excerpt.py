"""What a page shows of the rows: what lies in them, cut where it must be and counted there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import packer
from packer.config import BuildConfig
from packer.excerpt import CONTROL, TARGET, Segment, ShownRow, take
from packer.html.page import inert_json
from packer.show import show
from packer.tokenizer import load_tokenizer
from tests.support import SAMPLE, TINY, chat, write_jsonl


@pytest.fixture(scope="module", params=[1, 64], ids=["packed", "aligned"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("excerpt") / "packed"
    packer.build(
        BuildConfig(
            datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=out, align=request.param, workers=1
        )
    )
    return out


def ids_of(segment: Segment) -> list[tuple[int, int, int]]:
    """(place in the example, id, kind) of every token shown, as a reader of the page counts them."""
    found = []
    for part in segment["parts"]:
        place = part["at"]
        kinds = [kind for count, kind in part["kinds"] for _ in range(count)]
        assert len(kinds) == len(part["ids"]) == len(part["text"])
        for ids, kind in zip(part["ids"], kinds, strict=True):
            for one in ids if isinstance(ids, list) else [ids]:
                found.append((place, one, kind))
                place += 1
    return found


def test_what_is_shown_is_what_lies_in_the_rows(built: Path) -> None:
    corpus = packer.open(built)
    controls = load_tokenizer(str(built / "tokenizer")).added_tokens
    for shown in take(corpus).rows:
        row = corpus[shown["row"]]
        assert (shown["tokens"], shown["targets"]) == (row.tokens, int(row.loss_mask.sum()))
        assert shown["more"] == 0
        assert len(shown["segments"]) == row.num_segments
        for place, segment in enumerate(shown["segments"]):
            start, end = int(row.cu_seqlens[place]), int(row.cu_seqlens[place + 1])
            assert (segment["start"], segment["slots"]) == (start, end - start)
            if place >= row.num_examples:
                assert segment["example"] is None
                assert not segment["parts"]
                continue
            assert segment["tokens"] == row.lengths[place]
            assert segment["targets"] == int(row.loss_mask[start:end].sum())
            tokens = ids_of(segment)
            assert segment["left_out"] == segment["tokens"] - len(tokens)
            for at, token, kind in tokens:
                assert token == row.input_ids[start + at]
                assert bool(kind & TARGET) == bool(row.loss_mask[start + at])
                assert bool(kind & CONTROL) == (token in controls)
            if segment["left_out"]:
                assert tokens[0][0] == 0
                assert tokens[-1][0] == segment["tokens"] - 1


def test_text_and_origin_are_those_of_packer_inspect(built: Path) -> None:
    shown = take(packer.open(built)).rows[0]
    inspected = show(built, split="train", row=shown["row"], example=None, limit=None).rows[0]
    whole = 0
    for segment, other in zip(shown["segments"], inspected.segments, strict=True):
        assert (segment["example"], segment["origin"]) == (other.example, other.origin)
        if not segment["left_out"] and segment["example"] is not None:
            text = "".join(text for part in segment["parts"] for text in part["text"])
            assert text == "".join(piece.text for piece in other.pieces)
            whole += 1
    assert whole


def test_the_drawn_examples_are_those_of_the_first_rows(built: Path) -> None:
    corpus = packer.open(built)
    drawn = take(corpus).buffers
    for number, lane in enumerate(drawn.packed):
        row = corpus[number]
        assert [block.example for block in lane.blocks] == row.example_ids[: row.num_examples].tolist()
        assert [block.tokens for block in lane.blocks] == row.lengths.tolist()
        assert [block.start for block in lane.blocks] == row.cu_seqlens[: row.num_examples].tolist()
    packed = sorted(block.example for lane in drawn.packed for block in lane.blocks)
    padded = sorted(lane.blocks[0].example for batch in drawn.padded for lane in batch)
    assert packed == padded


def test_the_choice_has_the_first_rows_and_the_extremes(built: Path) -> None:
    corpus = packer.open(built)
    why = {shown["row"]: shown["why"] for shown in take(corpus).rows}
    tokens = np.array([row.tokens for row in corpus])
    targets = np.array([row.num_supervised for row in corpus])
    assert {0, 1} <= set(why)
    assert any("emptiest" in reasons and tokens[row] == tokens.min() for row, reasons in why.items())
    assert any("most targets" in reasons and targets[row] == targets.max() for row, reasons in why.items())


def test_a_row_of_very_many_examples_is_cut_and_says_so(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "short.jsonl", [chat(f"q{number}", "a") for number in range(3000)])
    out = tmp_path / "packed"
    packer.build(
        BuildConfig(
            datasets=(str(data),), tokenizer=str(TINY), capacity=16384, max_segments=0, out=out, workers=1, max_loss=1
        )
    )
    corpus = packer.open(out)
    excerpt = take(corpus)
    fullest: ShownRow = next(shown for shown in excerpt.rows if "most segments" in shown["why"])
    assert corpus[fullest["row"]].num_segments == len(fullest["segments"]) + fullest["more"]
    assert fullest["more"] > 0
    # What is left of the list is still decoded, at least in part.
    assert all(segment["parts"] for segment in fullest["segments"])
    assert sum(len(lane.blocks) for lane in excerpt.buffers.packed) + excerpt.buffers.more >= corpus[0].num_examples
    assert sum(len(lane.blocks) for lane in excerpt.buffers.packed) <= 128
    assert excerpt.buffers.packed[-1].slots < corpus.capacity
    assert len(inert_json(excerpt.rows).encode()) < 265_000
