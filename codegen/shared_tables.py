"""Tables that are also the right operand of a matmul, as the word embedding of a language model often is: they are
stored once, in the matmul's layout, and kernels that gather rows read that.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from numpy.typing import NDArray

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS

from .backend import AnyLaunch
from .launch import PackedArg, Places, ValueArg

LEAST_BYTES = 1 << 20
"""Least bytes of a table: rows of a smaller one are read from caches, where contiguous rows are faster."""

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
