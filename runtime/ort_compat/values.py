"""OrtValue: an array with ONNX Runtime's interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.device import OnDevice, to_host
from tilestitch.runtime.dtypes import dtype_name, numpy_dtype
from tilestitch.runtime.errors import DeviceError, InputError
from tilestitch.runtime.feeds import dlpack_view, without_gradient
from tilestitch.runtime.types import MapType, OptionalType, SequenceType, ValueType

_TYPE_NAMES = {
    "float32": "float", "float64": "double", "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2", "float8_e5m2fnuz": "float8e5m2fnuz", "float4_e2m1fn": "float4e2m1",
    "float8_e8m0fnu": "float8e8m0",
}  # fmt: skip
"""ONNX Runtime's names of data types, where they differ from ours."""

_ELEMENT_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
}  # fmt: skip
"""ONNX's numbers of data types."""


def type_name(type_: ValueType) -> str:
    """Return a type as ONNX Runtime writes it: `tensor(float)`, `seq(tensor(int64))`."""
    if isinstance(type_, SequenceType):
        return f"seq({type_name(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({type_name(type_.element)})"
    if isinstance(type_, MapType):
        return f"map({type_.key},tensor({_TYPE_NAMES.get(type_.value, type_.value)}))"
    return f"tensor({_TYPE_NAMES.get(type_.dtype, type_.dtype)})"


def dtype_of(element_type: Any) -> np.dtype:
    """Return the data type for ONNX's number, a name, or a numpy type."""
    if isinstance(element_type, int):
        if element_type not in _ELEMENT_TYPES:
            raise InputError(f"element type {element_type} is none of ONNX's; give a data type of numpy")
        return numpy_dtype(_ELEMENT_TYPES[element_type])
    return np.dtype(element_type)


class OrtValue:
    """A value of a model: an array of numpy or on a device, or a list of arrays."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def ortvalue_from_numpy(array: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        _check_cpu(device_type)
        return OrtValue(array)

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value with undefined contents, for a result."""
        _check_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), dtype_of(element_type)))

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """Return a value that shares the memory of another library's array, on the host or a GPU."""
        data = without_gradient(data)
        on_cpu = data.__dlpack_device__()[0] == 1
        return OrtValue(dlpack_view(data, str(getattr(data, "dtype", "")).removeprefix("torch.")) if on_cpu else data)

    def numpy(self) -> Any:
        return to_host(self.value)

    def shape(self) -> list[int]:
        return list(self.value.shape)

    def data_type(self) -> str:
        if isinstance(self.value, list):
            return f"seq({OrtValue(self.value[0]).data_type()})" if self.value else "seq(tensor(float))"
        name = dtype_name(self.value.dtype)
        return f"tensor({_TYPE_NAMES.get(name, name)})"

    def element_type(self) -> int:
        """Return ONNX's number of the data type."""
        return next(number for number, name in _ELEMENT_TYPES.items() if name == dtype_name(self.value.dtype))

    def device_name(self) -> str:
        return "cpu" if isinstance(self.value, (np.ndarray, list)) or self.value is None else "cuda"

    def data_ptr(self) -> int:
        if isinstance(self.value, OnDevice):
            return self.value.address
        return address_of(self.value)

    def tensor_size_in_bytes(self) -> int:
        return int(self.value.nbytes)

    def has_value(self) -> bool:
        return self.value is not None

    def is_tensor(self) -> bool:
        return self.value is not None and not isinstance(self.value, list)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self.value, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def update_inplace(self, data: np.ndarray) -> None:
        """Copy DATA into the value. Raises InputError unless DATA has its data type and shape."""
        if not isinstance(self.value, np.ndarray):
            raise DeviceError("an OrtValue on a GPU is written to by the library that made it; update that array")
        if (data.dtype, data.shape) != (self.value.dtype, self.value.shape):
            raise InputError(
                f"the value is {self.value.dtype}{list(self.value.shape)}, not {data.dtype}{list(data.shape)}"
            )
        self.value[...] = data

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)


def array_at(address: int, element_type: Any, shape: Sequence[int], device_type: str) -> Any:
    """Return an array at an address; the caller keeps the memory alive."""
    dtype, sizes = dtype_of(element_type), tuple(shape)
    if device_type != "cpu":
        return _AtAddress(address, dtype, sizes)
    nbytes = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_char * nbytes).from_address(address)
    return np.ndarray(sizes, dtype, memoryview(memory))


class _AtAddress:
    """An array in a GPU's memory that offers `__cuda_array_interface__`."""

    def __init__(self, address: int, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "typestr": dtype.str, "shape": shape, "strides": None, "version": 3,
        }  # fmt: skip


def _check_cpu(device_type: str) -> None:
    if device_type != "cpu":
        raise DeviceError(
            f"no memory is made on {device_type} here; give a tensor that lies there to OrtValue.from_dlpack, "
            "or bind the output with bind_output(name, 'cuda')"
        )
