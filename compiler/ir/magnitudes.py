"""Upper bounds on the magnitudes of a value's elements, where they follow from the integers that these are computed
from; and divisors that are known to be at least 1, of which quotients take fewer instructions.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from .graph import Node, Value
from .sizes import bounds_of
from .types import TensorType

LARGEST = 1e37
"""Limit of float32, with room for a few sums."""
DEEPEST = 32
"""Depth of operators through which magnitudes are traced."""
MOST_READ = 1 << 20
"""Most elements of a constant that are examined."""
COUNTED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def magnitude(value: Value) -> float:
    """Return an upper bound of the elements' magnitudes; infinity if it, or the absence of NaN, is not known."""
    return _magnitude(value, DEEPEST, {})


def _magnitude(value: Value, depth: int, known: dict[Value, float]) -> float:
    found = known.get(value)
    if found is None:
        found = known[value] = _computed(value, depth, known)
    return found


def _computed(value: Value, depth: int, known: dict[Value, float]) -> float:
    if value.dtype == "bool":
        return 1.0
    if value.dtype not in (*COUNTED, "float32"):
        return float("inf")
    if value.data is not None:
        if value.data.size > MOST_READ:
            return _most(value.dtype)
        wide = np.abs(value.data.astype(np.float64))
        return float(wide.max()) if wide.size and np.isfinite(wide).all() else float("inf")
    node, most = value.producer, _most(value.dtype)
    if node is None or depth == 0 or value.dtype.startswith("uint"):
        return most  # negative values wrap to large unsigned numbers
    terms = _terms(node)
    if terms is None and node.op not in _MAGNITUDES:
        return most
    magnitudes = [_magnitude(x, depth - 1, known) for x in node.inputs]
    if terms is None:
        found = _MAGNITUDES[node.op](*magnitudes)
    else:
        found = terms * prod(magnitudes) if max(magnitudes) < float("inf") else float("inf")
    return found if found < min(LARGEST, most) else most


def _terms(node: Node) -> int | None:
    """Return the number of operand elements, or of products, that an element of the result sums, or 1 where it is their
    maximum; None for other operators, and where there might be none.
    """
    attrs, x = node.attrs, node.inputs[0] if node.inputs else None
    if x is None or not isinstance(x.type, TensorType) or not x.type.is_sized:
        return None
    if node.op in ("conv", "matmul"):
        return _products(node)
    if node.op == "window_reduce":
        sides = zip(attrs["before"], attrs["after"], attrs["kernel"], strict=True)
        if attrs["reducer"] == "sum":
            return prod(attrs["kernel"])
        meets = all(d == 1 for d in attrs["dilations"]) and all(0 <= b < k and 0 <= a < k for b, a, k in sides)
        return 1 if meets else None
    if node.op == "reduce_sum":
        return _count([x.type.shape[axis] for axis in attrs["axes"]])
    return None


def _products(node: Node) -> int | None:
    """Return the most products that an element of a convolution or a matmul sums."""
    if not isinstance(node.inputs[1].type, TensorType):
        return None
    sizes = node.inputs[1].tensor_type.shape
    if node.op == "matmul":
        return _count([sizes[-1 if node.attrs.get("trans_b") or len(sizes) == 1 else -2]])
    return _count(sizes[1:] if node.attrs["layout"] == "NCX" else sizes[:-1])


def _count(sizes: Sequence[object]) -> int | None:
    """Return the product of these sizes if all are known."""
    known = [size for size in sizes if isinstance(size, int)]
    return prod(known) if len(known) == len(sizes) else None


def _most(dtype: str) -> float:
    """Return the largest magnitude in a dtype."""
    if dtype not in COUNTED:
        return float("inf")
    info = np.iinfo(dtype)
    return float(max(-int(info.min), int(info.max)))


_MAGNITUDES: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a + b, "maximum": max, "minimum": max,
    "mul": lambda a, b: a * b if max(a, b) < float("inf") else float("inf"),
    "round": lambda a: a + 1, "neg": float, "abs": float, "cast": float,
    "reshape": float, "transpose": float, "broadcast_to": float, "slice": float,
    "select": lambda condition, a, b: max(a, b),
    "concat": lambda *parts: max(parts), "pad": lambda x, value=0.0: max(x, value), "gather": lambda x, indices: x,
}  # fmt: skip


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
