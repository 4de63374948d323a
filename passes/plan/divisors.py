"""Divisors that are known to be at least 1, of which quotients take fewer instructions."""

from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import bounds_of


def divides_by_softmax_sum(node: Node) -> bool:
    """Return whether a quotient's divisor is a sum of exp(x - max(x)): at least 1, and no more than it has terms."""
    divisor = node.inputs[1].producer if node.op == "div" else None
    if divisor is None or divisor.op != "reduce_sum":
        return False
    weight = _made_by("exp", divisor.inputs[0])
    below = weight and _made_by("sub", weight.inputs[0])
    largest = below and _made_by("reduce_max", below.inputs[1])
    if weight is None or below is None or largest is None or largest.inputs[0] is not below.inputs[0]:
        return False
    axes = divisor.attrs["axes"]
    if largest.attrs["axes"] != axes or not largest.attrs["keepdims"]:
        return False  # without kept axes, maxima may be those of other rows
    terms = prod(bounds_of(weight.output.shape[axis])[0] for axis in axes)
    return terms > 0 or node.output.shape == weight.output.shape


def divides_by_one_more_than_exp(node: Node) -> bool:
    """Return whether a quotient's divisor is 1 + exp(x), as in sigmoids: at least 1, perhaps infinity."""
    divisor = node.inputs[1].producer if node.op == "div" else None
    if divisor is None or divisor.op != "add":
        return False
    a, b = divisor.inputs
    return any(_made_by("exp", x) is not None and _is_one(y) for x, y in ((a, b), (b, a)))


def _made_by(op: str, value: Value) -> Node | None:
    return value.producer if value.producer is not None and value.producer.op == op else None


def _is_one(value: Value) -> bool:
    return value.data is not None and value.data.size == 1 and bool(value.data.reshape(()) == 1)
