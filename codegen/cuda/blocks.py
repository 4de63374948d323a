"""Stages in one launch, each block of which computes a slab: one stage after the other, with block barriers.

A part is emitted as the kernel for a single slab; its blocks become iterations of the block. Values internal to the
parts are in shared memory, where the plan gives them a place, and otherwise in global memory, which the same block
reads again: blocks never wait for each other.
"""

from collections.abc import Mapping
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits, storage_dtype
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    KernelArg,
    Parameter,
    TemporaryArg,
    Thread,
    ValueArg,
    barrier,
    declared_bytes,
    kernel_function,
)
from tilestitch.codegen.cuda.elementwise.injective import lower_injective, value_args
from tilestitch.codegen.cuda.elementwise.vectors import Window
from tilestitch.codegen.cuda.rows.rows import lower_rowwise
from tilestitch.codegen.cuda.stitched import emit_part
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.launches.cuda.blocks import Blocking, SlabPart
from tilestitch.passes.plan.schedules import BlockSchedule, ElementwiseSchedule, RowSchedule


def lower_blocks(blocking: Blocking, schedule: BlockSchedule, origins: tuple[str, ...]) -> CudaLaunch:
    """Return the launch of a group tied by blocks, whose parts have schedules for a slab."""
    return _Blocks(blocking, schedule).launch(origins)


class _Blocks:
    def __init__(self, blocking: Blocking, schedule: BlockSchedule) -> None:
        self.blocking, self.slabs = blocking, blocking.slabs
        self.shared, self.shared_bytes = blocking.shared(schedule), blocking.shared_bytes(schedule)
        self.launches = [_for_a_slab(part) for part in blocking.parts]
        self.threads = max(launch.threads for launch in self.launches)
        self.parameters: dict[Value, Parameter] = {}
        for value in (v for part in blocking.parts for v in (*part.whole.inputs, *part.whole.stored)):
            if value not in self.shared:
                self.parameters[value] = Parameter(self._arg(value), value.dtype, value.tensor_type.num_elements)

    def _arg(self, value: Value) -> KernelArg:
        inner = value in self.blocking.stored and value.name not in self.blocking.outputs
        return TemporaryArg(value.name, value.tensor_type.nbytes) if inner else ValueArg(value.name)

    def launch(self, origins: tuple[str, ...]) -> CudaLaunch:
        grid, block = (self.slabs.count, 1, 1), (self.threads, 1, 1)
        parameters = list(self.parameters.values())
        func = kernel_function(parameters, grid, block, self._body)
        return CudaLaunch("blocks", func, grid, block, tuple(p.arg for p in parameters), origins, self.shared_bytes)

    def _body(self, buffers: list[Any], thread: Thread) -> None:
        slab = unravel(thread.block[0], self.slabs.extents)
        places = [place if isinstance(place, int) else T.bind(place) for place in slab]
        memory = {v: self._window(v, b, places) for v, b in zip(self.parameters, buffers, strict=True)}
        memory.update(self._in_shared_memory())
        for number, (part, launch) in enumerate(zip(self.blocking.parts, self.launches, strict=True)):
            if number:
                barrier()
            self._part(launch, [memory[v] for v in (*part.whole.inputs, *part.whole.stored)], thread.thread[0])

    def _window(self, value: Value, buffer: Any, places: list[Expr]) -> Window:
        at: list[Expr | None] = [None] * len(value.shape)
        for axis, place in zip(self.slabs.axes[value], places, strict=True):
            if axis is not None:
                at[axis] = place
        return Window(buffer, value.tensor_type, tuple(at))

    def _in_shared_memory(self) -> Mapping[Value, Any]:
        if not self.shared:
            return {}
        memory = T.alloc_buffer((self.shared_bytes,), "uint8", scope="shared.dyn")
        return {value: self._place(memory, value, at) for value, at in self.shared.items()}

    def _place(self, memory: Any, value: Value, offset_bytes: int) -> Any:
        itemsize = storage_bits(value.dtype) // 8
        elements, dtype = self.slabs.nbytes(value) // itemsize, storage_dtype(value.dtype)
        return T.decl_buffer(
            (elements,), dtype, data=memory.data, scope="shared.dyn", elem_offset=offset_bytes // itemsize
        )  # fmt: skip

    def _part(self, launch: CudaLaunch, memory: list[Any], lane: Expr) -> None:
        tiles, before = launch.grid[0], declared_bytes()
        if tiles == 1:
            emit_part(launch, memory, 0, lane, self.threads)
            return
        with T.serial(0, tiles) as tile:
            emit_part(launch, memory, tile, lane, self.threads)
            if declared_bytes() > before:
                # The next iteration writes the shared memory that slower threads may still read.
                barrier()


def _for_a_slab(part: SlabPart) -> CudaLaunch:
    view, schedule = part.slab, part.group.schedule
    if isinstance(schedule, ElementwiseSchedule):
        return lower_injective(view.inputs, view.stored, schedule, value_args(view.inputs, view.stored), view.origins)
    assert isinstance(schedule, RowSchedule), schedule
    (launch,) = lower_rowwise(view, part.roles, view.stored, schedule)
    return launch
