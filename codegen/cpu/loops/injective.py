"""The template of element-wise groups, data movement and views: every output element is computed where it is stored.

The loops are those of the schedule. The last dimension is vectorised; two dimensions may be tiled.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.buffers import operand, operand_source
from tilestitch.codegen.compute.dtypes import Expr, named, to_storage
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.float8 import SMALL
from tilestitch.codegen.compute.indexing import domain_indices, index_dtype_of, ravel, unravel
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import PackedArg, Parameter, kernel_function, store
from tilestitch.codegen.cpu.contraction.microkernel import as_index
from tilestitch.codegen.cpu.contraction.transpose import TurnedOperands, interleave
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.ops import Kind, kind_of
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.types import HALVES, TensorType
from tilestitch.passes.plan.cpu.loops import LoopPlan, alternating, lying_across

_MOVEMENTS = frozenset({"concat", "gather", "gather_elements", "gather_nd", "pad", "select"})
_AS_BITS = {**dict.fromkeys(HALVES, "uint16"), **dict.fromkeys(SMALL, "uint8")}
"""Small floats are moved as integers: that needs no conversion, LLVM shuffles them better, and NaNs keep their bits."""


def emit_injective(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], loops: LoopPlan,
    packed: Mapping[str, PackedArg],
) -> Any:  # fmt: skip
    """Return the PrimFunc of an injective group. Parameters: inputs, of which some are `packed`, then outputs."""
    moves = all(kind_of(node.op) is Kind.VIEW or node.op in _MOVEMENTS for node in nodes)
    as_bits = _AS_BITS if moves else {}
    types = {v: replace(v.tensor_type, dtype=as_bits.get(v.dtype, v.dtype)) for v in (*inputs, *outputs)}
    parameters = [
        *(operand(v, types[v], packed) for v in inputs), *(Parameter.of(v.name, types[v]) for v in outputs)
    ]  # fmt: skip
    index_dtype = index_dtype_of(nodes)
    rows, accesses = alternating(inputs, outputs, loops.schedule)
    accesses = accesses or lying_across(inputs, outputs, loops.schedule)

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        evaluator = Evaluator({}, index_dtype, as_bits=as_bits)
        for value, buffer in zip(inputs, buffers, strict=False):
            evaluator.sources[value] = operand_source(buffer, value, types[value], packed, evaluator.simplify)
        results = [(v, types[v], buffer) for v, buffer in zip(outputs, buffers[len(inputs) :], strict=True)]
        operands = [(a, types[a.value], buffers[inputs.index(a.value)]) for a in accesses if a.value.name not in packed]
        together = rows if operands and rows > 1 else loops.interleaved if len(outputs) == 1 else 1
        turned = TurnedOperands(evaluator, operands, index_dtype)
        _Emitter(loops, evaluator, results, turned, together, index_dtype).run(task)

    return kernel_function(parameters, body)


@dataclass(frozen=True)
class _Emitter:
    """`together`: rows of which vectors are computed in turn, as they alternate in the operands that are `turned`, or
    else in the result.
    """

    loops: LoopPlan
    evaluator: Evaluator
    results: Sequence[tuple[Value, TensorType, Any]]
    turned: TurnedOperands
    together: int
    index_dtype: str

    @property
    def outer_extents(self) -> tuple[int, ...]:
        """The extents that rows are numbered over, those that are computed together as one."""
        extents = self.loops.outer_extents
        return extents if self.together == 1 else extents[:-1]

    def run(self, task: Expr) -> None:
        loops, chunk_size = self.loops, self.loops.schedule.chunk
        task = T.bind(T.cast(task, self.index_dtype))
        self.evaluator.assume(task, 0, loops.tasks)
        rows = prod(self.outer_extents)
        block = T.bind(task // loops.chunks) if loops.is_cut else task
        start: Expr = 0
        end: Expr = loops.inner
        if loops.is_cut:
            chunk = T.bind(task % loops.chunks)
            dtype = "int64" if is_open(loops.inner) else self.index_dtype
            start, inner = T.bind(T.cast(chunk * chunk_size, dtype)), integer(loops.inner, dtype)
            end = T.bind(tirx.Select(chunk == loops.chunks - 1, inner, start + chunk_size))
        if rows == 1:
            self._row(0, start, end)
            return
        count = loops.schedule.rows // self.together
        first = T.bind(block * count)
        with T.serial(first, T.min(first + count, rows)) as row, self.evaluator.scope((row, 0, rows)):
            self._row(row, start, end)

    def _row(self, row: Expr, start: Expr, end: Expr) -> None:
        loops = self.loops
        outer = [i if isinstance(i, int) else T.bind(i) for i in unravel(row, self.outer_extents)]
        for i, extent in zip(outer, self.outer_extents, strict=True):
            if not isinstance(i, int):
                self.evaluator.assume(i, 0, extent)
        if loops.tiled is None:
            if loops.schedule.branches:
                self._branch(outer, loops.schedule.branch, loops.schedule.branches, start, end)
            else:
                self._lines(outer, start, end)
            return
        edge = loops.schedule.edge
        first = T.bind(outer[loops.tiled] * edge)
        last = T.bind(T.min(first + edge, loops.schedule.extents[loops.tiled]))
        if not self.turned.operands:
            self._tile_of_lines(outer, first, last, start, end)
            return
        with T.If(T.And(as_index(last - first) >= loops.block, as_index(end - start) >= loops.block)):
            with T.Then():
                self._tile_of_blocks(outer, first, last, start, end)
            with T.Else():
                self._tile_of_lines(outer, first, last, start, end)

    def _tile_of_lines(self, outer: Sequence[Expr], first: Expr, last: Expr, start: Expr, end: Expr) -> None:
        schedule = self.loops.schedule
        with T.serial(first, last) as i, self.evaluator.scope((i, 0, schedule.extents[schedule.tiled])):
            self._line([i if d == schedule.tiled else o for d, o in enumerate(outer)], start, end)

    def _tile_of_blocks(self, outer: Sequence[Expr], first: Expr, last: Expr, start: Expr, end: Expr) -> None:
        """Emit a tile in blocks, the last ones moved back so that they fit."""
        size, evaluator, tiled = self.loops.block, self.evaluator, self.loops.schedule.tiled
        with T.serial(0, (last - first + (size - 1)) // size) as i, evaluator.scope():
            top = T.bind(T.min(first + i * size, last - size))
            evaluator.assume(top, 0, self.loops.schedule.extents[tiled])
            with T.serial(0, (end - start + (size - 1)) // size) as j, evaluator.scope():
                left = T.bind(T.min(start + j * size, end - size))
                evaluator.assume(left, 0, self.loops.inner)
                self._block([top if d == tiled else o for d, o in enumerate(outer)], left)

    def _block(self, outer: Sequence[Expr], left: Expr) -> None:
        """Emit a square block, of which the operands' elements are transposed first."""
        size, tiled = self.loops.block, self.loops.schedule.tiled
        blocks = self.turned.transposed([*outer, left], size)
        with (
            T.serial(0, size) as row, self.evaluator.scope((row, 0, size)),
            T.vectorized(0, size) as lane, self.evaluator.scope((lane, 0, size)),
            self.turned.read_from(blocks, row * size + lane),
        ):  # fmt: skip
            self._store([*(o + row if d == tiled else o for d, o in enumerate(outer)), left + lane])

    def _branch(self, outer: Sequence[Expr], d: int, bounds: Sequence[int], start: Expr, end: Expr) -> None:
        """Emit the row's lines with index `outer[d]` between two neighbours of `bounds`, found by bisection."""
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
        if not self.loops.schedule.cuts:
            self._line(outer, start, end)
            return
        for first, last in itertools.pairwise((0, *self.loops.schedule.cuts, self.loops.inner)):
            self._line(outer, first, last)

    def _line(self, outer: Sequence[Expr], start: Expr, end: Expr) -> None:
        """Emit elements [start, end) of the last dimension: whole vectors, the last one moved back so that it fits."""
        lanes, inner = self.loops.schedule.lanes, self.loops.inner
        length = end - start
        chunk = self.loops.schedule.chunk if self.loops.is_cut else inner
        low, high, exact = 0, inner, inner % lanes == 0 and chunk % lanes == 0
        if isinstance(length, int):
            lanes = min(lanes, 1 << (length.bit_length() - 1))
            low, high, exact = start, end, length % lanes == 0
            if length == lanes:
                self._vector(outer, start, lanes)
                return
        if is_open(inner):
            self._open_line(outer, start, end)
            return
        steps = (length + lanes - 1) // lanes
        with T.serial(0, steps) as step, self.evaluator.scope((step, 0, steps)):
            if exact and isinstance(start, int):  # a multiple of the lanes, as remainders ask for
                self._vector(outer, start + step * lanes, lanes)
                return
            position = T.bind(start + step * lanes if exact else T.min(start + step * lanes, end - lanes))
            self.evaluator.assume(position, low, high - lanes + 1)
            self._vector(outer, position, lanes)

    def _open_line(self, outer: Sequence[Expr], start: Expr, end: Expr) -> None:
        """Emit elements as `_line` does; where the dimension is shorter than a vector, one by one."""
        lanes, inner = self.loops.schedule.lanes, self.loops.inner
        if lanes == 1:
            self._one_by_one(outer, start, end)
            return
        length = end - start
        with T.If(length >= T.int64(lanes)):
            with T.Then(), T.serial(0, (length + (lanes - 1)) // lanes) as step, self.evaluator.scope():
                position = T.bind(T.min(start + step * lanes, end - lanes))
                self.evaluator.assume(position, 0, inner)
                self._vector(outer, position, lanes)
            with T.Else():
                self._one_by_one(outer, start, end)

    def _one_by_one(self, outer: Sequence[Expr], start: Expr, end: Expr) -> None:
        with T.serial(start, end) as position, self.evaluator.scope((position, 0, self.loops.inner)):
            self._vector(outer, position, 1)

    def _vector(self, outer: Sequence[Expr], position: Expr, lanes: int) -> None:
        if self.together == 1:
            self._one_vector(outer, position, lanes)
        elif not self.turned.operands:
            self._interleaved(outer, position, lanes)
        elif lanes > 1:
            self._separated(outer, position, lanes)
        else:
            for row in range(self.together):
                self._one_vector([*outer, row], position, lanes)

    def _one_vector(self, outer: Sequence[Expr], position: Expr, lanes: int) -> None:
        if lanes == 1:
            with self.evaluator.scope():
                self._store([*outer, position])
            return
        with T.vectorized(0, lanes) as lane, self.evaluator.scope((lane, 0, lanes)):
            self._store([*outer, position + lane])

    def _interleaved(self, outer: Sequence[Expr], position: Expr, lanes: int) -> None:
        ((value, type_, buffer),) = self.results

        def read(row: int, lane: Expr) -> Expr:
            with self.evaluator.scope(*([] if lanes == 1 else [(lane, 0, lanes)])):
                (at,) = self._indices([*outer, row, position + lane])
                return named(to_storage(self.evaluator.value(value, at), type_.dtype))

        def write(number: int, vector: Expr) -> None:
            (first,) = self._indices([*outer, 0, position])
            at = self.evaluator.simplify(ravel(first, type_.sizes)) + number
            T.buffer_store(buffer, vector, [at if lanes == 1 else T.ramp(at, 1, lanes)])

        interleave(self.together, lanes, buffer.dtype, read, write)

    def _separated(self, outer: Sequence[Expr], position: Expr, lanes: int) -> None:
        """Emit a vector of each of the rows, whose elements are read together."""
        tiles = self.turned.separated([*outer, 0, position], self.together, lanes)
        for row in range(self.together):
            with (
                T.vectorized(0, lanes) as lane, self.evaluator.scope((lane, 0, lanes)),
                self.turned.read_from(tiles, row * lanes + lane),
            ):  # fmt: skip
                self._store([*outer, row, position + lane])

    def _indices(self, index: Sequence[Expr]) -> Sequence[Sequence[Expr]]:
        """Return the index in each output at an index of the loops."""
        outputs = [value for value, _, _ in self.results]
        extents, index = self.loops.in_place(self.loops.schedule.extents), self.loops.in_place(index)
        return domain_indices(outputs, extents, index, self.evaluator.simplify)

    def _store(self, index: Sequence[Expr]) -> None:
        evaluator = self.evaluator
        for (value, type_, buffer), at in zip(self.results, self._indices(index), strict=True):
            store(buffer, type_, at, evaluator.value(value, at), evaluator.simplify)
