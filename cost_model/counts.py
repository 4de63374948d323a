"""Bytes moved and operations performed: counts that do not depend on the machine."""

from collections.abc import Iterable

from tilestitch.compiler.ir import Kind, Node, Value, kind_of, op_spec

EXPENSIVE_OPERATIONS = 16
"""Cost of an exponential, a sine and the like, in additions."""


def bytes_of(values: Iterable[Value]) -> int:
    """Return the bytes of the tensors given, each counted once. The tensors must be static."""
    return sum(v.tensor_type.nbytes for v in dict.fromkeys(values))


_PICKING = frozenset({"gather", "gather_nd", "gather_elements", "slice"})
_REARRANGING = frozenset({"reshape", "transpose"})


def footprint_bytes(value: Value, nodes: Iterable[Node]) -> int:
    """Return the bytes of `value` that `nodes` read: all, or those selected by gathers and slices if only these read
    it.

    Reads through reshapes and transposes among `nodes` count, too.
    """
    nodes = list(nodes)
    whole, picked = value.tensor_type.nbytes, 0
    for node in nodes:
        if value not in node.inputs:
            continue
        if node.op in _REARRANGING and any(node.output in n.inputs for n in nodes):
            picked += footprint_bytes(node.output, nodes)
        elif node.op in _PICKING and value is node.inputs[0]:
            picked += node.output.tensor_type.nbytes
        else:
            picked += int(whole * share_read(node, value))
    return min(whole, picked)


def share_read(node: Node, value: Value) -> float:
    """Return the share of an operand that a node reads at most: of matrices chosen by index one for each index."""
    if node.op != "block_matmul" or value not in node.inputs[1:2] or len(node.inputs) < 3:
        return 1.0
    return min(1.0, node.inputs[2].tensor_type.num_elements / value.shape[0])


def operations_per_element(op: str) -> int:
    """Return the operations per output element of a view or injective operator; 0 where only indices change."""
    spec = op_spec(op)
    if spec.expensive:
        return EXPENSIVE_OPERATIONS
    if spec.kind is Kind.VIEW:
        return 0
    return 4 if op in ("div", "sqrt", "mod", "fmod", "gather", "gather_nd", "gather_elements") else 1


def operations(node: Node) -> int:
    """Return the arithmetic operations of a node; a multiply-add counts as two. Types must be static."""
    kind = kind_of(node.op)
    if kind is Kind.CONTRACTION:
        return 2 * _multiplications(node)
    if kind is Kind.REDUCTION:
        return node.inputs[0].tensor_type.num_elements
    if node.op == "window_reduce":
        return _window_elements(node)
    count = sum(o.tensor_type.num_elements for o in node.outputs)
    return count * (operations_per_element(node.op) if kind in (Kind.VIEW, Kind.INJECTIVE) else 1)


def _window_elements(node: Node) -> int:
    """Return the elements that all windows of a window_reduce read, without padding."""
    x, result, attrs = node.inputs[0], node.outputs[0], node.attrs
    first = 1 if attrs["layout"] == "NXC" else 2
    count = 1
    for axis, extent in enumerate(result.shape):
        place = axis - first
        if not 0 <= place < len(attrs["kernel"]):
            count *= extent
            continue
        settings = (attrs[key][place] for key in ("kernel", "strides", "before", "dilations"))
        count *= _pairs(x.shape[axis], extent, *settings)
    return count


def _pairs(size: int, windows: int, kernel: int, stride: int, before: int, dilation: int) -> int:
    """Return how often, along one axis, a window meets an element."""
    met = 0
    for start in (number * stride - before for number in range(windows)):
        first, last = max(0, -(start // dilation)), min(kernel - 1, (size - 1 - start) // dilation)
        met += max(0, last - first + 1)
    return met


def _multiplications(node: Node) -> int:
    x, w = (v.tensor_type for v in node.inputs[:2])
    result = node.outputs[0].tensor_type
    if node.op in ("matmul", "block_matmul"):
        return result.num_elements * x.static_shape[-2 if node.attrs.get("trans_a") else -1]
    first = node.attrs["layout"] == "NCX"
    channel_axis = 1 if first else len(result.shape) - 1
    if node.op == "conv":
        out_channels = result.static_shape[channel_axis]
        return result.num_elements * (w.num_elements // out_channels) if out_channels else 0
    in_channels = x.static_shape[channel_axis]  # conv_transpose: every input element meets its channel's weights
    return x.num_elements * (w.num_elements // in_channels) if in_channels else 0
