"""Decisions about a row-wise group: its loops, the passes over a row, and which values a row keeps in the workspace.

The iteration shape S falls into kept dimensions (each index of which is a row) and reduced ones. If the last dimension
is reduced, a pass walks along one row in vectors. If it is kept, a pass handles a vector of neighbouring rows at once.
A reduction whose operand depends on others runs in a later pass over the row than those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilestitch.codegen.compute import elementwise
from tilestitch.codegen.compute.dtypes import compute_dtype, storage_bits
from tilestitch.codegen.groups import levels
from tilestitch.compiler.ir.accesses import merge, walk_of
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.indexing import reshape_index
from tilestitch.compiler.ir.ops import op_spec
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.roles import Part, Roles

TASK_ELEMENTS = 12288
CACHE_COST = 4
"""A value that takes this many operations to compute again is kept for the passes that follow."""
CACHE_BYTES = 512 * 1024
"""Rows that need more workspace than this are computed again instead."""


@dataclass(frozen=True)
class RowLoops:
    """`extents`: dimensions of S, some merged; `reduced` says which are reduced. A block is `lanes * vectors`
    elements of the last dimension: of one row, or (`columns`) of that many rows."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    lanes: int
    vectors: int
    rows_per_task: int

    @property
    def columns(self) -> bool:
        return not self.reduced[-1]

    @property
    def block(self) -> int:
        return self.lanes * self.vectors

    @property
    def row_extents(self) -> tuple[int, ...]:
        """What rows (blocks of rows) are numbered over."""
        kept = [e for e, r in zip(self.extents, self.reduced, strict=True) if not r]
        if self.columns:
            kept[-1] = -(-kept[-1] // self.block)
        return tuple(kept)

    @property
    def line_extents(self) -> tuple[int, ...]:
        """The reduced dimensions."""
        return tuple(e for e, r in zip(self.extents, self.reduced, strict=True) if r)

    @property
    def row_elements(self) -> int:
        return prod(self.line_extents)

    @property
    def width(self) -> int:
        """Rows that are computed together."""
        return self.block if self.columns else 1

    @property
    def tasks(self) -> int:
        return -(-prod(self.row_extents) // self.rows_per_task)


@dataclass(frozen=True)
class RowPass:
    """One walk over the row: finishes `reductions`, stores `outputs`, keeps `cached` values for later passes."""

    reductions: tuple[Node, ...]
    outputs: tuple[Value, ...]
    cached: tuple[Value, ...]


@dataclass(frozen=True)
class RowPlan:
    loops: RowLoops
    passes: tuple[RowPass, ...]
    reduced: tuple[Value, ...]
    """Results of reduced nodes and reductions, in topological order."""
    roles: Roles

    def cache_offset(self, value: Value) -> int:
        """Where the row of a cached value begins in the workspace, in bytes."""
        offset = 0
        for cached in (v for p in self.passes for v in p.cached):
            if cached is value:
                return offset
            offset += self._cache_bytes(cached)
        raise KeyError(value.name)

    def _cache_bytes(self, value: Value) -> int:
        elements = self.loops.row_elements * self.loops.width
        return -(-elements * (storage_bits(compute_dtype(value.dtype)) // 8) // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        return sum(self._cache_bytes(v) for p in self.passes for v in p.cached)


def plan_rows(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa
) -> RowPlan:
    """The plan of a row-wise group with at least one row."""
    assert roles.rows is not None
    shape, axes = roles.rows.shape, roles.rows.axes
    reductions = [n for n, part in roles.parts.items() if part is Part.REDUCTION]
    views = roles.viewed
    full = [v for v in outputs if v in views or (v.producer is not None and roles.parts[v.producer] is Part.FULL)]
    level = levels(nodes, roles)
    count = max(level[n.outputs[0]] for n in reductions)
    targets: list[list[Value]] = [[] for _ in range(count + 1)]
    for node in reductions:
        targets[level[node.outputs[0]] - 1].append(node.inputs[0])
    for value in full:
        targets[level[value]].append(value)
    loops = _plan_loops(
        shape, axes, nodes, inputs, [*(n.inputs[0] for n in reductions), *(views.get(v, v) for v in full)], isa
    )
    first_pass = _cached(nodes, roles, targets, shape)
    passes = []
    for p in range(count + 1):
        finished = tuple(n for n in reductions if level[n.outputs[0]] == p + 1)
        stored = tuple(v for v in full if level[v] == p)
        cached = tuple(v for v, where in first_pass.items() if where == p)
        if finished or stored:
            passes.append(RowPass(finished, stored, cached))
    reduced = tuple(n.outputs[0] for n, part in roles.parts.items() if part in (Part.REDUCTION, Part.REDUCED))
    plan = RowPlan(loops, tuple(passes), reduced, roles)
    if plan.scratch_bytes > CACHE_BYTES:
        bare = tuple(RowPass(p.reductions, p.outputs, ()) for p in passes)
        plan = RowPlan(loops, bare, reduced, roles)
    return plan


def _cached(
    nodes: Sequence[Node], roles: Roles, targets: Sequence[Sequence[Value]], shape: tuple[int, ...]
) -> dict[Value, int]:
    """Values that several passes need and that are dear enough to keep, with the pass that computes them."""
    demanded: dict[Value, set[int]] = {}
    for p, values in enumerate(targets):
        for value in values:
            demanded.setdefault(value, set()).add(p)
    kept: dict[Value, int] = {}
    for node in reversed(nodes):
        if len(node.outputs) != 1 or roles.parts[node] in (Part.REDUCED, Part.REDUCTION):
            continue
        value = node.output
        where = demanded.get(value, set())
        if not where:
            continue
        whole = value.shape == shape and node.op in elementwise.RULES
        if whole and len(where) > 1 and _cost(value, set(nodes)) >= CACHE_COST:
            kept[value] = min(where)
            where = {min(where)}
        for operand in node.inputs:
            demanded.setdefault(operand, set()).update(where)
    return kept


def _cost(value: Value, members: set[Node]) -> int:
    """Operations to compute an element of `value` from what lies in memory or is reduced."""
    cost = 0
    seen: set[Node] = set()
    stack = [value.producer]
    while stack:
        node = stack.pop()
        if node is None or node in seen or node not in members or node.op.startswith(("reduce_", "arg_")):
            continue
        seen.add(node)
        spec = op_spec(node.op)
        cost += 10 if spec.expensive else 3 if node.op in ("div", "sqrt") else 1
        stack.extend(v.producer for v in node.inputs)
    return cost


def _plan_loops(
    shape: tuple[int, ...], axes: tuple[int, ...], nodes: Sequence[Node], inputs: Sequence[Value],
    walked: Sequence[Value], isa: Isa,
) -> RowLoops:  # fmt: skip
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    extents = [shape[d] for d in dims]
    reduced = [d in axes for d in dims]
    if not extents:
        extents, reduced = [1], [False]
    if prod(shape):
        inner = _readable(nodes, inputs)
        walk = walk_of(walked, inner, extents, lambda i: [reshape_index(i, extents, v.shape) for v in walked])
        extents, reduced = merge(extents, reduced, walk.accesses)
    last = max(1, extents[-1])
    lanes = min(isa.vector_bytes // 4, 1 << (last.bit_length() - 1))
    dear = any(op_spec(n.op).expensive for n in nodes)
    vectors = 1
    while vectors < (2 if dear else 4) and lanes > 1 and last >= 2 * vectors * lanes:
        vectors *= 2
    row_elements = prod(e for e, r in zip(extents, reduced, strict=True) if r)
    width = 1 if reduced[-1] else lanes * vectors
    weight = 1 + sum(4 if op_spec(n.op).expensive else 0 for n in nodes) // 4
    rows = max(1, TASK_ELEMENTS // weight // max(1, row_elements * width))
    return RowLoops(shape, axes, tuple(extents), tuple(reduced), lanes, vectors, rows)


def _readable(nodes: Sequence[Node], inputs: Sequence[Value]) -> list[Value]:
    """What the walk along a row reads from memory: inputs, and results of reductions, which lie in registers."""
    return [*inputs, *(v for n in nodes if n.op.startswith(("reduce_", "arg_")) for v in n.outputs)]
