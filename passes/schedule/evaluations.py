"""How often a kernel computes each of its values, where readers access elements at other indices than their own."""

from collections.abc import Sequence
from math import prod

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of
from tilestitch.passes.plan.roles import Part, Roles


def evaluations(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles) -> dict[Value, float]:
    """Return how many element evaluations of each value a group performs.

    Readers at the same index share one evaluation; readers at other indices (through views, broadcasts, gathers) add
    theirs. Values of the iteration shape of a row-wise group are computed once, since the row is kept.
    """
    members = set(nodes)
    shared: dict[Value, float] = {v: float(v.tensor_type.num_elements) for v in stored}
    apart: dict[Value, float] = {}
    for node in reversed(nodes):
        for i, value in enumerate(node.inputs):
            if value.producer not in members:
                continue
            mine = max((shared.get(o, 0.0) + apart.get(o, 0.0) for o in node.outputs), default=0.0)
            count, same_index = _reads(node, i, value, mine)
            if roles.rows is not None and kept_by_row(value, roles):
                count, same_index = float(value.tensor_type.num_elements), True
            if same_index:
                shared[value] = max(shared.get(value, 0.0), count)
            else:
                apart[value] = apart.get(value, 0.0) + count
    return {v: shared.get(v, 0.0) + apart.get(v, 0.0) for v in {*shared, *apart}}


def read_apart(node: Node) -> tuple[Value, ...]:
    """Return the operands whose elements `node` reads more than once, or at indices other than its own."""
    mine = float(node.outputs[0].tensor_type.num_elements)
    alike = all(o.tensor_type.num_elements == mine for o in node.outputs)
    return tuple(
        value
        for i, value in enumerate(node.inputs)
        if not alike or _reads(node, i, value, mine) != (value.tensor_type.num_elements, True)
    )


def kept_by_row(value: Value, roles: Roles) -> bool:
    """Return whether a row-wise group computes each element of `value` once: it is a whole row, or one value per
    row.
    """
    assert roles.rows is not None and value.producer is not None
    return value.shape == roles.rows.shape or roles.parts[value.producer] in (Part.REDUCTION, Part.REDUCED)


def _reads(node: Node, index: int, value: Value, mine: float) -> tuple[float, bool]:
    """Return how often `node`, evaluated `mine` times, evaluates its operand, and whether that is at its own index."""
    kind = kind_of(node.op)
    size = value.tensor_type.num_elements
    if kind is Kind.REDUCTION:
        return float(size), True
    if kind is Kind.CONTRACTION:
        return size * (windows_of(node) if node.op in WINDOWED and index == 0 else 1.0), True
    if node.op == "concat":
        total = node.output.tensor_type.num_elements
        return (mine * size / total if total else 0.0), False
    if node.op == "reshape":
        return mine, True
    moved = index == 0 and not is_elementwise(node.op)
    return mine, kind is Kind.INJECTIVE and not moved and value.tensor_type.shape == node.outputs[0].tensor_type.shape


WINDOWED = frozenset({"conv", "conv_transpose"})


def windows_of(node: Node) -> float:
    """Return in how many windows of a convolution each image element lies."""
    weight, strides = node.inputs[1].shape, node.attrs["strides"]
    extents = weight[2:] if node.attrs["layout"] == "NCX" else weight[: len(strides)]
    return prod(extents) / (prod(strides) if node.op == "conv" else 1)
