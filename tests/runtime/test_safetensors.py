"""Our tensor files are what others read, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.safetensors import TensorWriter, read_header

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array(True),
    "c": np.arange(5, dtype=np.int8),
    "empty": np.zeros((3, 0), np.float16),
}


def written(tensors: dict[str, np.ndarray]) -> bytes:
    writer = TensorWriter(tensors)
    data = b"".join(writer.chunks())
    assert len(data) == writer.size
    return data


def test_round_trip_on_64_byte_boundaries() -> None:
    data = written(TENSORS)
    stored = read_header(memoryview(data))
    assert set(stored) == set(TENSORS)
    for name, array in TENSORS.items():
        tensor = stored[name]
        assert (tensor.dtype, tensor.shape) == (array.dtype.name, array.shape)
        assert data[tensor.offset : tensor.offset + tensor.nbytes] == array.tobytes()
        assert tensor.offset % 64 == 0


def test_there_are_no_holes() -> None:
    data = written(TENSORS)
    length = int.from_bytes(data[:8], "little")
    offsets = [entry["data_offsets"] for entry in json.loads(data[8 : 8 + length]).values()]
    position = 0
    for begin, end in offsets:
        assert begin == position
        position = end
    assert 8 + length + position == len(data)


def test_the_original_library_reads_it(tmp_path: Path) -> None:
    numpy_io = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "w.safetensors"
    path.write_bytes(written(TENSORS))
    loaded = numpy_io.load_file(path)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(loaded[name], array)
    assert set(read_header(memoryview(numpy_io.save(TENSORS)))) == set(TENSORS)


@pytest.mark.parametrize("name", ["__metadata__", "__pad__.0"])
def test_reserved_names(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        TensorWriter({name: np.zeros(1)})


def test_strings_are_refused() -> None:
    with pytest.raises(ValueError, match="literals"):
        TensorWriter({"s": np.array(["a"], object)})


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_damaged_header_is_read_or_refused(position: int, change: int) -> None:
    data = bytearray(written(TENSORS))
    data[position % len(data)] ^= change
    try:
        stored = read_header(memoryview(data))
    except ArtifactSchemaError:
        return
    assert all(tensor.offset + tensor.nbytes <= len(data) for tensor in stored.values())
