"""Kernel parameters as the artifact records them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import from_numpy_dtype
from tilestitch.passes.plan import Group
from tilestitch.runtime.kernel_signature import KernelSignature, Parameter
from tilestitch.runtime.symbols import Symbol

from .errors import CodegenError
from .launch import (
    CountersArg,
    KernelArg,
    PackedArg,
    RangeArg,
    SizesArg,
    StatusArg,
    TemporaryArg,
    TensorMapArg,
    ValueArg,
)  # fmt: skip
from .program_types import runtime_size

Arranged = Callable[[PackedArg], Any]


class Written:
    """Values of the graph that the kernels of a group may write: its outputs, and unused results of its nodes, which
    kernels compute all the same.
    """

    def __init__(self, group: Group) -> None:
        self._outputs, self._inputs = frozenset(group.outputs), frozenset(group.inputs)
        self._nodes = frozenset(group.nodes)

    def __contains__(self, value: Value) -> bool:
        own = value.producer is not None and value.producer.name in self._nodes
        return value.name in self._outputs or (own and value.name not in self._inputs)


@dataclass(frozen=True)
class Parameters:
    """The parameters of the kernels of one plan. `values` are those of its graph by name; `arranged` returns the stored
    array of a packed constant.
    """

    values: Mapping[str, Value]
    arranged: Arranged
    symbols: tuple[Symbol, ...] = ()

    def signature(self, group: Group, args: tuple[KernelArg, ...], extent: Mapping[str, Any]) -> KernelSignature:
        """Return the signature of a kernel of `group`. A kernel with a result of the group as an argument may write all
        of it.
        """
        written = Written(group)
        symbols = self.symbols if any(isinstance(arg, SizesArg) for arg in args) else ()
        return KernelSignature(tuple(self._parameter(arg, written) for arg in args), extent, symbols)

    def _parameter(self, arg: KernelArg, written: Written) -> Parameter:
        match arg:
            case ValueArg(name):
                value = self.values[name]
                return Parameter("tensor", value.dtype, runtime_size(value.tensor_type.nbytes), value in written)
            case RangeArg(name, _, nbytes):
                return Parameter("tensor", self.values[name].dtype, runtime_size(nbytes), False)
            case PackedArg():
                array = self.arranged(arg)
                return Parameter("tensor", from_numpy_dtype(array.dtype), array.nbytes, False)
            case TensorMapArg(over, tensor_map):
                under = self._parameter(over, written)
                return Parameter("tensor", under.dtype, tensor_map.nbytes, under.writes, tensor_map)
            case TemporaryArg(_, nbytes, reads):
                return Parameter("tensor", "uint8", nbytes, not reads)
            case StatusArg():
                return Parameter("status", "int32", 4, True)
            case SizesArg():
                return Parameter("sizes", "int64", 8 * len(self.symbols), False)
            case CountersArg(nbytes):
                return Parameter("counters", "uint8", nbytes, True)
        raise CodegenError(f"unknown kernel argument {arg!r}")
