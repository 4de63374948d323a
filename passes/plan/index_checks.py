"""Run-time indices that may be out of range: what must be checked for gathers and scatters, whatever the target.

Reads never leave a tensor, but wrong indices must be reported. None is wrong whose range, whatever the model's inputs
are, lies in the tensor.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilestitch.compiler.ir import Node, TensorType, Value
from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, largest, perhaps_empty
from tilestitch.compiler.ir.types import is_integer, to_numpy_dtype
from tilestitch.passes.plan.access.positions import values_between

from .float_ranges import float_range

DEEPEST = 64
"""Most operators followed backwards."""
MOST_READ = 1 << 20
"""Most elements of a constant that are examined."""
Range = tuple[int, int]
"""The least and the largest number."""


def range_of(value: Value) -> Range | None:
    """Return the range of the elements of integers or bools; None for other dtypes."""
    return _range(value, DEEPEST, {})


def _range(value: Value, depth: int, known: dict[Value, Range | None]) -> Range | None:
    if value not in known:
        known[value] = _found(value, depth, known)
    return known[value]


def _found(value: Value, depth: int, known: dict[Value, Range | None]) -> Range | None:
    if not isinstance(value.type, TensorType) or not (is_integer(value.dtype) or value.dtype == "bool"):
        return None
    if value.data is not None and 0 < value.data.size <= MOST_READ:
        return int(value.data.min()), int(value.data.max())
    widest = _of_dtype(value.dtype)
    if value.producer is None or depth == 0:
        return widest
    found = _computed(value.producer, lambda x: _range(x, depth - 1, known))
    if found is None and value.producer.op == "cast":
        found = float_range(value.producer.inputs[0], lambda x: _range(x, depth - 1, known), {}).whole
    # Values outside the dtype's range wrap around to anything.
    return found if found is not None and widest[0] <= found[0] and found[1] <= widest[1] else widest


def _of_dtype(dtype: str) -> Range:
    if dtype == "bool":
        return 0, 1
    limits = np.iinfo(to_numpy_dtype(dtype))
    return int(limits.min), int(limits.max)


def _computed(node: Node, of: Callable[[Value], Range | None]) -> Range | None:
    """Return the range of an operator's result; None for unsupported operators and non-integer operands."""
    if node.op in ("arg_max", "arg_min"):
        return _places(node.inputs[0].tensor_type.shape[node.attrs["axis"]])
    if node.op == "iota":
        return _places(node.attrs["shape"][node.attrs["axis"]])
    if node.op not in _RULES:
        return None
    first, rule = _RULES[node.op]
    operands = [of(x) for x in (node.inputs[first:] if node.op in _OF_ALL else node.inputs[:1])]
    return None if None in operands else rule([operand for operand in operands if operand is not None])


def _places(size: object) -> Range | None:
    return (0, max(size - 1, 0)) if isinstance(size, int) else None


def _any_of(operands: Sequence[Range]) -> Range:
    return min(low for low, _ in operands), max(high for _, high in operands)


def _product(operands: Sequence[Range]) -> Range:
    ends = [a * b for a in operands[0] for b in operands[1]]
    return min(ends), max(ends)


def _common_bits(operands: Sequence[Range]) -> Range | None:
    """Return the range of a bitwise and of non-negative operands: no bit is set that one of them lacks."""
    most = [high for low, high in operands if low >= 0]
    return (0, min(most)) if most else None


def _shifted_right(operands: Sequence[Range]) -> Range | None:
    """Return the range of a right shift by a constant number of bits."""
    (low, high), (least, most) = operands
    return (low >> least, high >> least) if 0 <= least == most < 64 else None


_OF_ALL = frozenset({"select", "concat", "add", "sub", "mul", "maximum", "minimum", "bitwise_and", "shift_right"})
"""Operators whose results stem from all operands from the first relevant one on, which is given below."""
_RULES: dict[str, tuple[int, Callable[[Sequence[Range]], Range | None]]] = {
    **dict.fromkeys(("cast", "reshape", "transpose", "broadcast_to", "slice"), (0, _any_of)),
    **dict.fromkeys(("gather", "gather_elements", "gather_nd", "concat"), (0, _any_of)),
    "select": (1, _any_of),
    "add": (0, lambda r: (r[0][0] + r[1][0], r[0][1] + r[1][1])),
    "sub": (0, lambda r: (r[0][0] - r[1][1], r[0][1] - r[1][0])),
    "mul": (0, _product),
    "bitwise_and": (0, _common_bits),
    "shift_right": (0, _shifted_right),
    "maximum": (0, lambda r: (max(r[0][0], r[1][0]), max(r[0][1], r[1][1]))),
    "minimum": (0, lambda r: (min(r[0][0], r[1][0]), min(r[0][1], r[1][1]))),
}


TASK_INDICES = 65536
"""Indices that a task of a CPU checks."""
MOST_TOGETHER = 64
"""Most nodes whose indices one launch checks: the parameters of a kernel, and its code, are limited."""


@dataclass(frozen=True)
class IndexCheck:
    """Every element of `indices` (of its last axis, only those at position `column`) must lie in [-size, size)."""

    indices: Value
    size: int
    column: int | None = None

    @property
    def count(self) -> int:
        """Number of indices that are checked."""
        shape = self.indices.shape
        return prod(shape if self.column is None else shape[:-1])


def index_checks(node: Node) -> list[IndexCheck]:
    """Return the conditions on the run-time indices of a gather, a scatter or a choice of matrices."""
    if node.op in ("gather", "gather_elements", "scatter_elements"):
        return [IndexCheck(node.inputs[1], node.inputs[0].shape[node.attrs["axis"]])]
    if node.op in ("gather_nd", "scatter_nd"):
        batch = node.attrs.get("batch_dims", 0)
        x, indices = node.inputs[0], node.inputs[1]
        return [IndexCheck(indices, x.shape[batch + d], d) for d in range(indices.shape[-1])]
    if node.op == "block_matmul":
        return [IndexCheck(indices, node.inputs[1].shape[0]) for indices in node.inputs[2:]]
    return []


def pending_checks(nodes: Sequence[Node]) -> dict[Node, list[IndexCheck]]:
    """Return, per node, the checks of indices that are not known to be in range."""
    pending: dict[Node, list[IndexCheck]] = {}
    for node in nodes:
        for check in index_checks(node):
            if not node.outputs[0].tensor_type.always_empty and not _known_good(check):
                pending.setdefault(node, []).append(check)
    return pending


def checked_together(nodes: Sequence[Node]) -> list[dict[Node, list[IndexCheck]]]:
    """Return `pending_checks` by the launches that make them on GPUs: one is shorter than many."""
    pending = list(pending_checks(nodes).items())
    return [dict(pending[first : first + MOST_TOGETHER]) for first in range(0, len(pending), MOST_TOGETHER)]


def are_places(check: IndexCheck) -> bool:
    """Return whether indices are known to be in range and non-negative."""
    data, least = check.indices.data, bounds_of(perhaps_empty(check.size))[0]
    if data is None:
        found = range_of(check.indices)
        return found is not None and found[0] >= 0 and found[1] < least
    column = data if check.column is None else data[..., check.column]
    return bool(np.all((column >= 0) & (column < least)))


def checked(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the names of the nodes whose indices are not known to be in range."""
    return frozenset(node.name for node in pending_checks(tuple(nodes)))


def _known_good(check: IndexCheck) -> bool:
    data, least = check.indices.data, bounds_of(perhaps_empty(check.size))[0]
    if data is None:
        part = None if check.column is None else (check.indices.tensor_type.rank - 1, check.column)
        return _limit(check.indices, part) == check.size or _is_within(check.indices, least)
    column = data if check.column is None else data[..., check.column]
    return bool(np.all((column >= -least) & (column < least)))


def _is_within(indices: Value, size: int) -> bool:
    found = range_of(indices)
    return found is not None and found[0] >= -size and found[1] < size


def _limit(indices: Value, part: tuple[int, int] | None) -> Size | None:
    """Return an exclusive upper bound of indices that their producer implies, together with non-negativity: positions
    in a mask, of sorted elements or of the largest one. None if it implies none.

    part: an axis and the position along it of the indices meant; None: all.
    """
    node = indices.producer
    if node is None:
        return None
    match node.op:
        case "top_k" if indices is node.outputs[1]:
            return node.inputs[0].shape[node.attrs["axis"]]
        case "arg_max" | "arg_min":
            size = node.inputs[0].shape[node.attrs["axis"]]
            return size if bounds_of(perhaps_empty(size))[0] > 0 else None  # without elements, the position is 0
        case "order_rows":
            return node.inputs[0].shape[0]
        case "compact" if part is not None and part[0] == 0:
            return node.inputs[0].shape[part[1]]
        case "compact" if node.inputs[0].tensor_type.rank == 1:
            return node.inputs[0].shape[0]
        case "reshape" if part is None:
            return _limit(node.inputs[0], None)
        case "transpose":
            return _limit(node.inputs[0], part and (node.attrs["perm"][part[0]], part[1]))
        case "slice":
            return _limit(node.inputs[0], _before_slice(node, part))
    return None


def _before_slice(node: Node, part: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the part of a slice's operand that a part of the slice covers; without a part, the first axis reduced to a
    single position.
    """
    starts, steps, sizes = (node.attrs[name] for name in ("starts", "steps", "sizes"))
    if part is not None:
        axis, place = part
        return axis, starts[axis] + place * steps[axis]
    shape = node.inputs[0].shape
    return next(((axis, starts[axis]) for axis, size in enumerate(sizes) if size == 1 != shape[axis]), None)


def read_for(checks: Sequence[IndexCheck], inputs: Sequence[Value]) -> list[Value]:
    """Return the inputs that the indices are computed from."""
    found = values_between((check.indices for check in checks), inputs)
    return [v for v in inputs if v in found]


def check_tasks(checks: Sequence[IndexCheck]) -> int:
    """Return the tasks of the CPU launch that makes these checks of one node."""
    return largest(1, ceil_div(largest(*(check.count for check in checks)), TASK_INDICES))
