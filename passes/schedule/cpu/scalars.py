"""Scalar work in CPU code: elements of one vector that are not contiguous, or are in different operands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.accesses import Access, walk_over
from tilestitch.cost_model.facts import Arithmetic
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule, CpuRowSchedule

STRIDED = 0.35
"""Steps per element at an equal distance from its neighbours, of which none may be predicted to be slower than nominal
ones.
"""
DIVIDED = 4
"""Steps per element of padded rows that is located by a division, as rows of another length begin anywhere in them."""
GATHERS = frozenset({"gather", "gather_elements", "gather_nd"})


def scalar_steps(node: Node) -> int:
    """Return the steps per element, each a load or a comparison; 0 where neighbours are one vector load, as after any
    movement of whole rows.

    Operands of a concat are distinguished one after the other; an element that a gather picks individually has its
    index loaded first.
    """
    last = len(node.outputs[0].shape) - 1
    match node.op:
        case "concat":
            return len(node.inputs) if node.attrs["axis"] == last else 0
        case "pad":
            return 1 if any(node.attrs[side][-1:] not in ((), (0,)) for side in ("before", "after")) else 0
        case "gather":
            x, indices = node.inputs
            return 1 if indices.shape and node.attrs["axis"] == len(x.shape) - 1 else 0
        case "gather_elements":
            return 2
        case "gather_nd":
            x, indices = node.inputs
            return 2 if node.attrs["batch_dims"] + indices.shape[-1] == len(x.shape) else 0
    return 0


def apart(inputs: Sequence[Value], outputs: Sequence[Value], schedule: CpuLoopSchedule) -> tuple[float, float]:
    """Return how many accesses per element are not contiguous along the vectors of these loops: those at arbitrary
    positions, and those at equal distances.

    Arbitrary are elements selected by an index that varies along the vector, whichever dimension that was before a
    transpose, and those located by a division, where the loops merge dimensions without uniform strides. Where the
    operands of a concat have separate loops or branches, an element reads one of them.
    """
    order = schedule.order or range(len(schedule.extents))
    extents = [extent for _, extent in sorted(zip(order, schedule.extents, strict=True))]
    one = bool(schedule.cuts or schedule.branches)
    return apart_along(order[-1], walk_over(extents, inputs, outputs).accesses, one)


def apart_along(axis: int, accesses: Iterable[Access], one: bool = False) -> tuple[float, float]:
    """Return the same for these accesses in vectors along an axis; `one`: an element reads one operand of a concat."""
    picked = strided = 0.0
    for access in accesses:
        step, share = access.steps[axis], access.share if one else 1.0
        picked += share * (step is None)
        strided += share * (step is not None and abs(step) > 1)
    return picked, strided


def apart_steps(
    picked: float, strided: float, nodes: Iterable[Node], counts: Mapping[Value, float],
    schedule: CpuLoopSchedule | CpuRowSchedule, dtype: str,
) -> Iterator[Arithmetic]:  # fmt: skip
    """Yield the scalar steps of `apart`, beyond those that `scalars` counts for the same nodes."""
    elements = prod(schedule.extents)
    if not elements:
        return
    inner = schedule.chunk if isinstance(schedule, CpuLoopSchedule) else schedule.extents[-1]
    whole = ceil(inner / schedule.lanes) * schedule.lanes / inner  # the last vector is shifted back to fit
    known = sum(counts.get(node.outputs[0], 0.0) * scalar_steps(node) for node in nodes if _picks(node))
    steps = int((max(0.0, picked * elements - known) + STRIDED * strided * elements) * whole)
    if steps:
        yield Arithmetic("scalar", dtype, steps)


def _picks(node: Node) -> bool:
    return node.op in GATHERS or (node.op == "pad" and node.attrs["mode"] != "constant")


def _splits_rows(node: Node) -> bool:
    """Return whether rows of a reshape begin anywhere in those of its operand."""
    if node.op != "reshape" or 0 in node.output.shape:
        return False
    before, after = (value.shape[-1] if value.shape else 1 for value in (node.inputs[0], node.output))
    return before % after != 0 != after % before


def scalars(nodes: Iterable[Node], counts: Mapping[Value, float], dtype: str) -> Iterator[Arithmetic]:
    """Yield the scalar steps of `nodes`; `counts`: evaluations of their results."""
    nodes = list(nodes)
    padded = any(node.op in ("concat", "pad") and scalar_steps(node) for node in nodes)
    each = {node: DIVIDED if padded and _splits_rows(node) else scalar_steps(node) for node in nodes}
    steps = int(sum(counts.get(node.outputs[0], 0.0) * steps for node, steps in each.items() if steps))
    if steps:
        yield Arithmetic("scalar", dtype, steps)
