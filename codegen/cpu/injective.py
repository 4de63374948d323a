"""The template of element-wise groups, data movement and views: every output element is computed where it is stored.

The outputs have one number of elements, over which the kernel iterates in the shape of the first output. Neighbouring
dimensions in which all operands lie alike are merged; the last one is vectorised. Where an operand runs along another
dimension than the output (a transpose), the two dimensions are walked in tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import domain_indices, index_dtype_of, unravel
from tilestitch.compiler.ir.accesses import Access, elementwise_walk
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.ops import Kind, kind_of, op_spec
from tilestitch.compiler.ir.types import HALVES, TensorType
from tilestitch.passes.plan.cpu.isa import Isa

from .abi import Parameter, buffer_source, kernel_function, store

TASK_ELEMENTS = 16384
"""Elements of a task of cheap arithmetic; about ten microseconds of memory traffic."""
_MOVEMENTS = frozenset({"concat", "gather", "gather_elements", "gather_nd"})
TILE = 32
"""Edge of the tiles in which transposed operands are walked."""
BRANCHES = range(4, 129)
"""Numbers of operands that rows are told apart by branches for: fewer are selected from, all of which are read."""


@dataclass(frozen=True)
class Loops:
    """Iteration over `extents` (merged dimensions, the last vectorised).

    `tiled` is the dimension along which a transposed operand is contiguous, or None. `chunk` cuts the last dimension,
    `rows` says how many rows of it (of tiles, if tiled) a task computes. Each run of the last dimension between two of
    `cuts` has a loop of its own, as different operands are read there. `branches`: a dimension before the last, and
    where along it, from 0 to its end, other operands begin; rows branch to the code of their operand.
    """

    shape: tuple[int, ...]
    extents: tuple[int, ...]
    lanes: int
    tiled: int | None
    chunk: int
    rows: int
    cuts: tuple[int, ...] = ()
    branches: tuple[int, tuple[int, ...]] | None = None

    @property
    def inner(self) -> int:
        return self.extents[-1]

    @property
    def chunks(self) -> int:
        return max(1, self.inner // self.chunk)

    @property
    def outer_extents(self) -> tuple[int, ...]:
        """What a row is numbered over: all but the last dimension, the tiled one in tiles."""
        return tuple(-(-e // TILE) if d == self.tiled else e for d, e in enumerate(self.extents[:-1]))

    @property
    def tasks(self) -> int:
        return -(-prod(self.outer_extents) // self.rows) * self.chunks


def plan_loops(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa) -> Loops:
    """Decide the loops of an injective kernel with at least one element."""
    shape = outputs[0].shape
    extents, walk = elementwise_walk(inputs, outputs)
    accesses = walk.accesses
    cuts = tuple(sorted(at for d, at in walk.cuts if d == len(extents) - 1 and 0 < at < extents[-1]))
    branches = _branches(extents, walk.cuts)
    lanes = _lanes(outputs, nodes, isa)
    if len(extents) > 1 and extents[-1] < min(lanes, 8):
        extents = (prod(extents),)
        accesses, cuts, branches = (), (), None
    lanes = min(lanes, 1 << (extents[-1].bit_length() - 1))
    tiled = _tiled_dimension(extents, accesses)
    grain = max(lanes, TASK_ELEMENTS // _weight(nodes))
    inner = extents[-1]
    if tiled is not None:
        chunk = min(inner, max(TILE, lanes))
        return Loops(shape, extents, lanes, tiled, chunk, max(1, grain // (TILE * chunk)))
    if inner >= 2 * grain and not cuts:
        chunk = -(-grain // lanes) * lanes
        return Loops(shape, extents, lanes, None, chunk, 1, (), branches)
    return Loops(shape, extents, lanes, None, inner, max(1, grain // inner), cuts, branches)


def _branches(extents: Sequence[int], cuts: Collection[tuple[int, int]]) -> tuple[int, tuple[int, ...]] | None:
    """The dimension before the last along which most operands lie one behind the other, if they are many."""
    found = [(d, (0, *sorted(at for e, at in cuts if e == d and 0 < at < extents[d]), extents[d]))
             for d in range(len(extents) - 1)]  # fmt: skip
    most = max(found, key=lambda one: len(one[1]), default=None)
    return most if most is not None and len(most[1]) - 1 in BRANCHES else None


def _lanes(outputs: Sequence[Value], nodes: Sequence[Node], isa: Isa) -> int:
    """Elements of one vectorised step: a register of the widest dtype that is stored, at most of 32 bits."""
    widest = max([storage_bits(v.dtype) for node in nodes for v in (*node.inputs, *node.outputs)] + [8])
    return isa.vector_bytes * 8 // max(8, min(32, widest))


def _tiled_dimension(extents: tuple[int, ...], accesses: Sequence[Access]) -> int | None:
    """The dimension along which some operand is contiguous that is not contiguous along the last."""
    for access in accesses:
        strides = access.strides
        if strides is None or abs(strides[-1]) <= 1:
            continue
        for d, stride in enumerate(strides[:-1]):
            if abs(stride) == 1 and extents[d] >= 8:
                return d
    return None


def _weight(nodes: Sequence[Node]) -> int:
    """How many times the work of one cheap operation an element is, roughly."""
    return 1 + sum(8 if op_spec(node.op).expensive else 0 for node in nodes) // 8 + len(nodes) // 8


def _moves(nodes: Sequence[Node]) -> bool:
    """Whether the kernel only moves elements, none of which it makes itself."""
    values = {v for node in nodes for v in (*node.inputs, *node.outputs)}
    if any(v.tensor_type.num_elements == 0 or (v.data is not None and v.data.size == 1) for v in values):
        return False
    return all(kind_of(node.op) is Kind.VIEW or node.op in _MOVEMENTS for node in nodes)


def _moved_type(type_: TensorType) -> TensorType:
    """Half floats that are only moved are integers: nothing is converted, and LLVM shuffles them better."""
    return TensorType("uint16", type_.shape) if type_.dtype in HALVES else type_


def emit_injective(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa
) -> tuple[Any, int]:
    """The PrimFunc of an injective group and its number of tasks. Parameters: inputs, then outputs."""
    loops = plan_loops(nodes, inputs, outputs, isa)
    types = {v: _moved_type(v.tensor_type) if _moves(nodes) else v.tensor_type for v in (*inputs, *outputs)}
    parameters = [Parameter.of(v.name, type_) for v, type_ in types.items()]
    index_dtype = index_dtype_of(nodes)

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        evaluator = Evaluator({}, index_dtype)
        for value, buffer in zip(inputs, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, types[value], evaluator.simplify)
        results = [(v, types[v], buffer) for v, buffer in zip(outputs, buffers[len(inputs) :], strict=True)]
        _Emitter(loops, evaluator, results, index_dtype).run(task)

    return kernel_function(parameters, body), loops.tasks


@dataclass(frozen=True)
class _Emitter:
    loops: Loops
    evaluator: Evaluator
    results: Sequence[tuple[Value, TensorType, Any]]
    index_dtype: str

    def run(self, task: Expr) -> None:
        loops = self.loops
        task = T.bind(T.cast(task, self.index_dtype))
        self.evaluator.assume(task, 0, loops.tasks)
        rows = prod(loops.outer_extents)
        block = T.bind(task // loops.chunks) if loops.chunks > 1 else task
        start: Expr = 0
        end: Expr = loops.inner
        if loops.chunks > 1:
            chunk = T.bind(task % loops.chunks)
            start = T.bind(chunk * loops.chunk)
            end = T.bind(
                tirx.Select(chunk == loops.chunks - 1, tirx.IntImm(self.index_dtype, loops.inner), start + loops.chunk)
            )
        if rows == 1:
            self._row(0, start, end)
            return
        first = T.bind(block * loops.rows)
        with T.serial(first, T.min(first + loops.rows, rows)) as row, self.evaluator.scope((row, 0, rows)):
            self._row(row, start, end)

    def _row(self, row: Expr, start: Expr, end: Expr) -> None:
        loops = self.loops
        outer = [i if isinstance(i, int) else T.bind(i) for i in unravel(row, loops.outer_extents)]
        for i, extent in zip(outer, loops.outer_extents, strict=True):
            if not isinstance(i, int):
                self.evaluator.assume(i, 0, extent)
        if loops.tiled is None:
            if loops.branches is None:
                self._lines(outer, start, end)
            else:
                self._branch(outer, *loops.branches, start, end)
            return
        first = T.bind(outer[loops.tiled] * TILE)
        extent = loops.extents[loops.tiled]
        with T.serial(first, T.min(first + TILE, extent)) as i, self.evaluator.scope((i, 0, extent)):
            self._line([i if d == loops.tiled else o for d, o in enumerate(outer)], start, end)

    def _branch(self, outer: Sequence[Expr], d: int, bounds: Sequence[int], start: Expr, end: Expr) -> None:
        """The row's lines with index `outer[d]` known to lie between two neighbours of `bounds`, found by halving."""
        if len(bounds) > 2:
            middle = len(bounds) // 2
            with T.If(outer[d] < bounds[middle]):
                with T.Then():
                    self._branch(outer, d, bounds[: middle + 1], start, end)
                with T.Else():
                    self._branch(outer, d, bounds[middle:], start, end)
            return
        first, last = bounds
        here: Expr = first if last == first + 1 else T.bind(outer[d])
        if not isinstance(here, int):
            self.evaluator.assume(here, first, last)
        with self.evaluator.scope():
            self._lines([here if dimension == d else i for dimension, i in enumerate(outer)], start, end)

    def _lines(self, outer: Sequence[Expr], start: Expr, end: Expr) -> None:
        if not self.loops.cuts:
            self._line(outer, start, end)
            return
        for first, last in zip((0, *self.loops.cuts), (*self.loops.cuts, self.loops.inner), strict=True):
            self._line(outer, first, last)

    def _line(self, outer: Sequence[Expr], start: Expr, end: Expr) -> None:
        """All elements [start, end) of the last dimension: whole vectors, the last one moved back so that it fits."""
        lanes, inner = self.loops.lanes, self.loops.inner
        length = end - start
        low, high, exact = 0, inner, inner % lanes == 0
        if isinstance(length, int):
            lanes = min(lanes, 1 << (length.bit_length() - 1))
            low, high, exact = start, end, length % lanes == 0
            if length == lanes:
                self._vector(outer, start, lanes)
                return
        with T.serial(0, (length + lanes - 1) // lanes) as step, self.evaluator.scope():
            position = T.bind(start + step * lanes if exact else T.min(start + step * lanes, end - lanes))
            self.evaluator.assume(position, low, high - lanes + 1)
            self._vector(outer, position, lanes)

    def _vector(self, outer: Sequence[Expr], position: Expr, lanes: int) -> None:
        if lanes == 1:
            with self.evaluator.scope():
                self._store([*outer, position])
            return
        with T.vectorized(0, lanes) as lane, self.evaluator.scope((lane, 0, lanes)):
            self._store([*outer, position + lane])

    def _store(self, index: Sequence[Expr]) -> None:
        evaluator = self.evaluator
        outputs = [value for value, _, _ in self.results]
        indices = domain_indices(outputs, self.loops.extents, index, evaluator.simplify)
        for (value, type_, buffer), at in zip(self.results, indices, strict=True):
            store(buffer, type_, at, evaluator.value(value, at), evaluator.simplify)
