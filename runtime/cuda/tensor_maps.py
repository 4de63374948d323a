"""Tensor maps in the form that kernels get them: 128 bytes that the driver encodes."""

from __future__ import annotations

import numpy as np

from tilestitch.runtime.tensor_map import TensorMap

from .driver import Device

WORDS = 16
"""64-bit words of an encoded map."""

_FILLS = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}


def encode(device: Device, tensor_map: TensorMap, address: int) -> np.ndarray:
    """The map over memory at `address`, uint64 [WORDS]. Raises `CudaError` when the driver refuses it."""
    api = device.api

    def member(enumeration: str, prefix: str, name: str) -> object:
        return getattr(getattr(api, enumeration), f"CU_TENSOR_MAP_{prefix}_{name}")

    promotion = tensor_map.l2_promotion
    with device.current():
        encoded = device.call(
            "cuTensorMapEncodeTiled",
            member("CUtensorMapDataType", "DATA_TYPE", tensor_map.dtype.upper()),
            tensor_map.rank,
            address,
            [api.cuuint64_t(size) for size in tensor_map.dims],
            [api.cuuint64_t(stride) for stride in tensor_map.strides_bytes],
            [api.cuuint32_t(size) for size in tensor_map.box],
            [api.cuuint32_t(stride) for stride in tensor_map.element_strides],
            member("CUtensorMapInterleave", "INTERLEAVE", "NONE"),
            member("CUtensorMapSwizzle", "SWIZZLE", tensor_map.swizzle.upper()),
            member("CUtensorMapL2promotion", "L2_PROMOTION", "NONE" if promotion == "none" else f"L2_{promotion}"),
            member("CUtensorMapFloatOOBfill", "FLOAT_OOB_FILL", _FILLS[tensor_map.oob_fill]),
        )
    return np.array([int(word) for word in encoded.opaque], np.uint64)
