"""bfloat16 through DLPack: numpy's reader lacks the type, so the data is read as 16-bit integers and viewed as
bfloat16.

The fields are those of dlpack.h, version 0.8; the memory of a capsule named `dltensor` begins with a DLTensor.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .dtypes import numpy_dtype

_UINT, _BFLOAT = 1, 4
_NAME = b"dltensor"


class _Head(ctypes.Structure):
    """The first fields of a DLTensor, up to its element type."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _AsIntegers:
    """Wrapper that hands out a capsule of bfloat16 elements as one of uint16."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __dlpack_device__(self) -> Any:
        return self._owner.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._owner.__dlpack__()  # without options: the version whose layout is known here
        head = _head(capsule)
        if (head.code, head.bits, head.lanes) != (_BFLOAT, 16, 1):
            raise BufferError(f"DLPack elements of code {head.code}, {head.bits} bits, {head.lanes} lanes")
        head.code = _UINT
        return capsule


def bfloat16_array(value: Any) -> np.ndarray:
    """Return a view of VALUE, which has `__dlpack__`, as bfloat16. Raises `BufferError` when its elements are of
    another type, or do not lie in the host's memory.
    """
    return np.asarray(np.from_dlpack(_AsIntegers(value))).view(numpy_dtype("bfloat16"))


def _head(capsule: Any) -> _Head:
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    try:
        return _Head.from_address(pointer(capsule, _NAME))
    except ValueError as error:
        raise BufferError(f"no DLPack capsule of version 0.8 ({error})") from error
