"""Scatters that replace elements, by a thread for each update: every position belongs to the last update for it.

The updates first claim their positions, by an atomic maximum over update numbers, and then the owner of each position
stores. Maxima do not depend on the order of threads, so results are deterministic.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.compute.opaque import fault_message, in_range, slice_of, wrapped
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Emission,
    Parameter,
    StatusArg,
    TemporaryArg,
    Thread,
    fault,
    kernel_function,
)
from tilestitch.compiler.ir.graph import Node

NO_OWNER = -1


@dataclass(frozen=True)
class Updates:
    """The updates of a scatter: `count` of `width` elements each, for `places` positions of the same width in the data.

    `threads`: of a block.
    """

    node: Node
    threads: int
    count: int
    width: int
    places: int

    def place(self, indices: Any, number: Expr) -> tuple[Expr, Expr]:
        """Return the position of an update, and whether it exists; int64 and bool."""
        if self.node.op == "scatter_nd":
            return slice_of(self.node, indices, number)
        return self._element(indices, number)

    def _element(self, indices: Any, number: Expr) -> tuple[Expr, Expr]:
        x, axis = self.node.inputs[0], self.node.attrs["axis"]
        index = list(unravel(number, self.node.inputs[1].shape))
        index[axis] = wrapped(indices[number], x.shape[axis])
        place: Expr = T.int64(0)
        for d, i in enumerate(index):
            place = place + i * prod(x.shape[d + 1 :])
        return T.bind(place), in_range(index[axis], x.shape[axis])


def updates_of(node: Node, threads: int) -> Updates:
    x, indices = node.inputs[0], node.inputs[1]
    if node.op == "scatter_elements":
        return Updates(node, threads, indices.tensor_type.num_elements, 1, x.tensor_type.num_elements)
    depth = indices.shape[-1]
    return Updates(node, threads, prod(indices.shape[:-1]), prod(x.shape[depth:]), prod(x.shape[:depth]))


def lower_claims(node: Node, threads: int) -> tuple[CudaLaunch, ...]:
    """Return a launch that copies and clears the owners of all elements, one that claims, and one that stores."""
    updates = updates_of(node, threads)
    return _copy(updates), _claim(updates), _store(updates)


def _owners(updates: Updates) -> Parameter:
    return Parameter(TemporaryArg("owners", 4 * updates.places), "int32", updates.places)


def _copy(updates: Updates) -> CudaLaunch:
    x, out = updates.node.inputs[0], updates.node.outputs[0]
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]

    def emit(buffers: list[Any], i: Expr) -> None:
        source, target, owners = buffers
        T.buffer_store(target, source[i], [i])
        with T.If(i < updates.places), T.Then():
            T.buffer_store(owners, T.int32(NO_OWNER), [i])

    return _launch(updates, "copy", x.tensor_type.num_elements, [*parameters, _owners(updates)], emit)


def _claim(updates: Updates) -> CudaLaunch:
    indices = updates.node.inputs[1]
    parameters = [Parameter.of(indices.name, indices.tensor_type), _owners(updates), Parameter(StatusArg(), "int32", 1)]

    def emit(buffers: list[Any], number: Expr) -> None:
        index, owners, status = buffers
        place, inside = updates.place(index, number)
        with T.If(inside):
            with T.Then():
                claim = T.call_extern("int32", "atomicMax", T.address_of(owners[place]), T.cast(number, "int32"))
                T.evaluate(claim)
            with T.Else():
                fault(status)

    return _launch(updates, f"{updates.node.op}_claim", updates.count, parameters, emit, (fault_message(updates.node),))


def _store(updates: Updates) -> CudaLaunch:
    values = (updates.node.inputs[1], updates.node.inputs[2], updates.node.outputs[0])
    parameters = [*(Parameter.of(v.name, v.tensor_type) for v in values), _owners(updates)]

    def emit(buffers: list[Any], at: Expr) -> None:
        index, source, target, owners = buffers
        number = T.bind(at // updates.width)
        place, inside = updates.place(index, number)
        with T.If(inside), T.Then(), T.If(tirx.EQ(owners[place], T.cast(number, "int32"))), T.Then():
            T.buffer_store(target, source[at], [place * updates.width + at % updates.width])

    return _launch(updates, updates.node.op, updates.count * updates.width, parameters, emit)


def _launch(
    updates: Updates, kind: str, count: int, parameters: list[Parameter], emit: Any, faults: tuple[str, ...] = ()
) -> CudaLaunch:
    """Return a launch with a thread for each of `count`: `emit(buffers, number)`."""
    threads = updates.threads
    grid, block = (-(-count // threads), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        number = T.bind(T.cast(thread.block[0], "int64") * threads + thread.thread[0])
        with T.If(number < count), T.Then():
            emit(buffers, number)

    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(p.arg for p in parameters), Emission(tuple(parameters), body)
    return CudaLaunch(kind, func, grid, block, args, updates.node.origins, faults=faults, emission=emission)
