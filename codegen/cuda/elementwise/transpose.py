"""The template of transposes: element-wise groups that read some operand contiguously along another dimension than they
store.

A block takes a square tile of two dimensions: the contiguous one of the outputs, and that of the operand. Threads bring
the operand's tile along its own memory to shared memory, and read it there transposed while they compute along the
outputs: both sides access memory in whole lines. Lines of the tile are padded by one element to avoid bank conflicts
both ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, storage_dtype
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import domain_indices, unravel, values_between
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Emission,
    Parameter,
    Thread,
    barrier,
    buffer_source,
    kernel_function,
    shared_buffer,
    store,
)
from tilestitch.codegen.cuda.pieces import named, unrolled, when
from tilestitch.codegen.cuda.positions import below, both, index_dtype
from tilestitch.compiler.ir.accesses import Access, elementwise_walk
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.access.vectors import accesses_along
from tilestitch.passes.plan.schedules import TransposeSchedule


@dataclass(frozen=True)
class Tiling:
    """Tiles of `extents`: outputs are contiguous along the last dimension, the operands `transposed` along `axis`."""

    extents: tuple[int, ...]
    schedule: TransposeSchedule
    transposed: tuple[Access, ...]

    @property
    def axis(self) -> int:
        return self.schedule.axis

    @property
    def edge(self) -> int:
        return self.schedule.edge

    @property
    def lines(self) -> int:
        return self.schedule.lines

    @property
    def outer(self) -> tuple[int, ...]:
        """The dimensions not covered by tiles."""
        return tuple(d for i, d in enumerate(self.extents[:-1]) if i != self.axis)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along `axis` and along the last dimension."""
        return -(-self.extents[self.axis] // self.edge), -(-self.extents[-1] // self.edge)

    def index(self, outer: Sequence[Expr], across: Expr, last: Expr) -> list[Expr]:
        return [*outer[: self.axis], across, *outer[self.axis :], last]


def lower_transpose(
    schedule: TransposeSchedule, inputs: Sequence[Value], outputs: Sequence[Value], args: Sequence[Any],
    origins: tuple[str, ...],
) -> CudaLaunch:  # fmt: skip
    """Return the launch of a group in tiles. `args`: of the inputs, then of the outputs."""
    extents, walk = elementwise_walk(inputs, outputs)
    tiling = Tiling(extents, schedule, tuple(accesses_along(schedule.axis, extents, walk, inputs)))
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*inputs, *outputs)]
    grid, block = (prod(tiling.outer) * prod(tiling.tiles), 1, 1), (tiling.edge * tiling.lines, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        _Emitter(tiling, inputs, outputs, buffers, index_dtype(values_between(outputs, inputs))).run(thread)

    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch("transpose", func, grid, block, tuple(args), origins, emission=Emission(tuple(parameters), body))


class _Emitter:
    def __init__(
        self, tiling: Tiling, inputs: Sequence[Value], outputs: Sequence[Value], buffers: list[Any], dtype: str
    ) -> None:
        self.tiling, self.dtype, self.outputs = tiling, dtype, list(outputs)
        self.evaluator = Evaluator({}, dtype, functions.RULES)
        self.flat = dict(zip(inputs, buffers, strict=False))
        self.results = buffers[len(inputs) :]
        transposed = {access.value for access in tiling.transposed}
        for value, buffer in self.flat.items():
            if value not in transposed:
                self.evaluator.sources[value] = buffer_source(buffer, value.tensor_type, self.evaluator.simplify)

    def run(self, thread: Thread) -> None:
        tiling, edge, lines = self.tiling, self.tiling.edge, self.tiling.lines
        tile = T.cast(thread.block[0], self.dtype)
        *outer, first_across, first_last = (named(i) for i in unravel(tile, (*tiling.outer, *tiling.tiles)))
        lane, row = named(thread.thread[0] % edge), named(thread.thread[0] // edge)
        starts = named(first_across * edge), named(first_last * edge)
        tiles = [shared_buffer(edge * (edge + 1), storage_dtype(a.value.dtype)) for a in tiling.transposed]
        with unrolled(edge // lines) as step:
            line = named(row + step * lines)
            across, last = named(starts[0] + lane), named(starts[1] + line)
            with when(self._inside(across, last)):
                for access, shared in zip(tiling.transposed, tiles, strict=True):
                    element = self.flat[access.value][self._position(access, tiling.index(outer, across, last))]
                    T.buffer_store(shared, element, [line * (edge + 1) + lane])
        barrier()
        with unrolled(edge // lines) as step:
            line = named(row + step * lines)
            across, last = named(starts[0] + line), named(starts[1] + lane)
            with when(self._inside(across, last)), self.evaluator.scope():
                for access, shared in zip(tiling.transposed, tiles, strict=True):
                    element = from_storage(shared[lane * (edge + 1) + line], access.value.dtype)
                    self.evaluator.sources[access.value] = lambda _, element=element: element  # type: ignore[misc]
                self._compute(tiling.index(outer, across, last))

    def _inside(self, across: Expr, last: Expr) -> Expr | None:
        tiling = self.tiling
        return both(
            below(across, tiling.extents[tiling.axis], tiling.tiles[0] * tiling.edge),
            below(last, tiling.extents[-1], tiling.tiles[1] * tiling.edge),
        )

    def _position(self, access: Access, index: Sequence[Expr]) -> Expr:
        assert access.strides is not None
        position: Expr = access.offset
        for i, stride in zip(index, access.strides, strict=True):
            position = position + i * stride
        return self.evaluator.simplify(position)

    def _compute(self, index: list[Expr]) -> None:
        evaluator, extents = self.evaluator, self.tiling.extents
        for i, extent in zip(index, extents, strict=True):
            if not isinstance(i, int):
                evaluator.assume(i, 0, extent)
        places = domain_indices(self.outputs, extents, index, evaluator.simplify)
        elements = [evaluator.value(v, at) for v, at in zip(self.outputs, places, strict=True)]
        for value, buffer, place, element in zip(self.outputs, self.results, places, elements, strict=True):
            store(buffer, value.tensor_type, place, element, evaluator.simplify)
