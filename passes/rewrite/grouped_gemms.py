"""GEMMs of equal shape with separate matrices and inputs become one batched GEMM: experts, towers, heads.

Element-wise work before and after all of them is batched as well. `passes/group_gemms.py` decides whether to.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value, is_elementwise

from .driver import is_sized
from .siblings import NEUTRAL, Siblings

Lanes = tuple[Node, ...]
"""Mutually independent GEMMs."""


def group_gemms(graph: Graph, wanted: Callable[[tuple[str, ...]], bool] = lambda names: True) -> list[tuple[str, ...]]:
    """Replace each `wanted` family, given by its nodes' names, with one batched GEMM; return these names.

    Later families are searched after earlier ones were replaced: the second layers of experts read the batched result
    of the first.
    """
    found: list[tuple[str, ...]] = []
    stacker = _Stacker(graph)
    seen: set[Node] = set()
    while (lanes := _next_family(graph, seen)) is not None:
        seen.update(lanes)
        names = tuple(node.name for node in lanes)
        if wanted(names):
            stacker.stack(lanes)
            graph.sort()
            found.append(names)
    return found


def _next_family(graph: Graph, seen: set[Node]) -> Lanes | None:
    """Return the first family of GEMMs not yet examined; None if there is none."""
    families: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node not in seen and (key := _key(node)) is not None:
            families.setdefault(key, []).append(node)
    for gemms in families.values():
        if len(gemms) > 1:
            for lanes in _independent(graph, gemms):
                if len(lanes) > 1:
                    return lanes
    return None


def _key(node: Node) -> Hashable | None:
    """Return what must agree between lanes; None for a node that is no GEMM by its own matrix."""
    if node.op != "matmul" or not is_sized(node.output):
        return None
    left, weight = node.inputs
    if weight.data is None or weight.data.ndim != 2 or not weight.data.size or len(weight.uses) > 1 or left.is_constant:
        return None
    return left.type, weight.type, node.output.type, repr(sorted(node.attrs.items()))


def _independent(graph: Graph, gemms: Sequence[Node]) -> list[Lanes]:
    """Return the GEMMs grouped by the longest chain of others before each: those of one depth are independent."""
    members = set(gemms)
    depth: dict[Node, int] = {}
    by_depth: dict[int, list[Node]] = {}
    for node in graph.nodes:
        before = (v.producer for v in node.inputs if v.producer is not None)
        depth[node] = max((depth.get(n, 0) + (n in members) for n in before), default=0)
        if node in members:
            by_depth.setdefault(depth[node], []).append(node)
    return [tuple(lanes) for lanes in by_depth.values()]


@dataclass
class _Stacker:
    """Replaces the operations of lanes with batched ones. known: maps a value that is a lane of a batched value to that
    value and the lane's number.
    """

    graph: Graph
    known: dict[Value, tuple[Value, int]] = field(default_factory=dict)

    def stack(self, lanes: Lanes) -> None:
        graph, siblings = self.graph, Siblings.of(lanes, self.graph)
        self.last, self.joined = lanes[-1], dict[tuple[Value, ...], Value]()
        values = [self._gemm(lanes)]
        for step in siblings.steps:
            rank = step.sample.output.tensor_type.rank
            operands = [
                values[row] if row is not None else self._constants(step.nodes, position, rank)
                for position, row in enumerate(step.rows)
            ]
            origins = _origins([n for n in step.nodes if n is not None])
            made = graph.emit(step.sample.op, *operands, origins=origins, insert_before=self.last, **step.sample.attrs)
            values.append(made)
        taken = siblings.taken
        for lane, rows in enumerate(siblings.lanes):
            for value, row in rows.items():
                if any(user not in taken for user in value.users) or graph.is_output(value):
                    self._hand_over(value, values[row], lane, taken)
        place = {node: number for number, node in enumerate(graph.nodes)}
        for node in sorted(taken, key=lambda node: -place[node]):
            graph.remove(node)
        for node in lanes:
            graph.remove(node)

    def _gemm(self, lanes: Lanes) -> Value:
        first = lanes[0]
        left = self._joined(tuple(n.inputs[0] for n in lanes), first.inputs[0].tensor_type.rank)
        weight = self._stacked([n.inputs[1] for n in lanes], first.output.tensor_type.rank)
        return self.graph.emit("matmul", left, weight, origins=_origins(lanes), insert_before=self.last, **first.attrs)

    # -- what lanes read -----------------------------------------------------------------------------------------------

    def _joined(self, values: tuple[Value, ...], rank: int) -> Value:
        """Return the values of all lanes stacked along a new first axis, each padded with leading ones to rank
        `rank`.
        """
        first = values[0]
        if all(v is first for v in values) and first.tensor_type.rank <= rank:
            return first
        if values not in self.joined:
            self.joined[values] = self._join(values, rank)
        return self.joined[values]

    def _join(self, values: tuple[Value, ...], rank: int) -> Value:
        if all(v.is_constant for v in values):
            return self._stacked(values, rank)
        whole = self._whole(values, rank) or self._columns(values, rank)
        return whole or self._computed(values, rank) or self._copied(values, rank)

    def _whole(self, values: tuple[Value, ...], rank: int) -> Value | None:
        """Return the batched value whose lanes these are, in order; None if there is none."""
        found = [self.known.get(v) for v in values]
        if found[0] is None or found != [(found[0][0], lane) for lane in range(len(values))]:
            return None
        whole = found[0][0]
        return whole if whole.shape[0] == len(values) and whole.tensor_type.rank == rank + 1 else None

    def _columns(self, values: tuple[Value, ...], rank: int) -> Value | None:
        """Return the values as one, if they are views of equal column ranges that cover a value: merged first layers of
        experts.
        """
        nodes = [v.producer for v in values]
        first = nodes[0]
        if first is None or any(n is None or n.op != "slice" or n.inputs != first.inputs for n in nodes):
            return None
        whole, width = first.inputs[0], values[0].shape[-1]
        starts = [n.attrs["starts"] for n in nodes if n is not None]
        wanted = [(*(0,) * (rank - 1), lane * width) for lane in range(len(values))]
        if [tuple(one) for one in starts] != wanted or whole.shape != (*values[0].shape[:-1], width * len(values)):
            return None
        if values[0].tensor_type.rank != rank or any(tuple(n.attrs["steps"]) != (1,) * rank for n in nodes if n):
            return None
        origins = _origins([n for n in nodes if n is not None])
        shape, perm = (*whole.shape[:-1], len(values), width), (rank - 1, *range(rank - 1), rank)
        split = self.graph.emit("reshape", whole, origins=origins, insert_before=self.last, shape=shape)
        return self.graph.emit("transpose", split, origins=origins, insert_before=self.last, perm=perm)

    def _computed(self, values: tuple[Value, ...], rank: int) -> Value | None:
        """Return the batched form of the same element-wise operation of all lanes, if nothing else reads these."""
        nodes = [v.producer for v in values]
        first = nodes[0]
        if first is None or len(set(nodes)) < len(nodes) or not is_elementwise(first.op) or len(first.outputs) != 1:
            return None
        for node, value in zip(nodes, values):
            alike = node is not None and _operation(node) == _operation(first)
            if not alike or len(set(value.users)) != 1 or self.graph.is_output(value):
                return None
        lanes = [n for n in nodes if n is not None]
        if any(v.tensor_type.rank > rank for v in first.inputs):
            return None
        operands = [self._joined(each, rank) for each in zip(*(n.inputs for n in lanes), strict=True)]
        if all(v.tensor_type.rank <= rank for v in operands):
            return None
        return self.graph.emit(first.op, *operands, origins=_origins(lanes), insert_before=self.last, **first.attrs)

    def _copied(self, values: tuple[Value, ...], rank: int) -> Value:
        shape = (1, *(1,) * (rank - values[0].tensor_type.rank), *values[0].shape)
        origins = [o for v in values if v.producer is not None for o in v.producer.origins]
        tops = [self.graph.emit("reshape", v, origins=origins, insert_before=self.last, shape=shape) for v in values]
        return self.graph.emit("concat", *tops, origins=origins, insert_before=self.last, axis=0)

    def _constants(self, nodes: Sequence[Node | None], position: int, rank: int) -> Value:
        """Return the stacked constants of all lanes, with the neutral element for lanes without one."""
        sample = next(n for n in nodes if n is not None)
        like = sample.inputs[position]
        neutral = np.full((), NEUTRAL.get(sample.op, 0.0), like.data.dtype if like.data is not None else None)
        padding = self.graph.constant(neutral)
        return self._stacked([padding if n is None else n.inputs[position] for n in nodes], rank)

    def _stacked(self, values: Sequence[Value], rank: int) -> Value:
        """Return one constant for all lanes, stacked or shared."""
        first = values[0].data
        known = [v.data for v in values if v.data is not None]
        assert first is not None and len(known) == len(values)
        if all(d.shape == first.shape and d.tobytes() == first.tobytes() for d in known) and first.size == 1:
            return values[0]
        upright = [d.reshape((1,) * (rank - d.ndim) + d.shape) for d in known]
        shape = np.broadcast_shapes(*(d.shape for d in upright))
        return self.graph.constant(np.stack([np.broadcast_to(d, shape) for d in upright]), name=values[0].name)

    # -- what reads lanes ----------------------------------------------------------------------------------------------

    def _hand_over(self, old: Value, whole: Value, lane: int, taken: set[Node]) -> None:
        """Let all readers of a lane's value, except those in `taken`, read it from the batched one."""
        assert old.producer is not None
        origins, rank = old.producer.origins, whole.tensor_type.rank
        starts, sizes = (lane, *(0,) * (rank - 1)), (1, *whole.shape[1:])
        row = self.graph.emit(
            "slice", whole, origins=origins, insert_before=self.last, starts=starts, steps=(1,) * rank, sizes=sizes
        )
        new = self.graph.emit("reshape", row, origins=origins, insert_before=self.last, shape=old.shape)
        self.known[new] = whole, lane
        self.graph.replace_uses(old, new, taken)


def _operation(node: Node) -> Hashable:
    types = tuple((v.dtype, v.tensor_type.rank, v.shape) for v in node.inputs)
    return node.op, node.output.type, repr(sorted(node.attrs.items())), types


def _origins(nodes: Sequence[Node]) -> list[str]:
    return [o for n in nodes for o in n.origins]
