"""Tensor maps as kernels get them: 128 bytes that the driver encodes."""

from __future__ import annotations

import ctypes

import numpy as np

from tilestitch.runtime.tensor_map import TensorMap

from .driver import CudaError, Device, host_address

NBYTES = 128
"""Size of an encoded map."""

_FILLS = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
_SINCE_CUDA = 12000
_NUMBERS = ctypes.c_void_p
_Encode = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p,  # the map, data type, rank, address
    _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS,  # dimensions and strides, 64 bits; box and element strides, 32 bits
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,  # interleave, swizzle, L2 promotion, fill
)  # fmt: skip


def encode(device: Device, tensor_map: TensorMap, address: int, target: np.ndarray) -> None:
    """Write the map over memory at `address` to `target`, uint8 [NBYTES], 64-byte aligned.

    Raises `CudaError` when the driver refuses it.
    """
    api = device.api

    def member(enumeration: str, prefix: str, name: str) -> int:
        return int(getattr(getattr(api, enumeration), f"CU_TENSOR_MAP_{prefix}_{name}"))

    dims, strides = (np.array(numbers, np.uint64) for numbers in (tensor_map.dims, tensor_map.strides_bytes))
    box, steps = (np.array(numbers, np.uint32) for numbers in (tensor_map.box, tensor_map.element_strides))
    promotion = tensor_map.l2_promotion
    with device.current():
        # The function of cuda-bindings writes to memory of its own, which is 64-byte aligned only by chance.
        status = device.call.entry("cuTensorMapEncodeTiled", _SINCE_CUDA, _Encode)(
            host_address(target),
            member("CUtensorMapDataType", "DATA_TYPE", tensor_map.dtype.upper()),
            tensor_map.rank,
            address,
            *(host_address(numbers) for numbers in (dims, strides, box, steps)),
            member("CUtensorMapInterleave", "INTERLEAVE", "NONE"),
            member("CUtensorMapSwizzle", "SWIZZLE", tensor_map.swizzle.upper()),
            member("CUtensorMapL2promotion", "L2_PROMOTION", "NONE" if promotion == "none" else f"L2_{promotion}"),
            member("CUtensorMapFloatOOBfill", "FLOAT_OOB_FILL", _FILLS[tensor_map.oob_fill]),
        )
    if status:
        raise CudaError("cuTensorMapEncodeTiled", api.CUresult(status).name)
