"""Kernel arguments, independent of the target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.sizes import Size
from tilestitch.runtime.tensor_map import TensorMap


@dataclass(frozen=True)
class ValueArg:
    """A value of the graph: an input, an output or a constant of the group."""

    value: str


@dataclass(frozen=True)
class RangeArg:
    """`nbytes` of a value that the group reads, from `offset_bytes` on."""

    value: str
    offset_bytes: Size
    nbytes: Size


@dataclass(frozen=True)
class Places:
    """Position of a constant's elements, by index, in its stored array of `elements`."""

    elements: int
    at: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class PackedArg:
    """A constant in a kernel-specific layout: `arrange(data)` gives the array to store; `key` identifies the layout.

    `places`: element positions for kernels that read it elementwise; None where these cannot. `of`: the constant whose
    data is arranged, if that is another one with the same elements. `shape`: of the array, which has the constant's
    dtype; None where only `arrange` tells.
    """

    value: str
    key: str
    arrange: Callable[[Any], Any] = field(compare=False)
    places: Places | None = field(default=None, compare=False)
    of: str = ""
    shape: tuple[int, ...] | None = field(default=None, compare=False)

    @property
    def source(self) -> str:
        """The constant whose data is arranged."""
        return self.of or self.value


@dataclass(frozen=True)
class TemporaryArg:
    """Memory that lives across the launches of a group; `name` is unique within the group. `reads`: the launch does not
    write it.
    """

    name: str
    nbytes: int
    reads: bool = False


@dataclass(frozen=True)
class TensorMapArg:
    """A tensor map over memory, from `offset_bytes` on, for the copy engine of Hopper GPUs."""

    over: ValueArg | PackedArg | TemporaryArg
    tensor_map: TensorMap
    offset_bytes: int = 0


@dataclass(frozen=True)
class StatusArg:
    """The launch's int32 fault word."""


@dataclass(frozen=True)
class CountersArg:
    """`nbytes` of the launch's own memory: 0 when the model is loaded, and preserved between runs.

    `name`: distinguishes several in one launch. `shared`: one for all launches of the group.
    """

    nbytes: int
    name: str = ""
    shared: bool = False


@dataclass(frozen=True)
class SizesArg:
    """The values of the graph's symbols, in their order, as int64."""


KernelArg: TypeAlias = (
    ValueArg | RangeArg | PackedArg | TensorMapArg | TemporaryArg | StatusArg | CountersArg | SizesArg
)


def piece_args(values: Sequence[Value], own: Mapping[Value, Value], group: str) -> tuple[KernelArg, ...]:
    """Return the arguments of a piece of a group: values that are its own, and temporaries."""
    return tuple(
        ValueArg(own[v].name) if v in own else TemporaryArg(f"{group}.{v.name}", v.tensor_type.nbytes) for v in values
    )
