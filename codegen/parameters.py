"""What kernels are compiled for, as the artifact records it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import from_numpy_dtype
from tilestitch.passes.plan import Group
from tilestitch.runtime.kernel_signature import KernelSignature, Parameter

from .errors import CodegenError
from .launch import CountersArg, KernelArg, PackedArg, StatusArg, TemporaryArg, TensorMapArg, ValueArg

Arranged = Callable[[PackedArg], Any]


@dataclass(frozen=True)
class Parameters:
    """The parameters of the kernels of one plan. `values` are those of its graph by name; `arranged` gives the array
    that is stored for a packed constant.
    """

    values: Mapping[str, Value]
    arranged: Arranged

    def signature(self, group: Group, args: tuple[KernelArg, ...], extent: Mapping[str, Any]) -> KernelSignature:
        """The signature of a kernel of `group`. A kernel that mentions an output may write all of it."""
        outputs = frozenset(group.outputs)
        return KernelSignature(tuple(self._parameter(arg, outputs) for arg in args), extent)

    def _parameter(self, arg: KernelArg, outputs: Collection[str]) -> Parameter:
        match arg:
            case ValueArg(name):
                type_ = self.values[name].tensor_type
                return Parameter("tensor", type_.dtype, type_.nbytes, name in outputs)
            case PackedArg():
                array = self.arranged(arg)
                return Parameter("tensor", from_numpy_dtype(array.dtype), array.nbytes, False)
            case TensorMapArg(over, tensor_map):
                under = self._parameter(over, outputs)
                return Parameter("tensor", under.dtype, tensor_map.nbytes, under.writes, tensor_map)
            case TemporaryArg(_, nbytes):
                return Parameter("tensor", "uint8", nbytes, True)
            case StatusArg():
                return Parameter("status", "int32", 4, True)
            case CountersArg(nbytes):
                return Parameter("counters", "uint8", nbytes, True)
        raise CodegenError(f"unknown kernel argument {arg!r}")
