"""Run-time indices out of range: how kernels detect them, and their messages."""

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node
from tilestitch.passes.plan.index_checks import IndexCheck

from .dtypes import Expr
from .evaluator import Evaluator
from .indexing import unravel


def fault_message(node: Node) -> str:
    if node.op == "append":
        return f"{node.attrs['cache']}: the place of a new row is not below {node.attrs['until']}"
    return f"{node.op}: an index is out of range of the data, whose shape is {list(node.inputs[0].shape)}"


def is_out_of_range(check: IndexCheck, number: Expr, evaluator: Evaluator) -> Expr:
    """Return whether index number `number` is out of range."""
    shape = check.indices.shape
    index = unravel(number, shape) if check.column is None else (*unravel(number, shape[:-1]), check.column)
    value = evaluator.bind(T.cast(evaluator.value(check.indices, index), "int64"))
    return tirx.Or(value < T.int64(-check.size), value >= T.int64(check.size))
