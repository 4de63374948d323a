"""The rule that fuses attention to one kernel, which stores only the result, neither scores nor weights.

The latency model decides whether it pays, by comparing it with the three separate kernels.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of, op_spec
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.counts import bytes_of
from tilestitch.cost_model.protocol import LatencyModel, hardly_slower, latency_us
from tilestitch.passes.fusion import legality
from tilestitch.passes.fusion.clusters import Fusion, Union
from tilestitch.passes.fusion.cost.profit import facts_of
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.plan import WhyNot
from tilestitch.passes.plan.attention.bounds import bounds_of
from tilestitch.passes.plan.parts import Part, Roles
from tilestitch.passes.plan.roles import is_native, roles_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.device import device_of

MOST_BETWEEN = 48
"""Most nodes between the two GEMMs, and before each mask, that are examined."""


LEAST_SPREAD = 8
"""How many times as many elements a mask has as the values that it is computed from."""
LEAST_QUERIES = 2
"""On CPUs, least number of queries per head for which one kernel was measured to be as fast as three."""


@dataclass(frozen=True)
class Attention:
    """Proposes every pair of GEMMs with a softmax in between, with the masks and scales that nothing else reads.

    `model`: predicts whether one kernel is faster.
    """

    model: LatencyModel = ANALYTICAL
    name: ClassVar[str] = "attention"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for anchor in state.nodes:
            if anchor.op != "matmul" or not is_native(anchor):
                continue
            gemms = _gemms_before(anchor)
            before = _before(anchor) if gemms else {}
            for first in gemms:
                inner = _between(first, before)
                if not any(n.op == "exp" for n in inner):
                    continue
                refusal = self._refusal(state, first, inner, anchor)
                if refusal is not None:
                    state.remarks.append(refusal)
                    continue
                nodes = [first, *inner, anchor]
                nodes += _scales(state, first, nodes)
                nodes += self._inside(state, nodes, _own_masks(state, nodes))
                nodes = state.in_order(set(nodes))
                yield Fuse(tuple(nodes), self._copied_masks(state, nodes), forced=True)
                break

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

    def _refusal(self, state: Fusion, first: Node, inner: Sequence[Node], anchor: Node) -> WhyNot | None:
        subject = f"{first.name} -> {anchor.name}"
        nodes = state.in_order({first, *inner, anchor})
        clusters = list(dict.fromkeys(state.cluster_of(n) for n in nodes))
        refusal = legality.why_not(state, clusters, (), subject)
        if refusal is not None:
            return refusal
        union = state.union(clusters, set())  # another rule may have fused a node with its reader
        assert isinstance(union.roles, Roles), union.roles
        return self._profit(state, union, union.roles, subject)

    def _inside(self, state: Fusion, nodes: Sequence[Node], masks: Sequence[Node]) -> Sequence[Node]:
        """Return `masks` if evaluating them for every head is predicted to be faster than storing them; else none."""
        ordered = state.in_order(masks)
        border = [o for n in ordered for o in n.outputs if any(u not in masks for u in o.users)]
        alone = roles_of(ordered, border)
        if not masks or not isinstance(alone, Roles):
            return masks
        stored_us = latency_us(
            self.model, facts_of(ordered, border, alone, state.target, self.model), device_of(state.target)
        )  # fmt: skip
        return masks if self._us(state, [*nodes, *masks]) <= self._us(state, nodes) + stored_us else ()

    def _pays(self, state: Fusion, nodes: Sequence[Node], before: Iterable[Node], after: Iterable[Node]) -> bool:
        """Return whether to compute masks in a kernel: on GPUs wherever it then leaves out more keys."""
        if state.target.is_gpu:
            known, found = (len(bounds_of(_roles(state, nodes, copies))) for copies in (before, after))
            if found > known:
                return True
        return self._us(state, nodes, after) <= self._us(state, nodes, before)

    def _us(self, state: Fusion, nodes: Iterable[Node], copies: Iterable[Node] = ()) -> float:
        """Return the time of one kernel, which computes `copies` for itself only."""
        roles = _roles(state, nodes, copies)
        stored = state.stored(nodes, set(nodes))
        facts = facts_of(tuple(roles.parts), stored, roles, state.target, self.model)
        return latency_us(self.model, facts, device_of(state.target))

    def _copied_masks(self, state: Fusion, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return masks by position, which are computed again wherever they are needed: those that depend on constants
        only, and those that others read, too, if that is predicted to be no slower than reading them.
        """
        members, copies = set(nodes), dict[Node, None]()
        read = [value for node in nodes if node.op != "matmul" for value in node.inputs]
        for value in read:
            copies.update(_static_tree(value, members))
        for value in read:
            tree = {} if value.producer in copies else _mask_tree(value, members)
            if tree and self._pays(state, nodes, copies, {**copies, **tree}):
                copies.update(tree)
        return tuple(copies)

    def _profit(self, state: Fusion, union: Union, roles: Roles, subject: str) -> WhyNot | None:
        """Refuse fusion that is predicted to be slower than three kernels; if hardly slower, one kernel still saves
        launches.
        """
        device, target = device_of(state.target), state.target
        assert roles.softmax is not None
        if target.name == "cpu" and roles.softmax.queries < LEAST_QUERIES:
            few = {"queries": roles.softmax.queries, "least": LEAST_QUERIES}
            return WhyNot(subject, "attention.profit", "keys would be packed for the work of few queries", few)
        facts = facts_of(union.nodes, union.stored, roles, target, self.model)
        together = latency_us(self.model, facts, device)
        apart = sum(self._apart_us(target, nodes, stored) for nodes, stored in _apart(roles))
        if hardly_slower(together, apart):
            return None
        numbers = {"together_us": round(together, 3), "apart_us": round(apart, 3), "scores_bytes": _scores_bytes(roles)}
        return WhyNot(subject, "attention.profit", "three kernels are predicted to be faster than one", numbers)

    def _apart_us(self, target: TargetInfo, nodes: Sequence[Node], stored: Sequence[Value]) -> float:
        """Return the time of nodes outside of attention: as one kernel, or one by one where no such kernel is legal."""
        roles = roles_of(nodes, stored)
        if isinstance(roles, Roles):
            return latency_us(self.model, facts_of(nodes, stored, roles, target, self.model), device_of(target))
        launched = [node for node in nodes if node.op != "reshape"]
        return sum(self._apart_us(target, [node], node.outputs) for node in launched) if len(nodes) > 1 else 0.0


def _roles(state: Fusion, nodes: Iterable[Node], copies: Iterable[Node]) -> Roles:
    members = {*nodes, *copies}
    roles = roles_of(state.in_order(members), state.stored(nodes, set(nodes)))
    assert isinstance(roles, Roles), roles
    return roles


def _scores_bytes(roles: Roles) -> int:
    """Return the bytes of scores and weights that three kernels would store."""
    assert roles.softmax is not None
    return bytes_of((roles.softmax.scores, roles.softmax.weights))


def _apart(roles: Roles) -> Iterator[tuple[list[Node], list[Value]]]:
    """Yield the kernels without this fusion: their nodes and what they store."""
    assert roles.softmax is not None and roles.anchor is not None
    before = [n for n, part in roles.parts.items() if part in (Part.SCORES, Part.SCORED)]
    yield before, [roles.softmax.scores]
    rows = [n for n, part in roles.parts.items() if part in (Part.SOFTMAX, Part.WEIGHED)]
    yield rows, [roles.anchor.inputs[0]]
    yield [roles.anchor], [roles.anchor.output]


# -- looking for it ----------------------------------------------------------------------------------------------------


def _gemms_before(anchor: Node) -> list[Node]:
    """Return the GEMMs on which the first operand of a GEMM depends without another GEMM in between; nearest first."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    queue = [anchor.inputs[0].producer]
    while queue and len(seen) < MOST_BETWEEN:
        node = queue.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        if kind_of(node.op) is Kind.CONTRACTION:
            found[node] = None
        elif is_native(node) and kind_of(node.op) is not Kind.OPAQUE:
            queue.extend(v.producer for v in node.inputs)
    return [n for n in found if n.op == "matmul" and is_native(n)]


def _before(anchor: Node) -> dict[Node, None]:
    """Return nodes near `anchor` on which its first operand depends."""
    before: dict[Node, None] = {}
    stack = [anchor.inputs[0].producer]
    while stack and len(before) < 4 * MOST_BETWEEN:
        node = stack.pop()
        if node is not None and node not in before:
            before[node] = None
            stack.extend(v.producer for v in node.inputs if kind_of(node.op) is not Kind.CONTRACTION)
    return before


def _between(first: Node, before: Mapping[Node, None]) -> list[Node]:
    """Return the nodes of `before` that depend on `first`."""
    found: dict[Node, None] = {}
    stack = [first]
    while stack:
        for user in (u for out in stack.pop().outputs for u in out.users):
            if user in before and user not in found:
                found[user] = None
                stack.append(user)
    return list(found)


def _scales(state: Fusion, first: Node, nodes: Sequence[Node]) -> list[Node]:
    """Return cheap element-wise scalings by constants of the queries, which only this GEMM reads."""
    found = []
    value = first.inputs[0]
    while value.producer is not None and len(value.uses) == 1 and not state.graph.is_output(value):
        node = value.producer
        varying = [v for v in node.inputs if not v.is_constant]
        alone = len(state.cluster_of(node).owned) == 1 and is_native(node) and is_elementwise(node.op)
        if not alone or len(varying) != 1 or varying[0].shape != value.shape or op_spec(node.op).expensive:
            break
        found.append(node)
        value = varying[0]
    return found


def _own_masks(state: Fusion, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that compute masks and have no other readers, to be evaluated where a score is masked."""
    members = dict.fromkeys(nodes)
    added: list[Node] = []
    queue = [v for n in nodes if n.op != "matmul" for v in n.inputs]
    while queue and len(added) < MOST_BETWEEN:
        value = queue.pop()
        node = value.producer
        if node is None or node in members or not _is_cheap(node) or state.graph.is_output(value):
            continue
        if any(u not in members or u.op == "matmul" for u in value.users) or len(state.cluster_of(node).owned) > 1:
            continue
        members[node] = None
        added.append(node)
        queue.extend(node.inputs)
    return added


def _is_cheap(node: Node) -> bool:
    if not is_native(node) or op_spec(node.op).expensive:
        return False
    return kind_of(node.op) is Kind.VIEW or is_elementwise(node.op) or node.op == "iota"


def _mask_tree(value: Value, members: Container[Node]) -> dict[Node, None]:
    """Return the cheap nodes that compute a mask from positions and from values with far fewer elements, such as the
    lengths of sequences; none if something else is needed.
    """
    looked: dict[Value, bool | None] = {}

    def look(read: Value) -> bool | None:
        """Return whether a value depends on positions, and so is computed; None for a large one that is not."""
        if read not in looked:
            looked[read] = False if LEAST_SPREAD * _size(read) <= _size(value) else None
            if len(looked) <= MOST_BETWEEN and _is_computed(read):
                looked[read] = True
        return looked[read]

    def _is_computed(read: Value) -> bool:
        node = read.producer
        if node is None:
            return read.is_constant and _size(read) > 1
        if node in members or not _is_cheap(node):
            return False
        parts = [look(operand) for operand in node.inputs]
        return node.op == "iota" or (None not in parts and any(parts))

    found: dict[Node, None] = {}
    stack = [value]
    while stack:
        read = stack.pop()
        if look(read) and read.producer is not None and read.producer not in found:
            found[read.producer] = None
            stack.extend(read.producer.inputs)
    return found


def _size(value: Value) -> int:
    return value.tensor_type.num_elements


def _static_tree(value: Value, members: Container[Node]) -> dict[Node, None]:
    """Return the nodes that compute a value from constants alone; none if something varies, or is expensive."""
    found: dict[Node, None] = {}
    stack = [value]
    while stack:
        node = stack.pop().producer
        if node is None or node in found:
            continue
        if node in members or not _is_cheap(node) or len(found) >= MOST_BETWEEN:
            return {}
        if not node.inputs and node.op != "iota":
            return {}
        found[node] = None
        if any(v.producer is None and not v.is_constant for v in node.inputs):
            return {}
        stack.extend(node.inputs)
    return found
