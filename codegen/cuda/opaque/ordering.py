"""A top_k node, and the total order of the elements of its lines."""

from __future__ import annotations

from math import prod

from tvm import tirx

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, is_nan
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.in_kernel import in_kernel
from tilestitch.compiler.ir.sizes import as_size, is_open
from tilestitch.compiler.ir.types import is_float


class TopK:
    """Lines along the axis: their length, their number, and the stride of their elements."""

    def __init__(self, node: Node) -> None:
        x = node.inputs[0]
        axis = node.attrs["axis"]
        self.dtype = x.dtype
        self.key = reducers.accumulator_dtype(x.dtype)
        self.largest = bool(node.attrs["largest"])
        self.k = as_size(node.attrs["k"])
        self.size, self.inner = x.shape[axis], prod(x.shape[axis + 1 :])
        self.lines = prod(x.shape[:axis]) * self.inner

    def before(self, a: Expr, at_a: Expr, b: Expr, at_b: Expr) -> Expr:
        """Return whether `a` precedes `b`: positions past the line last, NaN as the largest number, ties by
        position.
        """
        better, worse = (a > b, b > a) if self.largest else (a < b, b < a)
        if is_float(self.dtype):
            nan_a, nan_b = is_nan(a), is_nan(b)
            above, below = tirx.And(nan_a, tirx.Not(nan_b)), tirx.And(nan_b, tirx.Not(nan_a))
            better = tirx.Or(better, above if self.largest else below)
            worse = tirx.Or(worse, below if self.largest else above)
        size = in_kernel(self.size) if is_open(self.size) else self.size
        real_a, real_b = at_a < size, at_b < size
        ordered = tirx.Or(better, tirx.And(tirx.Not(worse), at_a < at_b))
        return tirx.And(real_a, tirx.Or(tirx.Not(real_b), ordered))
