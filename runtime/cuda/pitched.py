"""Copies of rows between buffers that have room for different numbers of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .driver import Device


class Pitched(NamedTuple):
    """`times` contiguous blocks of `rows` contiguous rows of `row_bytes` each, on the host or on the GPU. `owner` keeps
    the memory alive.
    """

    address: int
    row_bytes: int
    rows: int
    times: int
    on_host: bool
    owner: Any = None


def copy_pitched(device: Device, target: Pitched, source: Pitched, rows: int, stream: int) -> None:
    """Queue a copy of the first `rows` rows of each of the `times` blocks; the context must be current."""
    api = device.api
    copy = api.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.dstMemoryType = (
        api.CUmemorytype.CU_MEMORYTYPE_HOST if end.on_host else api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        for end in (source, target)
    )
    copy.srcHost, copy.srcDevice = (source.address, 0) if source.on_host else (0, source.address)
    copy.dstHost, copy.dstDevice = (target.address, 0) if target.on_host else (0, target.address)
    copy.srcPitch, copy.dstPitch = source.row_bytes * source.rows, target.row_bytes * target.rows
    copy.WidthInBytes, copy.Height = target.row_bytes * rows, target.times
    if copy.WidthInBytes and copy.Height:
        device.call("cuMemcpy2DAsync", copy, stream)
