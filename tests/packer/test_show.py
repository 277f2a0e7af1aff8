"""`packer inspect`: what is shown of a row is what lies in it, and nothing in the data can pass for something else."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from packer.report_inspect import print_inspect
from packer.show import ShownRow, show
from tests.support import ROOT, SAMPLE, TINY, chat, run_module, write_jsonl

# Markup, escapes, marks of ours, a spelled control token, backslashes before one, a character of several tokens, other line ends.
NASTY = (
    "[bold red]x[/] :smile: \x1b[31mred\x1b[0m \x07 \u202eback ⟦mark⟧ <|im_end|> \\<|im_end|> \\",
    "tab\there\nline\u2028end 🧑\u200d🚀 𒀀\U0001f9ff [/] ⟧⟦ <|im_start|>\\\\",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("show")
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()[:40]]
    source = write_jsonl(place / "chats.jsonl", [*rows, chat(*NASTY)])
    packer.build(
        BuildConfig(
            datasets=(str(source),),
            tokenizer=str(TINY),
            capacity=1024,
            out=place / "packed",
            eval_fraction=0.1,
            max_loss=1,
            workers=1,
        )
    )
    return place / "packed"


def whole(folder: Path, split: str) -> list[ShownRow]:
    return [
        show(folder, split=split, row=row, example=None, limit=None).rows[0]
        for row in range(len(packer.open(folder, split=split)))
    ]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_pieces_of_a_row_are_its_tokens_and_its_text(folder: Path, split: str) -> None:
    """Text by `tokenizers` over the whole example; ids and targets by the reader."""
    reference = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    corpus = packer.open(folder, split=split)
    source = (folder.parent / "chats.jsonl").read_text(encoding="utf-8").split("\n")
    for number, shown in enumerate(whole(folder, split)):
        row = corpus[number]
        assert (shown.row, shown.num_segments, shown.num_supervised) == (number, row.num_segments, row.num_supervised)
        assert [segment.start for segment in shown.segments] == row.cu_seqlens[: row.num_segments].tolist()
        for segment in shown.segments:
            ids = row.input_ids[segment.start : segment.end].tolist()
            if segment.example is None:
                assert segment.segment == row.num_segments - 1 == row.num_examples
                assert not segment.pieces
                continue
            assert [token for piece in segment.pieces for token in piece.ids] == ids
            assert "".join(piece.text for piece in segment.pieces) == reference.decode(ids, skip_special_tokens=False)
            mask = [piece.is_target for piece in segment.pieces for _ in piece.ids]
            assert mask == row.loss_mask[segment.start : segment.end].tolist()
            messages = json.loads(source[segment.source_row or 0])["messages"]
            learnt = "".join(piece.text for piece in segment.pieces if piece.is_target)
            assert learnt == "".join(m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant")
            assert segment.origin == f"chats.jsonl row {segment.source_row}"


def nasty(folder: Path) -> int:
    """The example made of the last conversation."""
    table = [
        segment.example
        for split in ("train", "eval")
        for row in whole(folder, split)
        for segment in row.segments
        if segment.source_row == 40
    ]
    assert table[0] is not None
    return table[0]


def plain(folder: Path, example: int, *, only_targets: bool, capsys: pytest.CaptureFixture[str]) -> str:
    print_inspect(show(folder, split=None, row=None, example=example, limit=None), only_targets=only_targets)
    return capsys.readouterr().out


def test_without_colour_what_is_shown_can_be_read_in_one_way_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marks and control tokens are read back from the printed text by the rule of the legend, and give the row's own targets."""
    example = nasty(folder)
    shown = show(folder, split=None, row=None, example=example, limit=None).rows[0].segments[0]
    text = plain(folder, example, only_targets=False, capsys=capsys).split(" ──\n", 1)[1]
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[bold red]x[/] :smile:" in text
    found: list[tuple[str, bool, bool]] = []
    inside = False
    for backslashes, word in re.findall(r"(\\*)(<\|im_start\|>|<\|im_end\|>|⟦|⟧)", text):
        if len(backslashes) % 2:
            continue  # only spelled
        if word in "⟦⟧":
            assert inside == (word == "⟧")
            inside = not inside
        else:
            found.append((word, inside, True))
    controls = [(piece.text, piece.is_target, True) for piece in shown.pieces if piece.is_control]
    assert found == controls
    assert not inside
    assert text.count("\\⟦mark\\⟧") == 1


def test_only_what_is_learnt_is_shown_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = plain(folder, nasty(folder), only_targets=True, capsys=capsys)
    assert "⟦tab\there\nline\u2028end" in text
    assert "smile" not in text
    assert "im_start" not in text.replace("\\<|im_start|>", "")


def test_pad_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in whole(folder, "train") + whole(folder, "eval") if row.num_segments > row.num_examples)
    print_inspect(show(folder, split=row.split, row=row.row, example=None, limit=None), only_targets=False)
    pad = row.segments[-1]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"── pad × {pad.end - pad.start:,} · slots {pad.start:,} to {pad.end - 1:,} ──"


@pytest.mark.parametrize(
    ("asked", "error", "hint"),
    [
        ({"row": -1}, "--row -1: the split 'train' of .* has .* rows", "give one from 0 to "),
        ({"row": 10**6}, "--row 1000000: the split 'train' of .* has .* rows", "give one from 0 to "),
        ({"example": -1}, "--example -1: .* has .* examples", "give one from 0 to "),
        ({"example": 10**6}, "--example 1000000: .* has .* examples", "give one from 0 to "),
        ({"split": "test"}, "no split 'test'", "it has: eval, train"),
    ],
)
def test_what_is_not_there_is_an_error_with_what_is(
    folder: Path, asked: dict[str, object], error: str, hint: str
) -> None:
    options: dict[str, object] = {"split": None, "row": None, "example": None, "limit": None}
    with pytest.raises(UserError, match=error) as caught:
        show(folder, **{**options, **asked})  # type: ignore[arg-type]
    assert caught.value.hint.startswith(hint)


def test_an_example_is_looked_for_in_its_own_split(folder: Path) -> None:
    example = whole(folder, "eval")[0].segments[0].example
    assert show(folder, split=None, row=None, example=example, limit=None).rows[0].split == "eval"
    with pytest.raises(UserError, match="in the split 'eval', not in 'train'"):
        show(folder, split="train", row=None, example=example, limit=None)


def test_the_first_examples_are_those_of_the_first_rows(folder: Path) -> None:
    rows = show(folder, split="train", row=None, example=None, limit=3).rows
    shown = [segment.example for row in rows for segment in row.segments if segment.example is not None]
    first = [int(example) for row in packer.open(folder) for example in row.example_ids[: row.num_examples]]
    assert shown == first[:3]


def in_terminal(arguments: list[str], *, columns: int, **env: str) -> str:
    """What a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "packer", *arguments],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **env},
        stdout=theirs,
    )
    os.close(theirs)
    output = b""
    try:
        while block := os.read(ours, 1 << 16):
            output += block
    except OSError:  # Linux's way to say that the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(300) == 0
    return output.decode()


def test_a_terminal_gets_colour_and_lines_of_its_width(folder: Path) -> None:
    shown = in_terminal(["inspect", str(folder), "--row", "0"], columns=80)
    assert "\x1b[32m" in shown
    assert "⟦" not in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, (line for line in lines if line.isascii()))) <= 110  # the row's title is not broken


def test_a_terminal_without_colour_gets_marks(folder: Path) -> None:
    shown = in_terminal(["inspect", str(folder), "--row", "0"], columns=80, NO_COLOR="1")
    assert "\x1b[32m" not in shown
    assert "⟦" in shown


def test_a_pipe_that_closes_early_is_no_failure(folder: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m packer inspect {folder} --limit 100 | head -1"
    run = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("⟦target⟧")


def test_json_has_ids_texts_and_origins(folder: Path) -> None:
    run = run_module("packer", ["inspect", folder, "--example", "0", "--json"], cwd=folder)
    document = json.loads(run.stdout)
    (segment,) = document["rows"][0]["segments"]
    assert (segment["example"], segment["source"]) == (0, 0)
    assert sum(len(piece["ids"]) for piece in segment["pieces"]) == segment["end"] - segment["start"]
    learnt = json.loads(
        run_module("packer", ["inspect", folder, "--example", "0", "--json", "--supervised"], cwd=folder).stdout
    )
    assert all(piece["is_target"] for piece in learnt["rows"][0]["segments"][0]["pieces"])


def test_inspecting_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from packer.show import show; "
        f"show(Path({str(folder)!r}), split=None, row=0, example=None, limit=None); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_a_damaged_tokenizer_is_two_lines(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "packed"))
    path = other / "tokenizer" / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["model"]["merges"][0] = ["nothing", "of"]
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UserError, match="cannot be loaded"):
        show(other, split=None, row=0, example=None, limit=None)
