"""Arrays go to Arrow and come back unchanged, by buffer, and nobody imports pandas for it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from packer.arrow import of_numpy, of_words, to_numpy
from tests.support import ROOT, SAMPLE, TINY


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint16", "bool"])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_arrays_come_back_as_they_were(dtype: str, size: int) -> None:
    values = np.random.Generator(np.random.PCG64(size)).integers(0, 2, size).astype(dtype)
    array = of_numpy(values)
    assert array.equals(pa.array(values))
    assert to_numpy(array).tolist() == values.tolist()
    assert to_numpy(array).dtype == values.dtype
    assert to_numpy(array[size // 3 :]).tolist() == values[size // 3 :].tolist()


def test_numbers_are_converted_to_the_kind_asked_for_and_strides_are_followed() -> None:
    assert of_numpy(np.arange(10, dtype=np.int64)[::3], pa.int32()).equals(pa.array([0, 3, 6, 9], type=pa.int32()))


def test_words_are_chosen_one_by_one() -> None:
    assert of_words(np.array([True, False, True]), ("train", "eval")).to_pylist() == ["eval", "train", "eval"]
    assert of_words(np.array([], dtype=bool), ("a", "b")).to_pylist() == []


def test_a_build_imports_no_pandas(tmp_path) -> None:
    code = (
        "import sys, packer; from pathlib import Path; from packer.config import BuildConfig; "
        f"packer.build(BuildConfig(datasets=({str(SAMPLE)!r},), tokenizer={str(TINY)!r}, capacity=4096, out=Path({str(tmp_path / 'packed')!r}))); "
        "print('pandas' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert run.stdout.splitlines()[-1] == "False"
