"""What loading and exporting hold at most, by the system's own count of each process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support import ROOT
from tests.trainer.checkpoints import saved
from tests.trainer.shards_fixture import VOCAB, random_rows, write_corpus
from trainer import RunConfig, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is counted by /proc")
# Beyond what is promised: what the allocator keeps, sockets, code that is used for the first time. Measured 18 to 35 MB.
SLACK = 64_000_000
_SHAPE = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
SIZES: dict[str, dict[str, object]] = {
    "60 M": {**_SHAPE, "vocab_size": 8_000, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12},
    "200 M": {**_SHAPE, "vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 13},
}


def module(name: str, *arguments: object, ranks: int = 1) -> list[dict[str, int]]:
    """A module's lines of JSON, one a rank."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    result = subprocess.run(
        [sys.executable, "-m", *launcher, name, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == ranks
    return lines


def sizes(source: Path) -> list[int]:
    """Bytes of a model's parameters in float32."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    return [parameter.numel() * 4 for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("size", "init"),
    [
        ("60 M", "pretrained"),
        pytest.param("200 M", "pretrained", marks=pytest.mark.full),
        pytest.param("200 M", "random", marks=pytest.mark.full),
    ],
)
def test_a_rank_holds_its_part_and_one_tensor(size: str, init: str, tmp_path: Path) -> None:
    saved("qwen3", tmp_path).rename(tmp_path / "warm")
    source = saved("qwen3", tmp_path, **SIZES[size]).rename(tmp_path / "large")
    tensors = sizes(source)
    whole, largest = sum(tensors), max(tensors)
    assert size != "200 M" or whole // 4 > 190_000_000
    for rank in module("tests.trainer.loading_script", "--memory", source, init, ranks=2):
        assert rank["shard"] <= whole // 2 + 4096 * len(tensors)
        assert rank["rise"] <= rank["shard"] + largest + SLACK
        assert rank["rise"] < whole


@pytest.mark.parametrize("like_base", [False, pytest.param(True, marks=pytest.mark.full)])
def test_an_export_holds_twice_the_largest_tensor(like_base: bool, tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(2, seed=0))
    rows, width = 48_000, 256  # one tensor of 49 MB, as it is saved, among small ones
    base = saved("llama", tmp_path, vocab_size=rows, hidden_size=width, intermediate_size=64)
    out = tmp_path / "run"
    options = RunConfig(shards=str(tmp_path / "packed"), model=str(base), steps=1, rows_per_step=1, out=str(out))
    assert run(options) == 0
    (line,) = module("tests.trainer.export_memory_script", out, tmp_path / "out", int(like_base))
    assert line["written"] > rows * width * 2
    assert line["rise"] <= 2 * rows * width * 4 + SLACK // 2


def test_an_export_does_not_grow_with_the_number_of_layers(tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(2, seed=0))
    base = saved("qwen3", tmp_path, num_hidden_layers=12, vocab_size=VOCAB, hidden_size=256, intermediate_size=4096)
    options = RunConfig(
        shards=str(tmp_path / "packed"), model=str(base), steps=1, rows_per_step=1, out=str(tmp_path / "run")
    )
    assert run(options) == 0
    (line,) = module("tests.trainer.export_memory_script", tmp_path / "run", tmp_path / "out", 0)
    assert sum(sizes(base)) > 150_000_000
    assert line["rise"] <= 2 * max(sizes(base)) + SLACK // 2
