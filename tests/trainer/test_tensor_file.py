"""Files of tensors against the safetensors library: each reads what the other writes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from packer.errors import UserError
from trainer.tensor_file import TensorWriter, entry, read_header, read_rows, read_whole

TENSORS = {
    "a.weight": torch.randn(7, 3, 2).bfloat16(),
    "b.weight": torch.randn(5, 4),
    "c.scalar": torch.tensor(2.5, dtype=torch.float64),
    "d.empty": torch.zeros(0, 3),
    "e.mask": torch.tensor([True, False, True]),
    "f.half": torch.randn(9).half(),
    "g.counts": torch.arange(4),
}


def test_what_the_library_writes_is_read_back_whole_and_by_rows(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    header = read_header(tmp_path / "x.safetensors")
    assert header.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        read = read_whole(header[name])
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
    assert torch.equal(read_rows(header["a.weight"], 2, 5), TENSORS["a.weight"][2:5])
    assert read_rows(header["b.weight"], 5, 5).shape == (0, 4)


def test_what_is_written_in_any_order_is_what_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    writer = TensorWriter(path, [entry(name, tensor.dtype, tensor.shape) for name, tensor in TENSORS.items()])
    for name in sorted(TENSORS, reverse=True):
        writer.add(name, TENSORS[name])
    writer.finish()
    writer.close()
    back = load_file(path)
    assert back.keys() == TENSORS.keys()
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in TENSORS.items())
    assert list(read_header(path)) == list(TENSORS), "they lie in the order in which they were named"


def test_a_tensor_is_cast_as_torch_casts_and_copied_byte_for_byte(tmp_path: Path) -> None:
    save_file({"w": TENSORS["b.weight"], "f8": torch.randn(6).to(torch.float8_e4m3fn)}, tmp_path / "from.safetensors")
    source = read_header(tmp_path / "from.safetensors")
    writer = TensorWriter(tmp_path / "to.safetensors", [entry("v", torch.bfloat16, (5, 4)), source["f8"]])
    writer.add("v", read_whole(source["w"]))
    writer.copy(source["f8"])
    writer.finish()
    writer.close()
    back = load_file(tmp_path / "to.safetensors")
    assert torch.equal(back["v"], TENSORS["b.weight"].bfloat16())
    there = load_file(tmp_path / "from.safetensors")["f8"]
    assert torch.equal(back["f8"].view(torch.uint8), there.view(torch.uint8))


def test_a_file_that_lacks_a_tensor_is_never_called_finished(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path / "x", [entry("a", torch.float32, (2,)), entry("b", torch.float32, (2,))])
    writer.add("a", torch.zeros(2))
    with pytest.raises(AssertionError, match="b was not written"):
        writer.finish()
    writer.close()


def damaged(path: Path, **changes: object) -> Path:
    """A file of one tensor of 4 numbers with its header's entry changed."""
    said = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}
    text = json.dumps({"w": said}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [5]},
        {"shape": [-4]},
        {"shape": "4"},
        {"shape": [4.0]},
        {"data_offsets": [4, 20]},
        {"data_offsets": [0, 12]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [0]},
        {"data_offsets": None},
        {"dtype": "F64"},
    ],
    ids=str,
)
def test_a_header_that_cannot_be_true_is_two_lines(changes: dict[str, object], tmp_path: Path) -> None:
    read_header(damaged(tmp_path / "right"))
    with pytest.raises(UserError, match=r"the weights of .* cannot be read"):
        read_header(damaged(tmp_path / "x", **changes))


@pytest.mark.parametrize("content", [b"", b"\x02", b"\xff" * 64, (9).to_bytes(8, "little") + b"[1, 2, 3]", b"PK" * 40])
def test_a_file_that_is_something_else_is_two_lines(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=r"the weights of .* cannot be read"):
        read_header(tmp_path / "x")


def test_a_file_cut_short_after_it_was_looked_at_is_two_lines(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(8)}, tmp_path / "x")
    stored = read_header(tmp_path / "x")["w"]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-4])
    with pytest.raises(UserError, match="ends in the midst of w"):
        read_whole(stored)
