"""Pooling along a line, after the rows of the windows have been reduced to one.

The line is in the workspace with its padding, so that no column is at a border. With a stride, its elements are first
de-interleaved by shuffles of whole vectors into as many phases as the stride: all windows then read neighbours.
"""

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import named
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.transpose import separated
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.window import Line


def line_buffers(line: Line, scratch: Expr, dtype: str) -> tuple[Any, Any]:
    """Return the line, and its phases one after the other; the same buffer if there is one phase."""
    size = line.stride * line.phase
    buffer = mk.scratch_buffer(scratch, 0, (line.elements,), dtype, "line")
    if line.stride == 1:
        return buffer, buffer
    return buffer, mk.scratch_buffer(scratch, size * storage_bytes(dtype), (size,), dtype, "phases")


def fill_line(line: Line, buffers: tuple[Any, Any], value: Expr) -> None:
    """Write the padding, which stays valid for all lines of a task."""
    size = line.stride * line.phase
    mk.for_each_column(size, line.lanes, lambda at: T.buffer_store(buffers[0], value, [at]))


def spread_phases(line: Line, buffers: tuple[Any, Any]) -> None:
    """De-interleave the elements of the line to its phases; nothing to do for one phase."""
    if line.stride == 1:
        return
    source, phases = buffers
    lanes, stride = line.lanes, line.stride
    with mk.serial(0, line.phase // lanes) as block:
        first = T.bind(block * (stride * lanes))
        vectors = [T.bind(source[tirx.Ramp(first + q * lanes, _one(), lanes)]) for q in range(stride)]
        for phase, vector in enumerate(separated(vectors, lanes)):
            T.buffer_store(phases, vector, [tirx.Ramp(block * lanes + phase * line.phase, _one(), lanes)])


def _one() -> Expr:
    return tirx.IntImm("int64", 1)


def pool_line(
    line: Line, buffers: tuple[Any, Any], combine: Callable[[Expr, Expr], Expr], store: Callable[[Expr, Expr], None]
) -> None:
    """Reduce the taps of every window: `store(output, value)` for a whole vector, as lanes, or fewer at the end."""
    phases = buffers[1]

    def window(at: Expr) -> None:
        total = None
        for tap in range(line.taps):
            shift, phase = divmod(tap * line.dilation, line.stride)
            element = named(phases[phase * line.phase + shift + at])
            total = element if total is None else named(combine(total, element))
        store(at, total)

    if is_open(line.output):
        mk.for_each_open_run(line.output, line.lanes, lambda at, size: mk.vector(size, lambda lane: window(at + lane)))
        return
    mk.for_each_column(line.output, line.lanes, window)
