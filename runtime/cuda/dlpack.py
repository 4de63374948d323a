"""Implementation of DLPack: views of other libraries' arrays in a GPU's memory, and capsules of our own.

numpy supports DLPack for the host only. The layouts are those of dlpack.h, version 0.8, which every library still
takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilestitch.runtime.dtypes import numpy_dtype

CUDA, CUDA_MANAGED = 2, 13
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "c": _COMPLEX, "b": _BOOL}
_NAMES = {
    _INT: {8: "int8", 16: "int16", 32: "int32", 64: "int64"},
    _UINT: {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64"},
    _FLOAT: {16: "float16", 32: "float32", 64: "float64"},
    _BFLOAT: {16: "bfloat16"},
    _COMPLEX: {64: "complex64", 128: "complex128"},
    _BOOL: {8: "bool"},
}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter))

_python = ctypes.pythonapi
_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _python))
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_FRESH, _USED = b"dltensor", b"used_dltensor"  # the interpreter keeps the pointers to these names


class View(NamedTuple):
    """An array in a GPU's memory that another library owns; `release`, to be called once, gives it back."""

    address: int
    device: int
    dtype: np.dtype
    shape: tuple[int, ...]
    contiguous: bool
    release: Callable[[], None]


def read(capsule: Any) -> View | None:
    """Consume a capsule. None for one whose memory is not on a GPU; that one stays its owner's.

    Raises `BufferError` for a capsule that was consumed before, and for element types that numpy cannot name.
    """
    if not _is_valid(capsule, _FRESH):
        raise BufferError("the DLPack capsule was used before")
    managed = ctypes.cast(_pointer(capsule, _FRESH), ctypes.POINTER(_DLManagedTensor))
    tensor = managed.contents.tensor
    if tensor.device_type not in (CUDA, CUDA_MANAGED):
        return None
    name = _NAMES.get(tensor.code, {}).get(tensor.bits)
    if name is None or tensor.lanes != 1:
        raise BufferError(f"DLPack elements of code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    _rename(capsule, _USED)

    def release() -> None:
        if managed.contents.deleter:
            managed.contents.deleter(managed)

    address = (tensor.data or 0) + tensor.byte_offset
    return View(address, tensor.device_id, numpy_dtype(name), shape, is_contiguous(shape, strides), release)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Return whether strides in elements (None: there are none) are those of a C-contiguous array."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


_exported: dict[int, tuple[Any, ...]] = {}
"""Objects that exported tensors point into, by address of the DLManagedTensor, until their consumer deletes them."""


@_Deleter
def _delete(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


@_CapsuleDestructor
def _drop(capsule: int) -> None:
    """Free what a capsule holds if it was not consumed."""
    if _raw_is_valid(capsule, _FRESH):
        _exported.pop(_raw_pointer(capsule, _FRESH), None)


def make(
    address: int, device: int, dtype: np.dtype, shape: tuple[int, ...], owner: object,
    strides: tuple[int, ...] | None = None,
) -> Any:  # fmt: skip
    """Return a capsule of an array in the memory of GPU number `device`; it keeps `owner` alive. `strides`: in
    elements; None for a C-contiguous array.

    Raises `BufferError` for data types that DLPack lacks.
    """
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None:
        raise BufferError(f"DLPack has no data type {dtype.name}")
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    managed = _DLManagedTensor()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = address or None, CUDA, device, len(shape)
    tensor.code, tensor.bits, tensor.lanes = code, dtype.itemsize * 8, 1
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    steps = None if strides is None else (ctypes.c_int64 * max(len(strides), 1))(*strides)
    if steps is not None:
        tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    _exported[ctypes.addressof(managed)] = (managed, sizes, steps, owner)
    return _new(ctypes.addressof(managed), _FRESH, _drop)
