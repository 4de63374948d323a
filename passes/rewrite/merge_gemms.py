"""Merging of GEMMs that share their left operand into one, whose column ranges are read (queries, keys and values)."""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilestitch.compiler.ir import Graph, Node, Value, is_elementwise
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.passes.plan.parts import MOST_GATES

from .driver import is_sized
from .siblings import NEUTRAL, Siblings, joined_constant, meeting, reads_in_place

Array = NDArray[Any]

_MADE: dict[Hashable, tuple[tuple[weakref.ref[Array], ...], weakref.ref[Array]]] = {}
"""Results by operation and identities of the operands. Weak references to the operands detect identities that are
reused; nothing is kept alive.
"""


def made_once(what: Hashable, operands: Sequence[Array], make: Callable[[], Array]) -> Array:
    """Return `make()`, read-only, or its earlier result for the same arrays, which must not be written to, if that is
    still alive.
    """
    key = what, tuple(map(id, operands))
    known = _MADE.get(key)
    found = None if known is None else known[1]()
    if known is not None and found is not None and all(a() is b for a, b in zip(known[0], operands, strict=True)):
        return found
    made = np.asarray(make())
    made.flags.writeable = False
    _MADE[key] = tuple(map(weakref.ref, operands)), weakref.ref(made, lambda gone: _forget(key, gone))
    return made


def _forget(key: Hashable, gone: weakref.ref[Array]) -> None:
    known = _MADE.get(key)
    if known is not None and known[1] is gone:
        del _MADE[key]


ALIGNMENT = 16
"""Bytes that GPU kernels copy at once: a column range begins at a multiple of them."""


@dataclass(frozen=True)
class MergeGemms:
    """Rewrite x @ V and x @ W with constant V and W to column ranges of x @ [V W], including the work that follows
    both.

    Element-wise work that follows all of them (biases, casts, an activation) is done once, before the ranges.
    Applied where no range is copied: where element-wise work recombines the ranges and is fused with the GEMM (fusion's
    rule `gates`), as in gated linear units; and on GPUs where GEMMs, or kernels after views, read the ranges in place,
    so that one launch replaces several. On CPUs these are one launch anyway.
    """

    name: ClassVar[str] = "merge_gemms"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        gpu = context.target.name != "cpu"
        chosen = _without_copies([lanes for gemms in _families(graph) for lanes in _chosen(graph, gemms, gpu)])
        for gemms in chosen:
            _merge(graph, Siblings.of(gemms, graph))
        note = f"{sum(map(len, chosen))} GEMMs became {len(chosen)}"
        return PassResult(graph, bool(chosen), (note,) if chosen else ())


def _families(graph: Graph) -> list[list[Node]]:
    """Return the families of GEMMs by constant matrices that could be merged, in order."""
    families: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node.op != "matmul" or not is_sized(node.output):
            continue
        weight = node.inputs[1]
        if weight.data is None or weight.data.ndim != 2 or not weight.data.size or node.inputs[0].is_constant:
            continue
        attrs = sorted((k, v) for k, v in node.attrs.items() if k != "trans_b")
        key = node.inputs[0], weight.dtype, repr(attrs)
        families.setdefault(key, []).append(node)
    return [gemms for gemms in families.values() if len(gemms) > 1]


def _chosen(graph: Graph, gemms: list[Node], gpu: bool) -> list[list[Node]]:
    """Return the sets of `gemms` to merge."""
    gates = _brought_together(graph, gemms)
    if not gpu:
        return gates
    gates = [lanes for lanes in gates if len(lanes) <= MOST_GATES]
    return gates + _read_in_place(graph, [n for n in gemms if not any(n in lanes for lanes in gates)])


def _read_in_place(graph: Graph, gemms: list[Node]) -> list[list[Node]]:
    """Return those of `gemms` whose ranges need no copy."""
    while len(gemms) > 1:
        siblings = Siblings.of(gemms, graph)
        kept = [n for lane, n in enumerate(gemms) if _is_aligned(n) and _is_read_in_place(graph, siblings, lane)]
        if len(kept) == len(gemms):
            return [gemms]
        gemms = kept
    return []


def _is_aligned(node: Node) -> bool:
    return node.output.shape[-1] * storage_bytes(node.output.dtype) % ALIGNMENT == 0


def _is_read_in_place(graph: Graph, siblings: Siblings, lane: int) -> bool:
    if any(graph.is_output(v) for v in siblings.lanes[lane]):
        return False
    return all(reads_in_place(reader, graph) for _, reader in siblings.border(lane))


def _brought_together(graph: Graph, gemms: list[Node]) -> list[list[Node]]:
    """Return the sets of `gemms` that element-wise work of their own shape recombines."""
    by_shape: dict[tuple[int, ...], list[Node]] = {}
    for node in gemms:
        by_shape.setdefault(node.output.shape, []).append(node)
    found = []
    for shape, lanes in by_shape.items():
        for numbers in meeting([n.output.users for n in lanes], shape):
            together = [lanes[number] for number in sorted(numbers)]
            if len(together) > 1 and _only_element_wise(graph, together):
                found.append(together)
    return found


def _only_element_wise(graph: Graph, gemms: Sequence[Node]) -> bool:
    siblings = Siblings.of(gemms, graph)
    for lane in range(len(gemms)):
        if any(graph.is_output(v) for v in siblings.lanes[lane]):
            return False
        shape = gemms[lane].output.shape
        if not all(is_elementwise(r.op) and r.output.shape == shape for _, r in siblings.border(lane)):
            return False
    return True


def _without_copies(chosen: list[list[Node]]) -> list[list[Node]]:
    """Return the sets without GEMMs whose matrices have other readers: they would be in memory twice.

    The same matrices may be merged in several places (layers that share them), which yields one constant again.
    """
    counts = Counter(tuple(id(n.inputs[1]) for n in gemms) for gemms in chosen)
    return [
        gemms for gemms in chosen
        if all(len(n.inputs[1].uses) == counts[tuple(id(m.inputs[1]) for m in gemms)] for n in gemms)
    ]  # fmt: skip


# -- merging -----------------------------------------------------------------------------------------------------------


def _merge(graph: Graph, siblings: Siblings) -> None:
    first = siblings.gemms[0]
    widths = [n.output.shape[-1] for n in siblings.gemms]
    values = [_gemm(graph, siblings.gemms)]
    for step in siblings.steps:
        sample = step.sample
        operands = [
            values[row] if row is not None else _constant(graph, step.nodes, position, widths)
            for position, row in enumerate(step.rows)
        ]
        origins = [o for n in step.nodes if n is not None for o in n.origins]
        values.append(graph.emit(sample.op, *operands, origins=origins, insert_before=first, **sample.attrs))
    taken, starts = siblings.taken, [0, *accumulate(widths)]
    for lane, known in enumerate(siblings.lanes):
        for value, row in known.items():
            if any(u not in taken for u in value.users) or graph.is_output(value):
                graph.replace_uses(value, _range(graph, values[row], starts[lane], widths[lane], value, first), taken)
    for node in sorted(taken, key={n: -i for i, n in enumerate(graph.nodes)}.__getitem__):
        graph.remove(node)
    for node in siblings.gemms:
        graph.remove(node)


def _gemm(graph: Graph, gemms: Sequence[Node]) -> Value:
    first = gemms[0]
    matrices = [n.inputs[1].data for n in gemms if n.inputs[1].data is not None]
    turned = tuple(bool(n.attrs.get("trans_b")) for n in gemms)
    joined = made_once(("columns", turned), matrices, lambda: _columns(matrices, turned))
    weight = graph.constant(joined, name=first.inputs[1].name)
    origins = [o for n in gemms for o in n.origins]
    return graph.emit("matmul", first.inputs[0], weight, origins=origins, insert_before=first, **first.attrs)


def _columns(matrices: Sequence[np.ndarray], turned: Sequence[bool]) -> np.ndarray:
    """Return one matrix with the columns of all, transposing those that are `turned`; it has the orientation of the
    first.
    """
    upright = [m.T if t else m for m, t in zip(matrices, turned, strict=True)]
    return np.concatenate([m.T for m in upright]) if turned[0] else np.concatenate(upright, axis=1)


def _constant(graph: Graph, nodes: Sequence[Node | None], position: int, widths: Sequence[int]) -> Value:
    sample = next(n for n in nodes if n is not None)
    operands = [None if n is None else n.inputs[position] for n in nodes]
    data = joined_constant(operands, widths, NEUTRAL.get(sample.op, 0.0))
    return graph.constant(data, name=sample.inputs[position].name)


def _range(graph: Graph, whole: Value, start: int, width: int, old: Value, before: Node) -> Value:
    """Return the columns of `whole` that are `old`."""
    rank = len(whole.shape)
    assert old.producer is not None
    return graph.emit(
        "slice", whole, origins=old.producer.origins, insert_before=before,
        starts=(*(0,) * (rank - 1), start), steps=(1,) * rank, sizes=(*whole.shape[:-1], width),
    )  # fmt: skip
