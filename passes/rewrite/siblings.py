"""GEMMs with one left operand, the element-wise work that follows all of them, and the readers of the results."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilestitch.compiler.ir import Graph, Kind, Node, Value, is_elementwise, kind_of

NEUTRAL = {"add": -0.0, "mul": 1.0}
"""Neutral elements for any operand: -0 + 0 is 0."""
FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Step:
    """One operation on all lanes: `nodes` has its node per lane, or None for a lane without it.

    rows: by operand position, the number of the row read there; None for constants.
    """

    nodes: tuple[Node | None, ...]
    rows: tuple[int | None, ...]

    @property
    def sample(self) -> Node:
        """The node of the first lane that has one."""
        return next(n for n in self.nodes if n is not None)


@dataclass
class Siblings:
    """Several parallel GEMMs, the *lanes*.

    A *row* holds corresponding values of all lanes: row 0 the GEMMs' results, row i + 1 the results of step i. Shapes
    within a row differ at most in the last axis.
    """

    gemms: tuple[Node, ...]
    rows: list[tuple[Value, ...]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    lanes: list[dict[Value, int]] = field(default_factory=list)
    """Per lane: its values, each with the last row that it is in."""
    taken: set[Node] = field(default_factory=set)
    """The nodes that the steps comprise."""

    @staticmethod
    def of(gemms: Sequence[Node], graph: Graph) -> Siblings:
        """Return `gemms` of `graph` with as much following work as is the same in all lanes."""
        found = Siblings(tuple(gemms), [tuple(n.output for n in gemms)])
        found.lanes = [{n.output: 0} for n in gemms]
        while (step := found._common() or found._padded(graph)) is not None:
            found._take(step)
        return found

    def _take(self, step: Step) -> None:
        row = tuple(node.output if node is not None else self._bare(step, lane) for lane, node in enumerate(step.nodes))
        self.steps.append(step)
        self.taken.update(node for node in step.nodes if node is not None)
        self.rows.append(row)
        for known, value in zip(self.lanes, row, strict=True):
            known[value] = len(self.rows) - 1

    def _bare(self, step: Step, lane: int) -> Value:
        return next(self.rows[r][lane] for r in step.rows if r is not None)

    def border(self, lane: int) -> Iterator[tuple[Value, Node]]:
        """Yield the values of a lane, each with its readers outside the steps."""
        for value in self.lanes[lane]:
            yield from ((value, reader) for reader in value.users if reader not in self.taken)

    def _common(self) -> Step | None:
        """Return an operation common to all lanes; None if there is none."""
        for node in dict.fromkeys(u for value in self.lanes[0] for u in value.users if u not in self.taken):
            key = self._key(node, 0)
            if key is None:
                continue
            twins = [next((n for n in self._open(lane, key)), None) for lane in range(1, len(self.lanes))]
            nodes = (node, *(n for n in twins if n is not None))
            if len(nodes) == len(self.lanes):
                return Step(nodes, self._operands(node, 0))
        return None

    def _open(self, lane: int, key: Hashable) -> Iterator[Node]:
        readers = dict.fromkeys(u for value in self.lanes[lane] for u in value.users)
        return (n for n in readers if n not in self.taken and self._key(n, lane) == key)

    def _padded(self, graph: Graph) -> Step | None:
        """Return a sum or product with a constant that at least half of the lanes have; the others get the neutral
        element.
        """
        for row in range(len(self.rows)):
            for op in NEUTRAL:
                nodes = [self._only(row, lane, op, graph) for lane in range(len(self.lanes))]
                if 2 * sum(n is not None for n in nodes) >= len(nodes) > 1:
                    return Step(tuple(nodes), (row, None))
        return None

    def _only(self, row: int, lane: int, op: str, graph: Graph) -> Node | None:
        """Return the only reader of a lane's value, if it is `op` with a constant; else None."""
        value = self.rows[row][lane]
        if self.lanes[lane].get(value) != row or len(value.uses) != 1 or graph.is_output(value):
            return None
        node, position = next(iter(value.uses))
        plain = node.op == op and position == 0 and node.inputs[1].is_constant and node not in self.taken
        return node if plain and value.dtype in FLOATS and node.output.type == value.type else None

    def _operands(self, node: Node, lane: int) -> tuple[int | None, ...]:
        return tuple(None if v.is_constant else self.lanes[lane][v] for v in node.inputs)

    def _key(self, node: Node, lane: int) -> Hashable | None:
        """Return what must agree in all lanes for `node` to be one operation; None if it cannot be one."""
        if not is_elementwise(node.op) or len(node.outputs) != 1:
            return None
        known = self.lanes[lane]
        if not all(v.is_constant or v in known for v in node.inputs):
            return None
        if node.output.tensor_type.shape != self.gemms[lane].output.shape:
            return None
        operands = tuple(
            ("constant", v.dtype) if v.is_constant else ("row", str(known[v])) for v in node.inputs
        )  # fmt: skip
        return node.op, repr(sorted(node.attrs.items())), node.output.dtype, operands


def joined_constant(values: Sequence[Value | None], widths: Sequence[int], neutral: float) -> np.ndarray:
    """Return one constant for all lanes: concatenated along the last axis, with `neutral` where a lane has none.

    A number that all lanes share stays a number.
    """
    known = [v.data for v in values if v is not None and v.data is not None]
    first = known[0]
    if len(known) == len(values) and all(d.size == 1 and d.tobytes() == first.tobytes() for d in known):
        return first.reshape(()) if all(d.ndim == 0 for d in known) else first.reshape(-1)
    rank = max(1, *(d.ndim for d in known))
    full = {i: v.data.reshape((1,) * (rank - v.data.ndim) + v.data.shape) for i, v in enumerate(values)
            if v is not None and v.data is not None}  # fmt: skip
    lead = np.broadcast_shapes(*(d.shape[:-1] for d in full.values()))
    parts = [
        np.broadcast_to(full.get(i, np.asarray(neutral, first.dtype)), (*lead, width)) for i, width in enumerate(widths)
    ]
    return np.concatenate(parts, axis=-1)


# -- what reads the results of a lane ----------------------------------------------------------------------------------

_RANGES = frozenset({"reshape", "transpose", "slice"})
_PULLING = (Kind.VIEW, Kind.INJECTIVE, Kind.REDUCTION)


def reads_in_place(reader: Node, graph: Graph, *, viewed: bool = False) -> bool:
    """Return whether `reader` reads a column range in place, by strides, in a kernel that exists anyway.

    GEMMs do, as does anything computed after a view, which cannot be in a GEMM's epilogue. `viewed`: a view is between
    the range and the reader.
    """
    if reader.op not in _RANGES:
        return reader.op == "matmul" or (viewed and kind_of(reader.op) in _PULLING)
    if graph.is_output(reader.output):
        return False
    return all(reads_in_place(next_, graph, viewed=True) for next_ in reader.output.users)


def meeting(starts: Sequence[Sequence[Node]], shape: tuple[int, ...]) -> list[set[int]]:
    """Return which of `starts` reach a common node through element-wise work of shape `shape` alone, as sets of their
    numbers.
    """
    group_of = [{number} for number in range(len(starts))]
    reached_from: dict[Node, int] = {}
    for number, readers in enumerate(starts):
        stack = list(readers)
        while stack:
            node = stack.pop()
            if node in reached_from:  # and so is everything that depends on it
                _unite(group_of, number, reached_from[node])
            elif is_elementwise(node.op) and node.output.tensor_type.shape == shape:
                reached_from[node] = number
                stack.extend(node.output.users)
    groups = {id(group): group for group in group_of}
    return sorted(groups.values(), key=max)


def _unite(group_of: list[set[int]], a: int, b: int) -> None:
    """Merge the sets that contain two numbers."""
    small, large = sorted((group_of[a], group_of[b]), key=len)
    if small is large:
        return
    large |= small
    for number in small:
        group_of[number] = large
