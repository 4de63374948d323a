"""Element-wise functions of one 8-bit integer, with an 8-bit result, become tables of 256 entries.

Between quantised layers, x -> quantise(f(dequantise(x))) is such a function, for any f, and even with further
quantisation in between. The table holds its results for all 256 inputs.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value, is_elementwise
from tilestitch.compiler.ir.ops import reference
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.cost_model.counts import operations_per_element
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.passes.plan.cpu.isa import Isa

from .driver import emit_like, is_sized
from .quantised import BYTES

LEAST_OPERATIONS = 12
"""A function must have more operations than this: requantisation, with a clamp, is as fast as it is."""
OPERATIONS_OF_LOAD = 2.5
"""Operations on vectors that take as long as loading one entry, where no instruction looks up vectors."""
MOST_NODES = 200
"""Most nodes of one function."""


@dataclass(frozen=True)
class Tables:
    """Create tables on CPUs."""

    name: ClassVar[str] = "tables"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        if context.target.is_gpu:
            return PassResult(graph, False)
        least = _least_operations(context.target.core)
        graph.sort()
        places = {node: place for place, node in enumerate(graph.nodes)}
        count = 0
        for node in list(graph.nodes):
            if node.op != "cast" or node.output.dtype not in BYTES or not is_sized(node.output):
                continue
            function = _Function(node, places)
            if function.source is None or (function.operations <= least and not function.looks_up):
                continue
            table = function.table(function.source)
            made = emit_like(graph, node, "look_up", function.source, table=table, to=node.output.dtype)
            assert made.producer is not None
            places[made.producer] = places[node]
            graph.replace(node, [made])
            count += 1
        return PassResult.counted(graph, count, "functions of bytes are tables")


def _least_operations(core: Isa) -> float:
    if core.looks_up:
        return LEAST_OPERATIONS
    return max(LEAST_OPERATIONS, OPERATIONS_OF_LOAD * core.lanes("float32"))


@dataclass
class _Function:
    """The computation that ends at a node, as a function of one byte. source: None if it is none."""

    end: Node
    places: dict[Node, int]
    nodes: dict[Node, None] = field(default_factory=dict)
    source: Value | None = None

    def __post_init__(self) -> None:
        leaves = self._opened(self.end)
        while leaves is not None and (len(leaves) > 1 or any(v.dtype not in BYTES for v in leaves)):
            last = max(leaves, key=lambda v: -1 if v.producer is None else self.places.get(v.producer, -1))
            more = None if last.producer is None else self._opened(last.producer)
            leaves = None if more is None else (leaves - {last}) | more
        if leaves:
            (self.source,) = leaves

    def _opened(self, node: Node) -> set[Value] | None:
        """Return the non-constant operands of a node that is element-wise and whose other operands are scalars; else
        None.
        """
        if not is_elementwise(node.op) or len(node.outputs) != 1 or len(self.nodes) == MOST_NODES:
            return None
        if not is_sized(node.output) or node.output.tensor_type.shape != self.end.output.tensor_type.shape:
            return None
        varying = {v for v in node.inputs if v.data is None}
        if not varying or any(v.data.size != 1 for v in node.inputs if v.data is not None):
            return None
        self.nodes[node] = None
        return varying

    @property
    def operations(self) -> int:
        return sum(operations_per_element(node.op) for node in self.nodes)

    @property
    def looks_up(self) -> bool:
        """Whether a part of it is a table, which one for all of it replaces."""
        return any(node.op == "look_up" for node in self.nodes)

    def table(self, source: Value) -> str:
        """Return the entries as bytes in hexadecimal."""
        known = {source: np.arange(256, dtype=np.uint8).view(to_numpy_dtype(source.dtype))}
        for node in sorted(self.nodes, key=self.places.__getitem__):
            operands = [known[v] if v.data is None else v.data.reshape(()) for v in node.inputs]
            with np.errstate(all="ignore"):
                (known[node.output],) = reference(node.op)(operands, node.attrs)
        return np.ascontiguousarray(known[self.end.output]).view(np.uint8).tobytes().hex()
