"""What code for CPUs evaluates element by element: neighbours of one vector lie apart, or in different operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.accesses import Access, walk_over
from tilestitch.cost_model.facts import Arithmetic
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule, CpuRowSchedule

STRIDED = 0.35
"""Steps of an element that lies at an equal distance from its neighbours: transposes within the first cache take 0.39
cycles of 2.5 GHz (AMD Zen 4, one thread, 24 November 2026), and none may be predicted to be slower than nominal steps.
"""
GATHERS = frozenset({"gather", "gather_elements", "gather_nd"})


def scalar_steps(node: Node) -> int:
    """Of one element, a load or a comparison each; 0 where a vector of neighbours is one load, as after any movement
    of whole rows.

    Operands of a concat are told apart one after the other, an element that a gather picks by itself has an index that
    is loaded before.
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
    """Return how many of what an element reads and stores does not lie together in memory with what its neighbours do
    in the vectors of these loops: what lies anywhere, and what lies at equal distances.

    Anywhere are elements after an index that depends on the place in the vector, whichever dimension it was of before a
    transpose, and after a quotient, where the loops join dimensions that do not lie alike. Of the operands of a concat
    that has loops, or branches, of their own an element reads one.
    """
    order = schedule.order or range(len(schedule.extents))
    extents = [extent for _, extent in sorted(zip(order, schedule.extents, strict=True))]
    one = bool(schedule.cuts or schedule.branches)
    return apart_along(order[-1], walk_over(extents, inputs, outputs).accesses, one)


def apart_along(axis: int, accesses: Iterable[Access], one: bool = False) -> tuple[float, float]:
    """Return the same of these accesses in vectors along an axis; `one`: an element reads one operand of a concat."""
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
    """Yield the scalar steps of `apart`, beyond those that `scalars` counts of the same nodes."""
    elements = prod(schedule.extents)
    if not elements:
        return
    inner = schedule.chunk if isinstance(schedule, CpuLoopSchedule) else schedule.extents[-1]
    whole = ceil(inner / schedule.lanes) * schedule.lanes / inner  # the last vector is moved back, so that it fits
    known = sum(counts.get(node.outputs[0], 0.0) * scalar_steps(node) for node in nodes if _picks(node))
    steps = int((max(0.0, picked * elements - known) + STRIDED * strided * elements) * whole)
    if steps:
        yield Arithmetic("scalar", dtype, steps)


def _picks(node: Node) -> bool:
    return node.op in GATHERS or (node.op == "pad" and node.attrs["mode"] != "constant")


def scalars(nodes: Iterable[Node], counts: Mapping[Value, float], dtype: str) -> Iterator[Arithmetic]:
    """Yield the steps of `nodes`, whose results are evaluated so often."""
    steps = int(sum(counts.get(node.outputs[0], 0.0) * steps for node in nodes if (steps := scalar_steps(node))))
    if steps:
        yield Arithmetic("scalar", dtype, steps)
