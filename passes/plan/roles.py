"""The part that each node plays in a group: the only place where the conditions of `tilestitch.passes.plan` are code.

`roles_of` finds the kind of group that a set of nodes can form, or why it can form none. The planner, the replay of
saved plans and code generation all use it.
"""

from collections.abc import Callable, Iterable, Sequence

from tilestitch.compiler.ir import Kind, Node, TensorType, Value, is_elementwise, kind_of
from tilestitch.compiler.ir.types import SMALL_FLOATS, broadcast_shapes
from tilestitch.passes.plan.attention.softmax import Inside

from .group import GroupKind
from .parts import Illegal, Part, Roles, RowSpace
from .refusal import WhyNot
from .view import GroupView

__all__ = ["NATIVE_DTYPES", "Part", "Roles", "RowSpace", "is_native", "legal_roles", "roles_of"]

NATIVE_DTYPES = frozenset({
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8", "bool",
})  # fmt: skip


_OF_SMALL_FLOATS = frozenset({"cast", "concat", "gather", "pad", "select", "matmul", "conv"})
"""Operators, besides views, that have kernels for 8-bit floats; ONNX supports hardly any others."""


def is_native(node: Node) -> bool:
    """Return whether a node can be compiled: a primitive on static tensors of native dtypes."""
    kind = kind_of(node.op)
    if kind in (Kind.HOST, Kind.CONTROL):
        return False
    small = kind is Kind.VIEW or node.op in _OF_SMALL_FLOATS
    # A loop: planning calls this millions of times.
    for value in (*node.inputs, *node.outputs):  # noqa: SIM110
        if not is_native_type(value.type, small):
            return False
    return True


def is_native_type(type_: object, small: bool = False) -> bool:
    """Return whether kernels support tensors of a type. small: including 8-bit floats."""
    # A lookup by type would be slower: its hash is computed in Python.
    if not isinstance(type_, TensorType) or not type_.is_sized:
        return False
    return type_.dtype in NATIVE_DTYPES or (small and type_.dtype in SMALL_FLOATS)


def roles_of(
    nodes: Sequence[Node], stored: Iterable[Value], subject: str = "", *, are_native: bool = False
) -> Roles | WhyNot:
    """Return the roles of `nodes` (in topological order) as one group that stores `stored`, or why that is no group.

    are_native: all nodes are known to be compilable.
    """
    outputs = list(dict.fromkeys(stored))
    try:
        return _roles(nodes, outputs, are_native)
    except Illegal as refusal:
        return WhyNot(subject or _names(nodes), f"legality.{refusal.rule}", refusal.reason, refusal.numbers)


def legal_roles(view: GroupView) -> Roles:
    """Return the roles of the nodes of a group that is known to be legal."""
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles), roles
    return roles


def _names(nodes: Sequence[Node]) -> str:
    return " + ".join(n.name for n in nodes)


def _roles(nodes: Sequence[Node], stored: list[Value], are_native: bool) -> Roles:
    if not nodes or not stored:
        raise Illegal("empty", "a group needs nodes and something to store")
    for node in () if are_native else nodes:
        if not is_native(node):
            raise Illegal("native", f"{node.name} ({node.op}) cannot be compiled")
    by_kind: dict[Kind, list[Node]] = {}
    for node in nodes:
        by_kind.setdefault(kind_of(node.op), []).append(node)
    if len(by_kind.get(Kind.CONTRACTION, ())) == 2 and Kind.REDUCTION in by_kind and Kind.OPAQUE not in by_kind:
        return _attention(nodes, by_kind[Kind.CONTRACTION], stored)
    heavy = [kind for kind in (Kind.CONTRACTION, Kind.OPAQUE, Kind.REDUCTION) if kind in by_kind]
    if len(heavy) > 1:
        raise Illegal("one_template", f"{heavy[0].value} and {heavy[1].value} need different kernel templates")
    if not heavy:
        return _injective(nodes, stored)
    members = by_kind[heavy[0]]
    if heavy[0] is Kind.REDUCTION:
        return _rowwise(nodes, members, stored)
    if len(members) > 1:
        raise Illegal("one_anchor", f"{members[0].name} and {members[1].name} are both {heavy[0].value} nodes")
    if heavy[0] is Kind.CONTRACTION:
        return _contraction(nodes, members[0], stored)
    return _opaque(nodes, members[0], stored)


def _injective(nodes: Sequence[Node], stored: list[Value]) -> Roles:
    counts = {v.tensor_type.num_elements for v in stored}
    if len(counts) > 1:
        raise Illegal("equal_counts", "outputs differ in their number of elements", least=min(counts), most=max(counts))
    return Roles(GroupKind.INJECTIVE, None, dict.fromkeys(nodes, Part.PULLED))


# -- groups around an anchor -----------------------------------------------------------------------------------------


def _contraction(nodes: Sequence[Node], anchor: Node, stored: list[Value]) -> Roles:
    parts = _around_anchor(nodes, anchor, _after_contraction)
    _check_chain_stored(parts, stored)
    if Part.GATE in parts.values():
        _check_gates(anchor, parts, stored)
    _check_pulled_not_stored(parts, stored)
    _check_second_operand(anchor, parts)
    return Roles(GroupKind.CONTRACTION, anchor, parts)


def _opaque(nodes: Sequence[Node], anchor: Node, stored: list[Value]) -> Roles:
    if len(nodes) > 1 and anchor.op != "window_reduce":
        raise Illegal("opaque_alone", f"{anchor.op} takes neither prologue nor epilogue")
    parts = _around_anchor(nodes, anchor, _epilogue)
    _check_pulled_not_stored(parts, stored)
    reaches = _ancestors(anchor.inputs, parts)
    if reaches:
        raise Illegal("opaque_prologue", f"{anchor.op} takes no prologue ({reaches[0].name})")
    return Roles(GroupKind.OPAQUE, anchor, parts)


def _around_anchor(
    nodes: Sequence[Node], anchor: Node, after: Callable[[Node, Node, dict[Node, Part]], Part]
) -> dict[Node, Part]:
    parts: dict[Node, Part] = {}
    for node in nodes:
        if node is anchor:
            parts[node] = Part.ANCHOR
        elif not _depends(node, parts):
            parts[node] = Part.PULLED
        else:
            parts[node] = after(node, anchor, parts)
    return parts


def _depends(node: Node, parts: dict[Node, Part]) -> bool:
    return any(v.producer is not None and parts.get(v.producer, Part.PULLED) is not Part.PULLED for v in node.inputs)


def _dependent_operands(node: Node, parts: dict[Node, Part]) -> list[Value]:
    return [v for v in node.inputs if v.producer is not None and parts.get(v.producer, Part.PULLED) is not Part.PULLED]


def _epilogue(node: Node, anchor: Node, parts: dict[Node, Part]) -> Part:
    shape = anchor.outputs[0].shape
    if not is_elementwise(node.op):
        raise Illegal("epilogue_elementwise", f"{node.name} ({node.op}) after {anchor.name} is not element-wise")
    if node.output.shape != shape:
        raise Illegal("epilogue_shape", f"{node.name} has shape {node.output.shape}, {anchor.name} has {shape}")
    for value in _dependent_operands(node, parts):
        if value.producer is not None and parts[value.producer] is Part.VIEW:
            raise Illegal("epilogue_after_view", f"{node.name} reads {value.name}, whose axes were moved")
        if value.shape != shape:
            raise Illegal("epilogue_index", f"{node.name} reads {value.name} at another index than it is computed at")
    return Part.EPILOGUE


def _after_contraction(node: Node, anchor: Node, parts: dict[Node, Part]) -> Part:
    if node.op == "slice":
        return Part.GATE
    if any(parts[v.producer] in (Part.GATE, Part.GATED) for v in _dependent_operands(node, parts) if v.producer):
        return Part.GATED
    if node.op not in ("reshape", "transpose"):
        return _epilogue(node, anchor, parts)
    chain = [n for n, part in parts.items() if part is Part.VIEW]
    if chain and node.inputs[0].producer is not chain[-1]:
        raise Illegal(
            "one_view_chain", f"{chain[-1].name} and {node.name} both move the axes of {anchor.name}'s result"
        )
    return Part.VIEW


def _check_chain_stored(parts: dict[Node, Part], stored: list[Value]) -> None:
    chain = [n for n, part in parts.items() if part is Part.VIEW]
    if chain and chain[-1].output not in stored:
        raise Illegal("view_unread", f"nothing outside reads {chain[-1].name}")


def _check_pulled_not_stored(parts: dict[Node, Part], stored: list[Value]) -> None:
    for value in stored:
        if value.producer is not None and parts.get(value.producer) is Part.PULLED:
            raise Illegal("pulled_stored", f"{value.name} is also needed outside, where a prologue is not stored")


def _check_second_operand(anchor: Node, parts: dict[Node, Part]) -> None:
    _check_only_views(anchor, anchor.inputs[1], "second operand", parts)


def _check_only_views(anchor: Node, operand: Value, called: str, parts: dict[Node, Part]) -> None:
    for node in _ancestors([operand], parts):
        if kind_of(node.op) is not Kind.VIEW:
            raise Illegal("second_operand", f"{node.name} ({node.op}) computes before {anchor.name}'s {called}")
        if node.inputs[0].is_constant:
            raise Illegal("constant_view", f"{node.name} is a view of a constant: fold it")


def _check_gates(anchor: Node, parts: dict[Node, Part], stored: list[Value]) -> None:
    if anchor.op != "matmul" or anchor.inputs[1].data is None or anchor.inputs[1].data.ndim != 2:
        raise Illegal("gates_anchor", f"{anchor.name} ({anchor.op}) is no GEMM by a constant matrix")
    shape = anchor.outputs[0].shape
    first = next(n for n, part in parts.items() if part is Part.GATE)
    width = first.output.shape[-1]
    narrow = (*shape[:-1], width)
    for node, part in parts.items():
        if part is Part.VIEW:
            raise Illegal("gates_view", f"{node.name} moves the axes of {anchor.name}'s result, which has gates")
        if part is Part.GATE and not _is_gate(node, shape, width, parts):
            raise Illegal("gates_range", f"{node.name} is no run of {width} columns of {anchor.name}'s result")
        if part is Part.GATED:
            _check_gated(node, narrow, parts)
    for value in stored:
        if value.shape != narrow:
            raise Illegal("gates_stored", f"{value.name} is also needed outside, where only gates are stored")


def _is_gate(node: Node, shape: tuple[int, ...], width: int, parts: dict[Node, Part]) -> bool:
    source = node.inputs[0].producer
    if source is None or parts[source] not in (Part.ANCHOR, Part.EPILOGUE) or not width or shape[-1] % width:
        return False
    *lead, start = node.attrs["starts"]
    aligned = start % width == 0 and not any(lead) and all(s == 1 for s in node.attrs["steps"])
    return aligned and node.output.shape == (*shape[:-1], width)


def _check_gated(node: Node, narrow: tuple[int, ...], parts: dict[Node, Part]) -> None:
    if not is_elementwise(node.op):
        raise Illegal("epilogue_elementwise", f"{node.name} ({node.op}) after gates is not element-wise")
    for value in (node.output, *_dependent_operands(node, parts)):
        if value.shape != narrow:
            raise Illegal("gates_shape", f"{value.name} has shape {value.shape}, gates have {narrow}")


# -- attention -------------------------------------------------------------------------------------------------------


def _attention(nodes: Sequence[Node], gemms: Sequence[Node], stored: list[Value]) -> Roles:
    first, anchor = gemms
    inside = Inside(first, anchor)
    parts: dict[Node, Part] = {}
    after: dict[Node, Part] = {}
    for node in nodes:
        if node is anchor:
            softmax = inside.finish()
            parts[node] = after[node] = Part.ANCHOR
        elif node is first or inside.reads(node):
            parts[node] = inside.part(node)
        elif not _depends(node, after):
            if kind_of(node.op) is Kind.REDUCTION:
                raise Illegal("attention_reduction", f"{node.name} ({node.op}) reduces something else than the scores")
            parts[node] = after[node] = Part.PULLED
        elif node.op == "slice":
            raise Illegal("attention_gates", f"{node.name} cuts the result of {anchor.name}")
        else:
            parts[node] = after[node] = _after_contraction(node, anchor, after)
    _check_chain_stored(parts, stored)
    _check_pulled_not_stored(parts, stored)
    for value in stored:
        if value.producer in parts and value.producer not in after:
            raise Illegal("scores_stored", f"{value.name} is also needed outside, where scores are not stored")
    _check_only_views(first, softmax.key, "keys", parts)
    _check_only_views(anchor, anchor.inputs[1], "values", parts)
    return Roles(GroupKind.ATTENTION, anchor, parts, softmax=softmax)


def _ancestors(values: Sequence[Value], parts: dict[Node, Part]) -> list[Node]:
    found: dict[Node, None] = {}
    stack = [v.producer for v in values]
    while stack:
        node = stack.pop()
        if node is not None and node in parts and node not in found:
            found[node] = None
            stack.extend(v.producer for v in node.inputs)
    return list(found)


# -- row-wise groups -------------------------------------------------------------------------------------------------


def reduced_axes(node: Node) -> tuple[int, ...]:
    """Return the axes that a REDUCTION node reduces, ascending."""
    return tuple(sorted(node.attrs["axes"])) if "axes" in node.attrs else (node.attrs["axis"],)


def _rowwise(nodes: Sequence[Node], reductions: Sequence[Node], stored: list[Value]) -> Roles:
    first = reductions[0]
    rows = RowSpace(first.inputs[0].shape, reduced_axes(first))
    parts: dict[Node, Part] = {}
    for node in nodes:
        if kind_of(node.op) is Kind.REDUCTION:
            parts[node] = _row_reduction(node, rows, parts)
        elif not _depends(node, parts):
            parts[node] = Part.PULLED
        else:
            parts[node] = _row_elementwise(node, rows, parts)
    _check_row_views(parts, stored)
    for value in stored:
        node_ = value.producer
        if node_ is not None and parts.get(node_) is Part.PULLED:
            if kind_of(node_.op) not in (Kind.INJECTIVE, Kind.VIEW) or value.shape != rows.shape:
                raise Illegal("pulled_stored", f"{value.name} is also needed outside, but is not computed row by row")
            parts[node_] = Part.FULL
    return Roles(GroupKind.ROWWISE, first, parts, rows)


def _row_reduction(node: Node, rows: RowSpace, parts: dict[Node, Part]) -> Part:
    operand = node.inputs[0]
    if operand.shape != rows.shape or reduced_axes(node) != rows.axes:
        raise Illegal(
            "one_row_space",
            f"{node.name} reduces axes {reduced_axes(node)} of {operand.shape}, the group {rows.axes} of {rows.shape}",
        )
    producer = operand.producer
    if producer is not None and parts.get(producer) in (Part.REDUCED, Part.REDUCTION) and rows.kept != rows.shape:
        raise Illegal("one_row_space", f"{node.name} reduces the reduced value {operand.name}")
    return Part.REDUCTION


def _row_elementwise(node: Node, rows: RowSpace, parts: dict[Node, Part]) -> Part:
    operands = _dependent_operands(node, parts)
    small = all(v.producer is not None and parts[v.producer] in (Part.REDUCED, Part.REDUCTION) for v in operands)
    shape = node.output.shape
    if node.op == "reshape" and small and shape in (rows.kept, rows.dropped):
        return Part.REDUCED
    source = operands[0].producer
    if node.op in ("reshape", "transpose") and source is not None and _may_be_viewed(source, rows, parts):
        return Part.VIEW
    if not is_elementwise(node.op) and node.op != "broadcast_to":
        raise Illegal("row_elementwise", f"{node.name} ({node.op}) after a reduction is not element-wise")
    if small and shape in (rows.kept, rows.dropped) and all(v.shape == shape for v in operands):
        return Part.REDUCED
    if shape != rows.shape:
        raise Illegal("row_shape", f"{node.name} has shape {shape}, rows have {rows.shape}")
    for value in operands:
        if not _readable_in_row(value, rows, parts):
            raise Illegal("row_index", f"{node.name} reads {value.name} of shape {value.shape} across rows")
    return Part.FULL


def _may_be_viewed(node: Node, rows: RowSpace, parts: dict[Node, Part]) -> bool:
    return parts[node] is Part.VIEW or (parts[node] is Part.FULL and node.output.shape == rows.shape)


def _check_row_views(parts: dict[Node, Part], stored: list[Value]) -> None:
    for node, part in parts.items():
        for value in node.inputs:
            if value.producer is not None and parts.get(value.producer) is Part.VIEW and part is not Part.VIEW:
                raise Illegal("row_view_read", f"{node.name} reads {value.name}, whose axes were moved")
        if part is Part.VIEW and node.output not in stored and Part.VIEW not in map(parts.get, node.output.users):
            raise Illegal("view_unread", f"nothing outside reads {node.name}")


def _readable_in_row(value: Value, rows: RowSpace, parts: dict[Node, Part]) -> bool:
    """Return whether a full node finds the element of `value` that it needs in its own row."""
    assert value.producer is not None
    if parts[value.producer] is Part.FULL:
        return value.shape == rows.shape
    if value.shape == rows.kept:
        return True
    return value.shape == rows.dropped and rows.axes_lead and broadcast_shapes(value.shape, rows.shape) == rows.shape
