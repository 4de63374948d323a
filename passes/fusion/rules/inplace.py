"""Concats without a kernel: their operands are written at their positions in the result.

This requires each operand to be contiguous in the result, as along the first axis. What is between operand and result
(concats and views) then needs no kernel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.compiler.ir.ops import reference
from tilestitch.passes.fusion.clusters import Cluster, Fusion
from tilestitch.passes.fusion.rules.builtin import AllowsAll
from tilestitch.passes.plan import ALIGNMENT, Place

MOST_ELEMENTS = 1 << 22
"""Largest result that is considered: locating operands takes time and memory."""


@dataclass(frozen=True)
class InPlace(AllowsAll):
    """Enables in-place concats for a planner: those whose operands can be written in place have no kernel."""

    name: ClassVar[str] = "in_place"


def places_in(state: Fusion, aliases: Mapping[Value, Value]) -> dict[str, Place]:
    """Return the values that are written into a part of another one, by name, with their positions."""
    found: dict[str, Place] = {}
    for cluster in state.clusters():
        whole = _concatenated(state, cluster)
        if whole is None or whole.name in found:
            continue
        operands = {v for n in cluster.members for v in n.inputs if v.producer not in cluster.members}
        roots = {v: aliases.get(v, v) for v in operands}
        if len(set(roots.values())) < len(roots) or not all(_may_move(state, v, found) for v in roots.values()):
            continue
        offsets = offsets_of(whole, list(operands))
        if offsets is not None and all(offset % ALIGNMENT == 0 for offset in offsets.values()):
            found.update((roots[v].name, Place(whole.name, offset)) for v, offset in offsets.items())  # in order
    return found


def _concatenated(state: Fusion, cluster: Cluster) -> Value | None:
    """Return the value that a cluster of views and concats stores, if only kernels read it."""
    nodes = cluster.members
    if not any(n.op == "concat" for n in nodes) or not state.is_native(cluster) or cluster.copies:
        return None
    if not all(n.op == "concat" or kind_of(n.op) is Kind.VIEW for n in nodes):
        return None
    stored = state.outputs_of(cluster)
    if len(stored) != 1 or state.graph.is_output(stored[0]) or stored[0].tensor_type.num_elements > MOST_ELEMENTS:
        return None
    return stored[0] if all(map(state.is_native, state.readers(cluster))) else None


def _may_move(state: Fusion, value: Value, taken: Mapping[str, Place]) -> bool:
    """Return whether a kernel writes `value`, only kernels read it, and it shares memory with no other value."""
    if value.producer is None or value.name in taken or state.graph.is_output(value):
        return False
    if value.name in {place.whole for place in taken.values()}:
        return False
    home = state.cluster_of(value.producer)
    return state.is_native(home) and value in state.outputs_of(home) and all(map(state.is_native, state.readers(home)))


def offsets_of(whole: Value, parts: Sequence[Value]) -> dict[Value, int] | None:
    """Return the byte offset of each of `parts` in `whole`, if each is contiguous there and they cover it; else None.

    What is in between must be views and concats; it is evaluated on element numbers.
    """
    numbers: dict[Value, np.ndarray] = {}
    starts: dict[int, Value] = {}
    count = 0
    for part in parts:
        size = part.tensor_type.num_elements
        numbers[part] = np.arange(count, count + size).reshape(part.shape)
        starts[count] = part
        count += size
    if not count or count != whole.tensor_type.num_elements or any(p.dtype != whole.dtype for p in parts):
        return None
    order = _evaluated(whole, numbers).reshape(-1)
    itemsize = whole.tensor_type.nbytes // count
    found: dict[Value, int] = {}
    place = 0
    while place < count:
        begun = starts.get(int(order[place]))
        if begun is None or begun in found:
            return None
        size = begun.tensor_type.num_elements
        if not np.array_equal(order[place : place + size], numbers[begun].reshape(-1)):
            return None
        found[begun] = place * itemsize
        place += size
    return found if len(found) == len(parts) else None


def _evaluated(value: Value, known: dict[Value, np.ndarray]) -> np.ndarray:
    stack = [value]
    while stack:
        node: Node | None = stack[-1].producer
        assert node is not None
        waiting = [v for v in node.inputs if v not in known and v.data is None]
        if waiting:
            stack += waiting
            continue
        top = stack.pop()
        if top not in known:
            operands = [v.data if v.data is not None else known[v] for v in node.inputs]
            known.update(zip(node.outputs, map(np.asarray, reference(node.op)(operands, node.attrs)), strict=True))
    return known[value]
