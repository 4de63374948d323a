"""Row statistics after a GEMM in one launch: the last block that stores part of a band of rows computes them.

A LayerNorm or softmax after a GEMM needs whole rows, while a block of the GEMM has only some columns. Waiting for the
others would require co-resident blocks; here no block waits. Blocks increment a word of their band of rows when they
have stored their tile, and the last one reads the band back from the L2 cache, helped by those that arrived shortly
before. That saves a launch, at the cost of the tail: the rows of the last bands are computed while the GPU is otherwise
idle.
"""

from collections.abc import Collection, Mapping
from math import prod

from tilestitch.compiler.ir import Node, Value, is_elementwise
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.plan.parts import MATMULS
from tilestitch.passes.plan.roles import Part, Roles, roles_of


def why_no_band(nodes: Mapping[str, Node], gemm: Group, after: Group, subject: str) -> WhyNot | None:
    """Return why `after` cannot be computed band by band after `gemm`, which stores its operand; None if it can."""
    if gemm.kind is not GroupKind.CONTRACTION or after.kind is not GroupKind.ROWWISE:
        reason = f"{gemm.name} is {gemm.kind.value} and {after.name} {after.kind.value}, not a contraction and rows"
        return WhyNot(subject, "legality.band_kinds", reason)
    made, rows = (_roles_in(nodes, group) for group in (gemm, after))
    for found in (made, rows):
        if isinstance(found, WhyNot):
            return found
    assert isinstance(made, Roles) and isinstance(rows, Roles)
    refusal = _why_no_rows(made, rows) or _why_not_in_place(made, rows, set(gemm.outputs))
    return None if refusal is None else WhyNot(subject, *refusal)


_Refusal = tuple[str, str, dict[str, int]]


def _roles_in(nodes: Mapping[str, Node], group: Group) -> Roles | WhyNot:
    members = [nodes[n] for n in group.nodes]
    values = {o.name: o for n in members for o in n.outputs}
    return roles_of(members, [values[v] for v in group.outputs], group.name)


def _why_no_rows(gemm: Roles, after: Roles) -> _Refusal | None:
    anchor, rows = gemm.anchor, after.rows
    assert anchor is not None and rows is not None
    if anchor.op not in MATMULS and (anchor.attrs["layout"], anchor.attrs["groups"]) != ("NXC", 1):
        return "legality.band_anchor", f"{anchor.name} ({anchor.op}) has channels first, or in groups", {}
    columns, length = anchor.output.shape[-1], rows.length
    if not anchor.output.tensor_type.num_elements:
        return "legality.band_rows", f"{anchor.name} has no elements", {}
    numbers = {"columns": columns, "row": length}
    if rows.across or not rows.trailing:
        return "legality.band_rows", "rows do not lie along the columns of the GEMM", numbers
    if length < 2 or columns % length or prod(rows.shape) != anchor.output.tensor_type.num_elements:
        return "legality.band_rows", "rows are no parts of the GEMM's rows", numbers
    return None


def _why_not_in_place(gemm: Roles, after: Roles, stored: Collection[str]) -> _Refusal | None:
    """Return why an element after the GEMM may depend on other rows of it; None if shapes and indices rule that out."""
    assert gemm.anchor is not None
    elements = gemm.anchor.output.tensor_type.num_elements
    moved: set[Value] = set()
    for node, part in after.parts.items():
        for value in node.inputs:
            if value.name in stored and value.producer not in after.parts:
                view = _moving_view(gemm, value)
                if view is not None:
                    return "legality.band_view", f"{value.name} is stored after {view.name} ({view.op})", {}
                moved.add(value)
        if part is Part.REDUCTION or not any(v in moved for v in node.inputs):
            continue
        if not is_elementwise(node.op) and node.op not in ("reshape", "broadcast_to"):
            return "legality.band_index", f"{node.name} ({node.op}) moves elements of the GEMM between rows", {}
        if node.output.tensor_type.num_elements != elements:
            return "legality.band_index", f"{node.name} spreads elements of the GEMM over other rows", {}
        moved.update(node.outputs)
    return None


def _moving_view(gemm: Roles, value: Value) -> Node | None:
    """Return a view between the GEMM and a stored value that is not a reshape."""
    producer = value.producer
    while producer is not None and gemm.parts[producer] is Part.VIEW:
        if producer.op != "reshape":
            return producer
        producer = producer.inputs[0].producer
    return None
