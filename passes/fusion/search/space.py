"""The space that fusion explores: sets of clusters as bit masks, their legality as one kernel, and their cost; and the
budget of a search in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from tilestitch.compiler.ir import Node, Value, is_elementwise
from tilestitch.cost_model.bounds import least_us, most_bytes_gained
from tilestitch.cost_model.counts import bytes_of
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, latency_us
from tilestitch.passes.fusion.bitsets import bits, mask_of
from tilestitch.passes.fusion.clusters import Cluster, Fusion
from tilestitch.passes.fusion.cost.profit import MOST_NODES, MOST_OPERANDS, facts_of, recomputation
from tilestitch.passes.fusion.legality import operands, why_not_on
from tilestitch.passes.plan import GroupKind, WhyNot
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.schedule.evaluations import evaluations

NODES_OF_WORK = 8
"""Each further this many nodes of a kernel cost as much to examine as a small kernel does."""


DOUBLINGS = 8
"""A kernel that computes a value more than two to the power of this many times for each element of a result is not
looked into: sums of values and of these moved, level by level, are read at twice as many places from level to level.
"""
PATTERNS = 3
"""Approximate ratio of the work for all patterns of a graph, and climbs from these, to that of one climb."""


@dataclass(frozen=True)
class Pattern:
    """A legal kernel: the atoms in it as a mask, and its quick score in bytes saved against all atoms alone."""

    mask: int
    gain: float


@dataclass(frozen=True)
class Shape:
    """The single kernel of a legal set of atoms."""

    nodes: tuple[Node, ...]
    stored: tuple[Value, ...]
    roles: Roles


class Space:
    """Kernels over the clusters of a fusion state, its *atoms*, numbered in topological order.

    All results are memoised. A *kernel* is a connected set of native atoms that it computes, with those of them that it
    stores, which is legal, not forbidden by a rule of the state, and not too large to compile well. A *pattern* is a
    kernel that stores what others read, so that no other kernel computes its atoms.
    """

    def __init__(self, state: Fusion, model: LatencyModel, device: AnyDevice) -> None:
        self.state, self.model, self.device = state, model, device
        # The ancestors of an atom's ancestors are fewer, so counting ancestors sorts topologically.
        order = sorted(state.clusters(), key=lambda c: (c.reach.above.bit_count(), state.first_position(c)))
        self.atoms: list[Cluster] = order
        self.everything = (1 << len(order)) - 1
        number = {c.number: i for i, c in enumerate(order)}
        self.native = mask_of(i for i, c in enumerate(order) if state.is_native(c) and state.outputs_of(c))
        self.before = [mask_of(number[p.number] for p in state.producers(c) if p.number in number) for c in order]
        self.after = [0] * len(order)
        for i, producers in enumerate(self.before):
            for p in bits(producers):
                self.after[p] |= 1 << i
        self.ancestors, self.descendants = [0] * len(order), [0] * len(order)
        for i, producers in enumerate(self.before):
            for p in bits(producers):
                self.ancestors[i] |= self.ancestors[p] | 1 << p
        for i in reversed(range(len(order))):
            for r in bits(self.after[i]):
                self.descendants[i] |= self.descendants[r] | 1 << r
        # Cheap element-wise atoms may be computed by several kernels, reductions only by one.
        self.copyable = mask_of(i for i in bits(self.native) if self._is_injective(order[i]))
        self.results = mask_of(i for i, c in enumerate(order) if any(map(self._is_result, state.outputs_of(c))))
        self._least_us = least_us(model, device)
        self.work = 0.0
        """Work done by the search; examining a kernel of few nodes counts 1."""
        self._shapes: dict[tuple[int, int], Shape | None] = {}
        self.known_us: dict[tuple[int, int], float] = {}
        """Memoised results of `latency_us`, by mask and stored atoms."""
        self._gains: dict[int, float] = {}
        self._moved: dict[int, int] = {}
        self._reach: dict[int, int] = {}
        self._connected: dict[int, bool] = {}

    # -- legality ------------------------------------------------------------------------------------------------

    def is_convex(self, mask: int) -> bool:
        """Return whether no path leaves `mask` and comes back."""
        above = below = 0
        for i in bits(mask):
            above |= self.ancestors[i]
            below |= self.descendants[i]
        return not above & below & ~mask

    def is_connected(self, mask: int) -> bool:
        if mask not in self._connected:
            self._connected[mask] = self._find_connected(mask)
        return self._connected[mask]

    def _find_connected(self, mask: int) -> bool:
        reached = frontier = mask & -mask
        while frontier:
            near = 0
            for i in bits(frontier):
                near |= self.before[i] | self.after[i]
            frontier = near & mask & ~reached
            reached |= frontier
        return reached == mask

    def border(self, mask: int) -> int:
        """Return the atoms of `mask` that others read, or that are results of the graph."""
        return self.results & mask | mask_of(i for i in bits(mask) if self.after[i] & ~mask)

    def is_pattern(self, mask: int) -> bool:
        """Return whether the atoms of `mask` (connected) may be one kernel, while no other computes them."""
        return self.is_convex(mask) and self.shape(mask, self.border(mask)) is not None

    def is_kernel(self, mask: int, stored: int) -> bool:
        """Return whether one kernel may compute `mask` and store `stored`, while others compute some of these atoms,
        too.
        """
        return self.shape(mask, stored) is not None and self.is_connected(mask)

    def shape(self, mask: int, stored: int) -> Shape | None:
        """Return the kernel that computes `mask` and stores `stored`; None if there can be none."""
        key = mask, stored
        if key not in self._shapes:
            self._shapes[key] = self._find_shape(mask, stored)
        return self._shapes[key]

    def _find_shape(self, mask: int, stored: int) -> Shape | None:
        if mask & ~self.native:
            self.work += 1
            return None
        state, clusters = self.state, [self.atoms[i] for i in bits(mask)]
        members = {n for c in clusters for n in c.members}
        self.work += 1 + len(members) // NODES_OF_WORK
        several = len(clusters) > 1
        if several and len(members) > MOST_NODES:
            return None
        nodes = state.in_order(members)
        owned = {n for c in clusters for n in c.owned}
        values = state.stored({n for i in bits(stored) for n in self.atoms[i].owned}, owned)
        roles = roles_of(nodes, values, are_native=True)
        if isinstance(roles, WhyNot) or why_not_on(state.target, roles, "") is not None:
            return None
        if several:
            if sum(map(len, operands(nodes))) + len(values) > MOST_OPERANDS:
                return None
            if any(rule.forbid(state, nodes) is not None for rule in state.rules):
                return None
            if _computes_again(nodes, values, roles):
                return None
        return Shape(tuple(nodes), tuple(values), roles)

    def _is_injective(self, atom: Cluster) -> bool:
        roles = self.state.roles(atom)
        return isinstance(roles, Roles) and roles.kind is GroupKind.INJECTIVE

    def _is_result(self, value: Value) -> bool:
        return self.state.graph.is_output(value)

    def is_acyclic(self, masks: Sequence[int], newest: int) -> bool:
        """Return whether kernels `masks` and `newest` (disjoint, each convex) can be ordered, given that `masks`
        can.
        """
        reached = self._below(newest) & ~newest
        waiting = list(masks)
        while not reached & newest:
            hit = [m for m in waiting if m & reached]
            if not hit:
                return True
            waiting = [m for m in waiting if not m & reached]
            for m in hit:
                reached |= self._below(m)
        return False

    def _below(self, mask: int) -> int:
        if mask not in self._reach:
            found = 0
            for i in bits(mask):
                found |= self.descendants[i]
            self._reach[mask] = found
        return self._reach[mask]

    # -- cost ----------------------------------------------------------------------------------------------------

    def latency_us(self, mask: int, stored: int | None = None) -> float:
        """Return the full estimate of a pattern, a kernel, or an atom alone; 0 for one that needs no kernel."""
        key = mask, self.border(mask) if stored is None else stored
        if key not in self.known_us:
            self.known_us[key] = self._find_latency(*key)
        return self.known_us[key]

    def at_least_us(self, mask: int, stored: int) -> float:
        """Return a lower bound of `latency_us`: itself if known, else the least time of any kernel."""
        known = self.known_us.get((mask, stored))
        if known is None:
            return 0.0 if self._needs_no_kernel(mask) else self._least_us
        return known

    def _needs_no_kernel(self, mask: int) -> bool:
        return not mask & (mask - 1) and (not mask & self.native or self._is_alias(mask))

    def _find_latency(self, mask: int, stored: int) -> float:
        if self._needs_no_kernel(mask):
            return 0.0
        return latency_us(self.model, self.facts(mask, stored), self.device)

    def facts(self, mask: int, stored: int) -> KernelFacts:
        """Return the facts of a kernel."""
        shape = self.shape(mask, stored)
        if shape is None:
            raise ValueError(f"the atoms {list(bits(mask))} are no kernel; ask is_kernel first")
        return facts_of(shape.nodes, shape.stored, shape.roles, self.state.target, self.model)

    def _is_alias(self, mask: int) -> bool:
        """Return whether an atom is a reshape between kernels, which is free: its readers read its operand."""
        members = self.atoms[mask.bit_length() - 1].members
        node = next(iter(members))
        if len(members) > 1 or node.op != "reshape" or self.state.graph.is_output(node.output):
            return False
        return not node.inputs[0].is_constant

    def total_us(self, patterns: Iterable[int]) -> float:
        """Return the full estimate of a partition; atoms in no pattern are alone."""
        total, covered = 0.0, 0
        for mask in sorted(patterns):
            total += self.latency_us(mask)
            covered |= mask
        return total + sum(self.latency_us(1 << i) for i in bits(self.everything & ~covered))

    def gain(self, mask: int) -> float:
        """Return the quick score, by which the search ranks patterns first; the latency model decides."""
        if mask not in self._gains:
            self._gains[mask] = self._find_gain(mask)
        return self._gains[mask]

    def _find_gain(self, mask: int) -> float:
        shape = self.shape(mask, self.border(mask))
        assert shape is not None
        alone = [1 << i for i in bits(mask) if not self._is_alias(1 << i)]
        saved = sum(map(self._bytes_moved, alone)) - self._bytes_moved(mask)
        again = recomputation(self.state, shape.nodes, shape.stored, shape.roles)
        return most_bytes_gained(saved, len(alone) - 1, again, self.device)

    def _bytes_moved(self, mask: int) -> int:
        if mask not in self._moved:
            shape = self.shape(mask, self.border(mask))
            assert shape is not None
            inputs, constants = operands(shape.nodes)
            self._moved[mask] = bytes_of((*inputs, *constants, *shape.stored))
        return self._moved[mask]

    def neighbours(self, mask: int) -> int:
        """Return native atoms outside `mask` that are adjacent to it."""
        near = 0
        for i in bits(mask):
            near |= self.before[i] | self.after[i]
        return near & self.native & ~mask

    def masks_of(self, kernels: Iterable[Iterable[Node]]) -> list[int]:
        """Return the nodes of each kernel as masks over these atoms; single atoms are left out."""
        home = {n: i for i, c in enumerate(self.atoms) for n in c.owned}
        masks = [mask_of(home[n] for n in nodes if n in home) for nodes in kernels]
        return [m for m in masks if m & (m - 1)]


def _computes_again(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles) -> bool:
    """Whether a kernel computes a value more often than it pays to find out what that takes."""
    if sum(not is_elementwise(node.op) for node in nodes) <= DOUBLINGS:
        return False
    results = max(value.tensor_type.num_elements for value in stored)
    return max(evaluations(nodes, stored, roles).values(), default=0.0) > results * 2**DOUBLINGS


@dataclass(frozen=True)
class Budget:
    """`work`: limit for `space`. `ends_s`: deadline by `time.monotonic`; a search ended by time is not reproducible."""

    space: Space
    work: float = inf
    ends_s: float = inf

    @staticmethod
    def of(space: Space, work: int | None, seconds: float) -> Budget:
        """Return a budget. `work`: None for no limit."""
        return Budget(space, inf if work is None else work, time.monotonic() + seconds)

    @property
    def is_spent(self) -> bool:
        return self.space.work >= self.work or self.is_late

    @property
    def is_ample(self) -> bool:
        """Whether it suffices for `PATTERNS` times the work done so far."""
        return self.work - self.space.work >= PATTERNS * self.space.work and not self.is_late

    @property
    def is_late(self) -> bool:
        return self.ends_s < inf and time.monotonic() > self.ends_s
