"""The artifact's tensors: constants unchanged, and in the layouts of kernels.

Tables that are also the right operand of a matmul, as the word embedding of a language model often is, are stored once,
in the matmul's layout, and kernels that gather rows read that.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.text import digest
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS
from tilestitch.runtime.safetensors import Tensor, TensorOnDemand

from .backend import AnyLaunch
from .launch import PackedArg, Places, ValueArg

MOST_BYTES_KEPT = 1 << 20
"""Largest packed constant to keep: a larger one is packed when it is written, so that memory never holds all of
them.
"""
LEAST_BYTES = 1 << 20
"""Least bytes of a table: rows of a smaller one are read from caches, where contiguous rows are faster."""


@dataclass
class TensorTable:
    """The artifact's tensors by name; equal data is stored once, whatever its names."""

    arrays: dict[str, Tensor] = field(default_factory=dict)
    _by_digest: dict[str, str] = field(default_factory=dict)
    _packed: dict[tuple[int, str], tuple[Value, str]] = field(default_factory=dict)

    def add(self, hint: str, array: np.ndarray) -> str:
        """Store `array` under a name made from `hint`; returns the name."""
        return self._store(hint, digest(array), lambda: array)

    def packed(self, value: Value, arg: PackedArg) -> str:
        """Store a constant in its kernel's layout, once for equal data and layout; returns the name."""
        key = id(value), arg.key
        if key not in self._packed:
            data = value.data
            assert data is not None
            name = self._store(f"{value.name}.packed", f"{digest(data)}:{arg.key}", lambda: _arranged(data, arg))
            self._packed[key] = value, name  # keeps the value alive, so that its id is not reused
        return self._packed[key][1]

    def _store(self, hint: str, key: str, make: Callable[[], Tensor]) -> str:
        if key not in self._by_digest:
            name, count = hint, 1
            while name in self.arrays:
                count += 1
                name = f"{hint}.{count}"
            self.arrays[name] = make()
            self._by_digest[key] = name
        return self._by_digest[key]


def _arranged(data: np.ndarray, arg: PackedArg) -> Tensor:
    tensor = TensorOnDemand(data.dtype, arg.shape or (), lambda: np.ascontiguousarray(arg.arrange(data)))
    return tensor if arg.shape is not None and tensor.nbytes > MOST_BYTES_KEPT else tensor.make()


Memory: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str]


def shared_tables(graph: Graph, plan: StitchPlan, launches: Iterable[AnyLaunch]) -> dict[str, PackedArg]:
    """Return the packed layouts, from one of the `launches` of a plan, by which tables are read, by name.

    Only of tables from which all other readers gather rows: others are stored unpacked anyway.
    """
    large = [(value, value.data) for value in graph.constants if value.data is not None]
    large = [(value, data) for value, data in large if data.nbytes >= LEAST_BYTES]
    if not large:
        return {}
    arrays = {value.name: data for value, data in large}
    packed = {memory: arg for launch in launches for memory, arg in _packed(arrays, launch)}
    native = {name for group in plan.groups for name in group.nodes}
    found: dict[str, PackedArg] = {}
    for value, data in large:
        arg = packed.get(_memory(data))
        shares = arg is not None and all(_may_share(user, value, native) for user in value.users)
        if arg is not None and shares and not graph.is_output(value):
            found[value.name] = replace(arg, value=value.name, of=arg.value)
    return found


def read_plainly(tables: Collection[str], launches: Iterable[AnyLaunch]) -> set[str]:
    """Return the tables that some launch reads unpacked."""
    return {arg.value for launch in launches for arg in launch.args if isinstance(arg, ValueArg)} & set(tables)


def _packed(arrays: Mapping[str, NDArray[Any]], launch: AnyLaunch) -> Iterator[tuple[Memory, PackedArg]]:
    """Yield the matrices, and their transposes, that a launch has packed, by their memory."""
    for arg in launch.args:
        if isinstance(arg, PackedArg) and arg.places is not None and not arg.of and arg.value in arrays:
            data, places = arrays[arg.value], arg.places
            # Positions in the packed table must not need wider integers than in the table.
            if (places.elements >= INT32_ELEMENTS) != (data.size >= INT32_ELEMENTS):
                continue
            yield _memory(data), arg
            yield _memory(data.T), replace(arg, places=Places(places.elements, _transposed(places)))


def _transposed(places: Places) -> Any:
    return lambda index: places.at(tuple(reversed(index)))


def _memory(data: NDArray[Any]) -> Memory:
    return data.__array_interface__["data"][0], data.shape, data.strides, data.dtype.str


def _may_share(node: Node, table: Value, native: Collection[str]) -> bool:
    """Return whether a node gathers rows of `table` in a kernel, by indices that may be any, or multiplies by it."""
    if node.op == "gather":
        return node.name in native and node.attrs["axis"] == 0 and table not in node.inputs[1:]
    return kind_of(node.op) is Kind.CONTRACTION and table not in (*node.inputs[:1], *node.inputs[2:])
