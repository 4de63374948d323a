"""The template of transposes: element-wise groups that read some operand along another dimension than they store.

A block takes a square tile of two dimensions: the one that outputs run along, and the one that the operand runs along.
Threads fetch the operand's tile along its own memory into shared memory, and read it there across while they compute
along the outputs: memory is accessed in whole lines on both sides. Lines of the tile are one element longer than the
tile is wide, so that neither way meets bank conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, storage_bits, storage_dtype
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import domain_indices, unravel
from tilestitch.compiler.ir.accesses import Access, elementwise_walk
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.ops import Kind, kind_of

from . import functions
from .abi import CudaLaunch, Emission, Parameter, Thread, barrier, buffer_source, kernel_function, shared_buffer, store
from .injective import index_dtype
from .pieces import named, unrolled, when
from .product import below, both

EDGE = 32
ROWS = 8
"""Lines of a tile that the threads of a block take at a time."""

LEAST = 16
"""Elements along either dimension that are worth a tile."""

MOST_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class Turn:
    """Iteration over `extents`: outputs run along the last dimension, the operands `turned` along `axis`."""

    extents: tuple[int, ...]
    axis: int
    turned: tuple[Access, ...]

    @property
    def outer(self) -> tuple[int, ...]:
        """The dimensions that tiles do not extend over."""
        return tuple(d for i, d in enumerate(self.extents[:-1]) if i != self.axis)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along `axis` and along the last dimension."""
        return -(-self.extents[self.axis] // EDGE), -(-self.extents[-1] // EDGE)

    def index(self, outer: Sequence[Expr], across: Expr, last: Expr) -> list[Expr]:
        return [*outer[: self.axis], across, *outer[self.axis :], last]


def plan_turn(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> Turn | None:
    """How a group is computed in tiles; None if none of its operands calls for it.

    An operand must be read at one place for each element, whatever the values: moved data may not be there at all.
    """
    if not all(kind_of(node.op) is Kind.VIEW or node.op in functions.RULES for node in nodes):
        return None
    extents, walk = elementwise_walk(inputs, outputs)
    reads = [a for a in walk.accesses if a.value in inputs]
    if len(extents) < 2 or extents[-1] < LEAST or any(a.strides is None for a in walk.accesses):
        return None
    found: dict[int, list[Access]] = {}
    for access in reads:
        axis = _runs_along(access, extents)
        if axis is not None and extents[axis] >= LEAST and sum(a.value is access.value for a in reads) == 1:
            found.setdefault(axis, []).append(access)
    if not found:
        return None
    axis = max(found, key=lambda d: len(found[d]))
    nbytes = sum(EDGE * (EDGE + 1) * storage_bits(a.value.dtype) // 8 for a in found[axis])
    return Turn(extents, axis, tuple(found[axis])) if nbytes <= MOST_SHARED_BYTES else None


def _runs_along(access: Access, extents: tuple[int, ...]) -> int | None:
    """The dimension, other than the last, along which neighbours lie together."""
    assert access.strides is not None
    if access.strides[-1] in (0, 1):
        return None
    return next((d for d, stride in enumerate(access.strides[:-1]) if stride == 1 and extents[d] > 1), None)


def lower_turned(
    turn: Turn, inputs: Sequence[Value], outputs: Sequence[Value], args: Sequence[Any], origins: tuple[str, ...]
) -> CudaLaunch:
    """The launch of a group in tiles. `args`: of the inputs, then of the outputs."""
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*inputs, *outputs)]
    grid, block = (prod(turn.outer) * prod(turn.tiles), 1, 1), (EDGE * ROWS, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        _Emitter(turn, inputs, outputs, buffers, index_dtype(parameters)).run(thread)

    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch("turned", func, grid, block, tuple(args), origins, emission=Emission(tuple(parameters), body))


class _Emitter:
    def __init__(
        self, turn: Turn, inputs: Sequence[Value], outputs: Sequence[Value], buffers: list[Any], dtype: str
    ) -> None:
        self.turn, self.dtype, self.outputs = turn, dtype, list(outputs)
        self.evaluator = Evaluator({}, dtype, functions.RULES)
        self.flat = dict(zip(inputs, buffers, strict=False))
        self.results = buffers[len(inputs) :]
        turned = {access.value for access in turn.turned}
        for value, buffer in self.flat.items():
            if value not in turned:
                self.evaluator.sources[value] = buffer_source(buffer, value.tensor_type, self.evaluator.simplify)

    def run(self, thread: Thread) -> None:
        turn = self.turn
        tile = T.cast(thread.block[0], self.dtype)
        *outer, first_across, first_last = (named(i) for i in unravel(tile, (*turn.outer, *turn.tiles)))
        lane, row = named(thread.thread[0] % EDGE), named(thread.thread[0] // EDGE)
        starts = named(first_across * EDGE), named(first_last * EDGE)
        tiles = [shared_buffer(EDGE * (EDGE + 1), storage_dtype(a.value.dtype)) for a in turn.turned]
        with unrolled(EDGE // ROWS) as step:
            line = named(row + step * ROWS)
            across, last = named(starts[0] + lane), named(starts[1] + line)
            with when(self._inside(across, last)):
                for access, shared in zip(turn.turned, tiles, strict=True):
                    element = self.flat[access.value][self._position(access, turn.index(outer, across, last))]
                    T.buffer_store(shared, element, [line * (EDGE + 1) + lane])
        barrier()
        with unrolled(EDGE // ROWS) as step:
            line = named(row + step * ROWS)
            across, last = named(starts[0] + line), named(starts[1] + lane)
            with when(self._inside(across, last)), self.evaluator.scope():
                for access, shared in zip(turn.turned, tiles, strict=True):
                    element = from_storage(shared[lane * (EDGE + 1) + line], access.value.dtype)
                    self.evaluator.sources[access.value] = lambda _, element=element: element  # type: ignore[misc]
                self._compute(turn.index(outer, across, last))

    def _inside(self, across: Expr, last: Expr) -> Expr | None:
        turn = self.turn
        return both(
            below(across, turn.extents[turn.axis], turn.tiles[0] * EDGE),
            below(last, turn.extents[-1], turn.tiles[1] * EDGE),
        )

    def _position(self, access: Access, index: Sequence[Expr]) -> Expr:
        assert access.strides is not None
        position: Expr = access.offset
        for i, stride in zip(index, access.strides, strict=True):
            position = position + i * stride
        return self.evaluator.simplify(position)

    def _compute(self, index: list[Expr]) -> None:
        evaluator, extents = self.evaluator, self.turn.extents
        for i, extent in zip(index, extents, strict=True):
            if not isinstance(i, int):
                evaluator.assume(i, 0, extent)
        places = domain_indices(self.outputs, extents, index, evaluator.simplify)
        elements = [evaluator.value(v, at) for v, at in zip(self.outputs, places, strict=True)]
        for value, buffer, place, element in zip(self.outputs, self.results, places, elements, strict=True):
            store(buffer, value.tensor_type, place, element, evaluator.simplify)
