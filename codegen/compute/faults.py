"""Run-time indices that may be out of range: what must be checked of a group's gathers, whatever the target.

Reading never leaves a tensor, but wrong indices must be reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node, Value

from .dtypes import Expr
from .evaluator import Evaluator
from .indexing import unravel, values_between
from .movement import IndexCheck, index_checks


def pending_checks(nodes: Sequence[Node]) -> dict[Node, list[IndexCheck]]:
    """The checks of each node whose indices are not known to be in range."""
    pending: dict[Node, list[IndexCheck]] = {}
    for node in nodes:
        for check in index_checks(node):
            if node.outputs[0].tensor_type.num_elements and not _known_good(check):
                pending.setdefault(node, []).append(check)
    return pending


def _known_good(check: IndexCheck) -> bool:
    data = check.indices.data
    if data is None:
        return False
    column = data if check.column is None else data[..., check.column]
    return bool(np.all((column >= -check.size) & (column < check.size)))


def count_of(check: IndexCheck) -> int:
    """How many indices are checked."""
    shape = check.indices.shape
    return prod(shape if check.column is None else shape[:-1])


def fault_message(node: Node) -> str:
    return f"{node.op}: an index is out of range of the data, whose shape is {list(node.inputs[0].shape)}"


def read_for(checks: Sequence[IndexCheck], inputs: Sequence[Value]) -> list[Value]:
    """The inputs that the indices are computed from."""
    found = values_between((check.indices for check in checks), inputs)
    return [v for v in inputs if v in found]


def is_out_of_range(check: IndexCheck, number: Expr, evaluator: Evaluator) -> Expr:
    """Whether index number `number` is wrong."""
    shape = check.indices.shape
    index = unravel(number, shape) if check.column is None else (*unravel(number, shape[:-1]), check.column)
    value = evaluator.bind(T.cast(evaluator.value(check.indices, index), "int64"))
    return tirx.Or(value < T.int64(-check.size), value >= T.int64(check.size))
