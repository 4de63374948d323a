"""Index arithmetic (`compiler.ir.indexing`) on Python integers and TIR integer expressions."""

from collections.abc import Sequence

import tvm.sym
import tvm_ffi
from tvm import tirx

from tilestitch.compiler.ir import indexing
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.in_kernel import in_kernel
from tilestitch.compiler.ir.indexing import Index, Simplify, broadcast_index, unravel
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.passes.plan.access.positions import index_dtype, index_dtype_of, values_between

from .dtypes import Expr
from .sizes import integer, may_be_0

__all__ = [
    "Index",
    "Simplify",
    "broadcast_index",
    "domain_indices",
    "forward_index",
    "index_dtype",
    "index_dtype_of",
    "pull_view",
    "ravel",
    "reshape_index",
    "unravel",
    "values_between",
]


def ravel(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Return the row-major position of an index."""
    entries: list[tuple[Expr, int]] = []
    for i, size in zip(index, shape, strict=True):
        entry, extent = i, size
        while entries and (joined := _dividend(entries[-1][0], entry, extent)) is not None:
            entry, extent = joined, extent * entries.pop()[1]
        entries.append((entry, extent))
    position: Expr = 0
    for entry, size in entries:
        position = entry if isinstance(position, int) and position == 0 else position * size + entry
    return position


def _dividend(quotient: Expr, remainder: Expr, size: Size) -> Expr | None:
    """Return the dividend x of quotient x // size and remainder x % size, the quotient possibly reduced to a remainder
    itself; None if there is none.

    The simplifier knows that x // 28 * 28 + x % 28 is x. But it reduces the dividend of a remainder only, (x + 32) % 28
    to (x + 4) % 28, and then misses that both belong together; likewise where it factored a multiple out of the
    dividend: n * 28 - 1 - x, backward positions of an open size.
    """
    if isinstance(quotient, tirx.Add):
        for divided, taken in ((quotient.a, quotient.b), (quotient.b, quotient.a)):
            joined = _dividend(divided, remainder, size)
            if joined is not None:
                return joined + taken * (in_kernel(size) if is_open(size) else size)
        return None
    if not isinstance(remainder, tirx.FloorMod) or not _is_size(remainder.b, size):
        return None
    reduced = quotient.b if isinstance(quotient, tirx.FloorMod) else None
    quotient = quotient if reduced is None else quotient.a
    if not isinstance(quotient, tirx.FloorDiv) or not _is_size(quotient.b, size):
        return None
    divided = quotient.a
    if isinstance(divided, tirx.FloorMod) and _is_multiple(divided.b, size):
        divided = divided.a
    apart = tvm.sym.Analyzer().simplify(divided - remainder.a)
    if not isinstance(apart, tirx.IntImm) or (int(apart.value) if is_open(size) else int(apart.value) % size):
        return None
    return quotient.a if reduced is None else tirx.FloorMod(quotient.a, reduced * size)


def _is_multiple(expr: Expr, size: Size) -> bool:
    return not is_open(size) and isinstance(expr, tirx.IntImm) and int(expr.value) % size == 0


def _is_size(expr: Expr, size: Size) -> bool:
    if not is_open(size):
        return isinstance(expr, tirx.IntImm) and int(expr.value) == size
    number, factors = _factors(expr)
    other_number, others = _factors(in_kernel(size))
    for factor in factors:
        match = next((n for n, other in enumerate(others) if tvm_ffi.structural_equal(factor, other)), None)
        if match is None:
            apart = tvm.sym.Analyzer().simplify(expr - in_kernel(size))  # 2 * (t - 1) is 2 * t - 2
            return isinstance(apart, tirx.IntImm) and int(apart.value) == 0
        del others[match]
    return number == other_number and not others


def _factors(expr: Expr) -> tuple[int, list[Expr]]:
    """Return the constant factor of an expression, and the others, which the simplifier leaves in any order."""
    if isinstance(expr, tirx.IntImm):
        return int(expr.value), []
    if not isinstance(expr, tirx.Mul):
        return 1, [expr]
    (number, factors), (other_number, others) = _factors(expr.a), _factors(expr.b)
    return number * other_number, [*factors, *others]


def reshape_index(index: Sequence[Expr], source: Sequence[int], target: Sequence[int], simplify: Simplify) -> Index:
    """Map an index as `compiler.ir.indexing.reshape_index` does."""
    return indexing.reshape_index(index, source, target, simplify, ravel)


def forward_index(view: Node, index: Sequence[Expr], simplify: Simplify = indexing.same) -> Index:
    """Map an index as `compiler.ir.indexing.forward_index` does."""
    return indexing.forward_index(view, index, simplify, ravel)


def pull_view(view: Node, index: Sequence[Expr], simplify: Simplify) -> Index:
    """Map an index as `compiler.ir.indexing.pull_view` does. A concat may ask for an element of an empty slice, which
    it does not use: it gets a valid one of the operand.
    """
    pulled = indexing.pull_view(view, index, simplify, ravel)
    if view.op != "slice":
        return pulled
    sizes = zip(index, pulled, view.output.shape, view.inputs[0].shape, strict=True)
    return tuple(_inside(i, place, size, extent, simplify) for i, place, size, extent in sizes)


def _inside(i: Expr, place: Expr, size: Size, extent: Size, simplify: Simplify) -> Expr:
    """Return the operand's position of a slice at `i`, clamped to [0, extent) unless `i` is surely below `size`."""
    if not is_open(size) or not may_be_0(size):
        return place
    is_size = isinstance(i, int) or is_open(i)
    there = simplify((integer(i, "int64") if is_size else i) < integer(size, "int64" if is_size else str(i.ty.dtype)))
    if isinstance(there, bool | tirx.IntImm) and bool(there):
        return place
    dtype = "int64" if isinstance(place, int) or is_open(place) else str(place.ty.dtype)
    place = integer(place, dtype) if isinstance(place, int) or is_open(place) else place
    return tirx.Max(tirx.Min(place, integer(extent - 1, dtype)), tirx.IntImm(dtype, 0))


def domain_indices(
    outputs: Sequence[Value], extents: Sequence[int], index: Sequence[Expr], simplify: Simplify
) -> list[Index]:
    """Return the index of each output, which have equal numbers of elements, at a point of the iteration space."""
    return [reshape_index(index, extents, output.shape, simplify) for output in outputs]
