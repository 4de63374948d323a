"""Whether a run can tell from a mask alone that keys have no weight: their scores are -inf whatever queries are.

Such a score is -inf for a dot product of 0, too. The reverse holds if the dot product only goes through operators that
a finite number cannot take to -inf without the mask; so kernels compute a score without its dot product, and leave out
keys for which that is -inf.
"""

from collections.abc import Mapping

import numpy as np

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.parts import Roles, Softmax

_FOLLOWED: Mapping[str, tuple[int, ...]] = {
    "add": (0, 1), "sub": (0, 1), "mul": (0, 1), "div": (0,), "minimum": (0, 1), "maximum": (0, 1), "select": (1, 2),
    "cast": (0,), "reshape": (0,), "broadcast_to": (0,), "tanh": (0,),
}  # fmt: skip
"""Operators that a dot product may go through, and the operands that may depend on it."""
_HIDING = ("add", "sub", "minimum", "select")


def may_hide(roles: Roles) -> bool:
    """Return whether masks may hide keys from queries of an attention group, whatever the dot products are."""
    softmax = roles.softmax
    assert softmax is not None
    depend, value, hides = _dependent(roles, softmax), softmax.scores, False
    while value is not softmax.matmul.output:
        node = value.producer
        if node is None or node.op not in _FOLLOWED or not is_float(value.dtype):
            return False
        dependent = [i for i, operand in enumerate(node.inputs) if operand in depend]
        if len(dependent) != 1 or dependent[0] not in _FOLLOWED[node.op]:
            return False
        hides = hides or _hides(node, dependent[0])
        value = node.inputs[dependent[0]]
    return hides


def _dependent(roles: Roles, softmax: Softmax) -> set[Value]:
    """Return the values of the group that depend on the dot products."""
    found = {softmax.matmul.output}
    for node in roles.parts:  # in their order
        if any(operand in found for operand in node.inputs):
            found.update(node.outputs)
    return found


def _hides(node: Node, dependent: int) -> bool:
    if node.op not in _HIDING:
        return False
    others = [operand for i, operand in enumerate(node.inputs) if i != dependent]
    return not all(_is_finite(operand) for operand in others)


def _is_finite(value: Value) -> bool:
    return value.data is not None and bool(np.isfinite(np.asarray(value.data).astype(np.float64)).all())
