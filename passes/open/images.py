"""Analysis of whether nodes compute each image of a batch separately, whatever the batch: then any number of images can
be computed at a time.

A value *has images* if its first dimension is a multiple of the symbol, and no other dimension depends on it: so the
images are contiguous, one after the other. Other values are shared by all images.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilestitch.compiler.ir import Node, Value, is_elementwise
from tilestitch.compiler.ir.polynomial import exact_quotient
from tilestitch.compiler.ir.sizes import Size, Symbol, as_size, size_of, symbols_of
from tilestitch.compiler.ir.types import is_sized_tensor

SAME = 0


def images_of(value: Value, symbol: Symbol) -> Size | None:
    """Return the rows of the first dimension per image; `SAME` for a value without images; None for one that is
    neither.
    """
    if not is_sized_tensor(value.type):
        return None
    sizes = value.tensor_type.sizes
    if symbol not in symbols_of(sizes):
        return SAME
    rows = exact_quotient(sizes[0], size_of(symbol))
    return None if rows is None or symbol in symbols_of([rows, *sizes[1:]]) else as_size(rows)


def why_not_by_image(node: Node, symbol: Symbol) -> str | None:
    """Return why an image of the node's results may depend on other images; None if it does not."""
    values = (*node.inputs, *node.outputs)
    tangled = next((v for v in values if images_of(v, symbol) is None), None)
    if tangled is not None:
        return f"{symbol} is not the first dimension of {tangled.type}"
    if any(symbol in symbols_of(_sizes(data)) for name, data in node.attrs.items() if name not in _OF_RESULTS):
        return f"{node.op} is told {symbol}"
    apart = _INDEPENDENT.get(node.op)
    if apart is None and is_elementwise(node.op):
        apart = _aligned
    if apart is None or not apart(node, symbol):
        return f"{node.op} may compute an image from others"
    return None


_OF_RESULTS = ("shape", "sizes")
"""Attributes for the size of a result."""


def _sizes(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for part in data:
            yield from _sizes(part)
    else:
        yield data


def _has(value: Value, symbol: Symbol) -> bool:
    return images_of(value, symbol) != SAME


def _aligned(node: Node, symbol: Symbol) -> bool:
    """Return whether operands are broadcast properly: those with images have the result's first dimension, others have
    none there.
    """
    return all(_fits(value, node.output, symbol) for value in node.inputs)


def _fits(value: Value, result: Value, symbol: Symbol) -> bool:
    if _has(value, symbol):
        return value.tensor_type.rank == result.tensor_type.rank and value.shape[0] == result.shape[0]
    return not _has(result, symbol) or value.tensor_type.rank < result.tensor_type.rank or value.shape[0] == 1


def _view(node: Node, symbol: Symbol) -> bool:
    """Return whether a view keeps images: elements stay in order."""
    return _has(node.inputs[0], symbol) == _has(node.output, symbol)


def _transposed(node: Node, symbol: Symbol) -> bool:
    return not _has(node.output, symbol) or node.attrs["perm"][0] == 0


def _cut(node: Node, symbol: Symbol) -> bool:
    x, attrs = node.inputs[0], node.attrs
    if not _has(x, symbol):
        return not _has(node.output, symbol)
    return bool(attrs["starts"][0] == 0 and attrs["steps"][0] == 1 and attrs["sizes"][0] == x.shape[0])


def _along(node: Node, symbol: Symbol) -> bool:
    """Return whether the operator works along another axis than the first, on all operands alike."""
    if not _has(node.output, symbol):
        return not any(_has(value, symbol) for value in node.inputs)
    first = node.output.shape[0]
    return node.attrs["axis"] != 0 and all(_has(v, symbol) and v.shape[0] == first for v in node.inputs)


def _padded(node: Node, symbol: Symbol) -> bool:
    attrs, (x, *scalar) = node.attrs, node.inputs
    if any(_has(value, symbol) for value in scalar):
        return False
    return not _has(x, symbol) or (attrs["before"][0] == 0 and attrs["after"][0] == 0)


def _gathered(node: Node, symbol: Symbol) -> bool:
    x, indices = node.inputs
    if not _has(x, symbol):
        return not _has(indices, symbol) or node.attrs["axis"] == 0
    return not _has(indices, symbol) and node.attrs["axis"] != 0


def _along_one(node: Node, symbol: Symbol) -> bool:
    """Return whether each line along another axis than the first is computed separately."""
    return not _has(node.inputs[0], symbol) or node.attrs["axis"] != 0


def _counted(node: Node, symbol: Symbol) -> bool:
    return not _has(node.output, symbol) or node.attrs["axis"] != 0


def _told(node: Node, symbol: Symbol) -> bool:
    return not _has(node.output, symbol)


def _reduced(node: Node, symbol: Symbol) -> bool:
    return not _has(node.inputs[0], symbol) or 0 not in node.attrs["axes"]


def _multiplied(node: Node, symbol: Symbol) -> bool:
    """Return whether rows of the left operand, or matrices of either, belong to images; a right operand's rows do
    not.
    """
    left, right = node.inputs
    if not _has(node.output, symbol):
        return not _has(left, symbol) and not _has(right, symbol)
    if left.tensor_type.rank == 2 and _has(left, symbol):
        return not node.attrs.get("trans_a") and not _has(right, symbol) and node.output.tensor_type.rank == 2
    both = (left, right)
    return all(_fits(v, node.output, symbol) and (v.tensor_type.rank > 2 or not _has(v, symbol)) for v in both)


def _weighted(node: Node, symbol: Symbol) -> bool:
    """Return whether only the first operand has images; all others are shared."""
    return not any(_has(value, symbol) for value in node.inputs[1:])


# Operators other than element-wise ones; those not listed may mix images.
_INDEPENDENT: Mapping[str, Callable[[Node, Symbol], bool]] = {
    "reshape": _view,
    "broadcast_to": _aligned,
    "transpose": _transposed,
    "slice": _cut,
    "concat": _along,
    "pad": _padded,
    "iota": _counted,
    "sizes": _told,
    "gather": _gathered,
    "gather_elements": _along,
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and"), _reduced),
    **dict.fromkeys(("arg_max", "arg_min", "cumulative", "top_k"), _along_one),
    "matmul": _multiplied,
    **dict.fromkeys(("conv", "conv_transpose", "window_reduce", "block_matmul"), _weighted),
}
