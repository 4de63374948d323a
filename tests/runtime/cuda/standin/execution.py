"""Kernels that the stand-in is told to launch, executed by the emulated device."""

from __future__ import annotations

import ctypes
import struct
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from tilestitch.runtime.artifact import Artifact
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.emulator.kernels import Argument, Kernels, TensorArgument
from tilestitch.runtime.loaded import walk_programs
from tilestitch.runtime.members import cuda_source_member
from tilestitch.runtime.program import DeviceStep
from tilestitch.runtime.tensor_map import ITEM_BYTES, SWIZZLES, TensorMap

_TENSOR_MAP = struct.Struct("<QQ5Q4Q5H5B5B20x")
_ORDERS = EmulatorOptions(checked=False, block_order="random", thread_order="random")


class _Passed(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_void_p), ("nbytes", ctypes.c_uint64), ("reachable_bytes", ctypes.c_uint64))


_EXTENTS = ctypes.POINTER(ctypes.c_uint32)
Execute = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, _EXTENTS, ctypes.c_uint32, ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Passed)
)


def emulated(artifact: Artifact, options: EmulatorOptions = _ORDERS) -> Kernels:
    """The kernels of an artifact that was compiled with its CUDA text, for the emulated device."""
    programs = [nested for program in artifact.programs for nested in walk_programs(program)]
    steps = [step for program in programs for step in program.steps if isinstance(step, DeviceStep)]
    symbols = sorted({one.symbol for step in steps for launch in step.launches for one in launch.kernels})
    return Kernels({name: bytes(artifact.member(cuda_source_member(name))).decode() for name in symbols}, options)


def executor(kernels: Kernels) -> Callable[..., int]:
    """What the stand-in calls to execute a launch; to be kept as long as it does."""

    def execute(name: bytes, extents: Any, shared_bytes: int, cooperative: int, count: int, passed: Any) -> int:
        grid, block, cluster = (tuple(extents[first : first + 3]) for first in (0, 3, 6))
        try:
            arguments = [_argument(passed[number]) for number in range(count)]
            kernels.launch(name.decode(), grid, block, arguments, shared_bytes, bool(cooperative), cluster)
        except Exception:  # noqa: BLE001 (C calls this: the fault goes on as the status of the launch)
            traceback.print_exc()
            return 1
        return 0

    return Execute(execute)


def _argument(passed: _Passed) -> Argument | TensorArgument:
    raw = ctypes.string_at(passed.bytes, passed.nbytes)
    if passed.nbytes == 8:
        return Argument(int(np.frombuffer(raw, np.uint64)[0]), passed.reachable_bytes)
    _, address, *rest = _TENSOR_MAP.unpack(raw)
    dims, strides, box, steps, (dtype, _, rank, swizzle, fill) = rest[:5], rest[5:9], rest[9:14], rest[14:19], rest[19:]
    tensor_map = TensorMap(
        list(ITEM_BYTES)[dtype], tuple(dims[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), tuple(steps[:rank]),
        list(SWIZZLES)[swizzle], "nan" if fill else "zero",
    )  # fmt: skip
    return TensorArgument(tensor_map, Argument(address, tensor_map.nbytes))
