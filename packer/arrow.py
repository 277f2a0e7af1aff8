"""Arrow arrays from numpy's memory, by buffer.

`pa.array` first asks whether it was given a pandas series, and imports pandas to find out: a quarter of a second that nothing here needs.

    >>> of_numpy(np.array([1, 2], dtype=np.int16)).to_pylist(), of_numpy(np.array([True, False])).to_pylist()
    ([1, 2], [True, False])
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from packer.types import BoolArray


def of_numpy(values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """A one-dimensional array of numbers or booleans, converted to `kind` where that is another; numbers are not copied otherwise."""
    if values.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
    if kind is not None:
        values = values.astype(kind.to_pandas_dtype(), copy=False)
    flat = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])


def to_numpy(array: pa.Array) -> np.ndarray:
    """A view of an array of numbers without nulls (booleans are unpacked); the inverse of `of_numpy`."""
    if pa.types.is_boolean(array.type):
        return unpack_bits(array, 0, len(array))
    start, end = array.offset, array.offset + len(array)
    return np.frombuffer(array.buffers()[1] or b"", dtype=array.type.to_pandas_dtype())[start:end]


def unpack_bits(array: pa.BooleanArray, start: int, end: int) -> BoolArray:
    """bool [end - start]: places start to end of an Arrow boolean array (which itself may begin anywhere in its buffer)."""
    bits = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint8)
    first_byte, skip = divmod(array.offset + start, 8)
    end_byte = -(-(array.offset + end) // 8)
    unpacked = np.unpackbits(bits[first_byte:end_byte], bitorder="little", count=skip + end - start)
    return unpacked[skip:].view(np.bool_)


def of_words(chosen: np.ndarray, words: tuple[str, ...]) -> pa.Array:
    """Strings: words[chosen[i]] for each i."""
    encoded = tuple(word.encode() for word in words)
    places = chosen.astype(np.int64)
    sizes = np.array([len(word) for word in encoded], dtype=np.int64)[places]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    text = b"".join(map(encoded.__getitem__, places.tolist()))
    return pa.Array.from_buffers(pa.string(), len(places), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
