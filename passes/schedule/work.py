"""What a kernel reads, writes and computes: the facts that do not depend on its schedule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Kind, Node, Value, kind_of, op_spec
from tilestitch.cost_model.counts import operations, operations_per_element, share_read
from tilestitch.cost_model.facts import Arithmetic, Part, Traffic, Unit
from tilestitch.passes.plan.roles import Roles

from .evaluations import evaluations

NOTHING: Mapping[Value, int] = {}


def work_of(
    nodes: Sequence[Node], stored: Sequence[Value], roles: Roles, passes: Mapping[Value, int] = NOTHING,
    counts: Mapping[Value, float] | None = None,
) -> Part:  # fmt: skip
    """Return what a kernel of `nodes` that stores `stored` reads, writes and computes.

    passes: in how many passes over its rows a row-wise kernel computes or reads a value, if not in one. counts: the
    `evaluations`, if known.
    """
    counts, dtype = counts or evaluations(nodes, stored, roles), _dtype(nodes, roles)
    elements = max(o.tensor_type.num_elements for n in nodes for o in n.outputs)
    if roles.rows is not None:
        elements = max(elements, prod(roles.rows.shape))
    repeated = {value: count * passes.get(value, 1) for value, count in counts.items()} if passes else counts
    return Part(
        kind=roles.kind.value,
        dtype=dtype,
        reads=_reads(nodes, counts, passes),
        writes=tuple(Traffic(v.name, v.tensor_type.nbytes, v.tensor_type.nbytes) for v in stored),
        arithmetic=tuple(arithmetic_of(nodes, repeated, dtype)),
        elements=elements,
    )


# -- arithmetic --------------------------------------------------------------------------------------------------------


def arithmetic_of(nodes: Sequence[Node], counts: Mapping[Value, float], dtype: str) -> Iterator[Arithmetic]:
    """Yield the arithmetic, by unit; multiply-adds of contractions, and scalar work, are added by the schedule."""
    fma = cheap = transcendental = 0.0
    for node in nodes:
        kind = kind_of(node.op)
        if kind is Kind.CONTRACTION:
            fma += operations(node) / 2
        elif kind in (Kind.REDUCTION, Kind.OPAQUE):
            cheap += operations(node)
        else:
            times = max(counts.get(o, 0.0) for o in node.outputs)
            if op_spec(node.op).expensive:
                transcendental += times
            else:
                cheap += times * operations_per_element(node.op)
    found: tuple[tuple[Unit, float], ...] = (("fma", fma), ("alu", cheap), ("special", transcendental))
    return (Arithmetic(unit, dtype, int(count)) for unit, count in found if int(count))


def before(nodes: Sequence[Node], anchor: Node) -> list[Node]:
    """Return the prologue nodes of a contraction's operands, last first."""
    wanted, found = set(anchor.inputs), []
    for node in reversed(nodes):
        if node is not anchor and any(o in wanted for o in node.outputs):
            found.append(node)
            wanted.update(node.inputs)
    return found


def _dtype(nodes: Sequence[Node], roles: Roles) -> str:
    node = roles.anchor or nodes[-1]
    dtype = (node.inputs or node.outputs)[0].tensor_type.dtype
    return "tfloat32" if dtype == "float32" and node.attrs.get("precision") == "tf32" else dtype


# -- memory ------------------------------------------------------------------------------------------------------------


def _reads(nodes: Sequence[Node], counts: Mapping[Value, float], passes: Mapping[Value, int]) -> tuple[Traffic, ...]:
    """Return the loads of everything from outside; readers at the same index are assumed to share one load."""
    members = set(nodes)
    requested: dict[Value, float] = {}
    for node in nodes:
        times = max((counts.get(o, 0.0) for o in node.outputs), default=0.0)
        for value in dict.fromkeys(node.inputs):
            if value.producer not in members:
                requested[value] = max(requested.get(value, 0.0), _elements_read(node, value, times))
    traffic = []
    for value, elements in requested.items():
        if value.data is not None and value.data.size == 1:
            continue  # it is part of the code
        type_ = value.tensor_type
        size = type_.num_elements
        itemsize = type_.nbytes / size if size else 0.0
        traffic.append(Traffic(
            value.name, int(elements * itemsize) * passes.get(value, 1), int(min(elements, size) * itemsize),
            "weight" if value.is_constant else "activation",
        ))  # fmt: skip
    return tuple(traffic)


def _elements_read(node: Node, value: Value, times: float) -> float:
    size = value.tensor_type.num_elements
    if kind_of(node.op) not in (Kind.VIEW, Kind.INJECTIVE):
        return size * share_read(
            node, value
        )  # tiles of a GEMM are kept close; repeated reads hit the first-level cache
    if node.op == "concat":
        total = node.output.tensor_type.num_elements
        return times * size / total if total else 0.0
    return times


def read_again(reads: Sequence[Traffic], sides: Mapping[str, int], times: tuple[float, float]) -> tuple[Traffic, ...]:
    """Return the reads of a contraction whose operands are read `times` times; `sides`: the operand that a value
    feeds.
    """

    def asked(t: Traffic) -> Traffic:
        side = sides.get(t.value)
        if side is None:
            return t
        return replace(t, bytes_requested=max(t.footprint_bytes, int(t.footprint_bytes * times[side])))

    return tuple(map(asked, reads))


def sides_of(nodes: Sequence[Node], operands: Sequence[Value]) -> dict[str, int]:
    """Return which of two operands each value from outside feeds."""
    members = set(nodes)
    found: dict[str, int] = {}
    for side, operand in reversed(list(enumerate(operands))):
        waiting, seen = [operand], set[Value]()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value.producer in members and value.producer is not None:
                waiting += value.producer.inputs
            else:
                found[value.name] = side
    return found
