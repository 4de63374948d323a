"""Name resolution while ONNX nodes are converted: scopes nest with subgraphs and function bodies.

A scope emits into one graph. Looking up a name of an outer graph captures it: constants are copied, every other value
becomes an extra input of the inner graph, and the outer value is remembered so that the control node can pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto

from tilestitch.compiler.ir import Graph, Type, Value
from tilestitch.compiler.ir.claims import Claim, make, noting
from tilestitch.compiler.ir.symbol_uses import remove_dead, symbols_of_values

from .errors import ModelError
from .symbols import new_symbols, sized, symbols_so_far, told_by
from .tensors import to_array, to_dense

T = TypeVar("T")
FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""


def canonical_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def function_key(node: NodeProto) -> FunctionKey:
    return canonical_domain(node.domain), node.op_type, getattr(node, "overload", "")


PER_MATRIX = 32
"""Indices per matrix above which there are many."""


@dataclass(frozen=True)
class Choosing:
    """How the target's kernels multiply by those of constant matrices that indices choose. few: up to so many indices
    per matrix, one by one; few_floats: the same for floats, which GPUs copy first. rows, rows_of_halves: of the tiles
    of float32 and of half floats that more indices have; up to `PER_MATRIX` of them, and beyond.
    """

    few: int
    few_floats: float
    rows: tuple[int, int]
    rows_of_halves: tuple[int, int]

    @staticmethod
    def on(is_gpu: bool, precision: str) -> Choosing:
        """As the latency model of GPUs has it, whose tensor cores multiply 32 rows or more."""
        if not is_gpu:
            return Choosing(2, 2, (8, 8), (8, 8))
        return Choosing(4, 1 / 6, (8, 64) if precision == "fp32" else (32, 64), (32, 64))


@dataclass
class Module:
    """State shared by all scopes of one import. `convert_node` converts one node in a scope and binds its outputs
    there.
    """

    convert_node: Callable[[Scope, NodeProto, str], None]
    functions: Mapping[FunctionKey, FunctionProto]
    folder: Path | None
    """Folder of external data."""
    read: frozenset[str] = frozenset()
    """Names that anything in the model reads, whichever graph they are of."""
    main: Graph | None = None
    """The graph of the model, that of no control node's body."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Given shapes of the model's inputs."""
    counters: dict[str, int] = field(default_factory=dict)
    named: set[Value] = field(default_factory=set)
    """Values that have a name of the ONNX model."""
    choosing: Choosing | None = None
    """None: there are no such kernels."""
    donated: Sequence[str] = ()
    """Patterns of the names of inputs whose memory is written to."""
    made: dict[Hashable, tuple[tuple[object, ...], Any]] = field(default_factory=dict)
    """Results of `once`, with their operands, which are kept alive so that identities are not reused."""

    def once(self, what: Hashable, operands: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return `make()`, computed once for the same immutable operands, however often the model is converted."""
        key = what, tuple(map(id, operands))
        if key not in self.made:
            self.made[key] = operands, make()
        found: T = self.made[key][1]
        return found

    def array_of(self, tensor: TensorProto | SparseTensorProto) -> np.ndarray:
        """Return the array of an initialiser. Raises ModelError if it cannot be read."""

        def array() -> np.ndarray:
            read = to_dense if isinstance(tensor, SparseTensorProto) else to_array
            found = np.asarray(read(tensor, self.folder))  # not a memmap, from which each graph would make a new array
            found.flags.writeable = False
            return found

        return self.once("initialiser", (tensor,), array)

    def name_of(self, node: NodeProto) -> str:
        """Return the node's own name, or a generated `OpType_index`."""
        if node.name:
            return node.name
        index = self.counters.get(node.op_type, 0)
        self.counters[node.op_type] = index + 1
        return f"{node.op_type}_{index}"


class Scope:
    """Names of one ONNX graph or function body, bound to values of `graph`."""

    def __init__(
        self,
        module: Module,
        graph: Graph,
        opsets: Mapping[str, int],
        *,
        parent: Scope | None = None,
        path: tuple[str, ...] = (),
        origins: tuple[str, ...] = (),
    ) -> None:
        self.module = module
        self.graph = graph
        self.opsets = opsets
        self.parent = parent
        self.path = path
        """Names of the nodes that hold this subgraph or call this function, outermost first."""
        self.origins = origins
        """Non-empty inside function bodies, whose nodes stem from the call."""
        self.captures: dict[Value, Value] = {}
        """In a nested graph: outer value -> the extra input for it, in order, one per value whatever its number of
        names.
        """
        self._bound: dict[str, Value | None] = {}
        self._reserved: dict[str, str] = {}

    @property
    def is_nested(self) -> bool:
        """Whether its graph is the body of a control node."""
        return self.graph is not self.module.main

    # -- names ---------------------------------------------------------------------------------------------

    def bind(self, name: str, value: Value | None) -> None:
        """Bind `name` to `value`. ModelError if the name is taken: ONNX graphs are in SSA form."""
        if name in self._bound:
            raise ModelError(f"value {name!r} is defined twice; ONNX names must be unique in a graph")
        self._bound[name] = value
        self._adopt_name(name, value)

    def reserve(self, names: Iterable[str]) -> None:
        """Keep these ONNX names free in the graph, so that values get them when they are bound."""
        for name in names:
            if name and name not in self._reserved:
                self._reserved[name] = self.graph.fresh_name(name)

    def _adopt_name(self, name: str, value: Value | None) -> None:
        """Give a value the ONNX name it is bound to, unless it is an input or has an ONNX name already."""
        if value is None or name not in self._reserved or value in self.module.named:
            return
        if value.producer is not None or value.is_constant:
            value.name = self._reserved.pop(name)
            self.module.named.add(value)

    def lookup(self, name: str) -> Value | None:
        """Return the value of `name` in this graph, captured from an outer one if need be. ModelError if it is
        undefined.
        """
        if name in self._bound:
            return self._bound[name]
        if self.parent is None:
            raise ModelError(f"value {name!r} is used but defined nowhere before")
        outer = self.parent.lookup(name)
        if outer is None or self.parent.graph is self.graph:
            self._bound[name] = outer
            return outer
        if outer.data is not None:
            inner = Value(self.graph.fresh_name(name), outer.type, outer.data)
        elif outer in self.captures:
            inner = self.captures[outer]
        else:
            inner = self.captures[outer] = self.graph.add_input(name, outer.type)
        self._bound[name] = inner
        return inner

    def opset(self, domain: str) -> int | None:
        return self.opsets.get(canonical_domain(domain))

    # -- converting ----------------------------------------------------------------------------------------

    def convert_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Convert nodes (in topological order) and bind their outputs."""
        for node in nodes:
            self.module.convert_node(self, node, self.module.name_of(node))

    def load_constants(self, proto: GraphProto) -> None:
        """Bind the initialisers of an ONNX graph as constants. ModelError if an outer value has the name of one: ONNX
        does not say which is meant.
        """
        named = [(tensor.name, self.module.array_of(tensor)) for tensor in proto.initializer]
        named += [(sparse.values.name, self.module.array_of(sparse)) for sparse in proto.sparse_initializer]
        for name, array in named:
            value = self.graph.constant(array, name=name)
            outside = self._outside(name)
            if outside is not None and not (outside.data is not None and _are_equal(outside.data, array)):
                raise ModelError(
                    f"node {self.path[-1]!r}: initialiser {name!r} of its body has the name of another value outside "
                    "of it, and ONNX does not say which is meant; give one of them another name"
                )
            self.module.named.add(value)
            self.bind(name, value)

    def _outside(self, name: str) -> Value | None:
        """Return the outer binding of a name."""
        scope = self.parent
        while scope is not None and name not in scope._bound:
            scope = scope.parent
        return None if scope is None else scope._bound[name]

    def nested(self, graph: Graph, node_name: str) -> Scope:
        """Return a scope for a subgraph of a node here; `graph` is this scope's graph when the body is inlined."""
        return Scope(self.module, graph, self.opsets, parent=self, path=(*self.path, node_name), origins=self.origins)

    def convert_subgraph(
        self, proto: GraphProto, input_types: Iterable[Type], node_name: str
    ) -> tuple[Graph, list[Value]]:
        """Convert a body of If, Loop, Scan or SequenceMap to a graph of its own.

        `input_types` are the types of the formal inputs, in order. Returns the graph, whose inputs are the formal ones
        followed by one for each captured outer value, and the captured values of this scope's graph in that order. Its
        symbols are those that occur only in it, its claims the conditions for running it.
        """
        graph = Graph(proto.name or node_name)
        outer = symbols_so_far()
        scope = self.nested(graph, node_name)
        types = list(input_types)
        if len(types) != len(proto.input):
            raise ModelError(
                f"the body {proto.name!r} of node {node_name!r} takes {len(proto.input)} inputs, but gets {len(types)}"
            )
        claims: dict[Claim, None] = {}
        with noting(claims.setdefault):
            for formal, type_ in zip(proto.input, types, strict=True):
                scope.bind(formal.name, graph.add_input(formal.name, sized(type_, formal.name)))
            graph.outputs = scope.body(proto)
        remove_dead(graph)
        graph.symbols, graph.claims = new_symbols(outer), tuple(claims)
        found = set(graph.symbols) - symbols_of_values(graph.inputs)
        for claim in claims:
            if told_by(claim) in found:  # converted anew, the body checks it where the size is found
                make(claim)
        return graph, list(scope.captures)

    def inline_subgraph(self, proto: GraphProto, inputs: Iterable[Value], node_name: str) -> list[Value]:
        """Convert a body directly into this scope's graph, with `inputs` for its formal inputs; returns its outputs."""
        scope = self.nested(self.graph, node_name)
        values = list(inputs)
        if len(values) != len(proto.input):
            raise ModelError(
                f"the body {proto.name!r} of node {node_name!r} takes {len(proto.input)} inputs, but gets {len(values)}"
            )
        for formal, value in zip(proto.input, values, strict=True):
            scope.bind(formal.name, value)
        return scope.body(proto)

    def body(self, proto: GraphProto) -> list[Value]:
        """Convert the nodes of `proto`, whose inputs are bound already, and return its outputs."""
        self.reserve(o for node in proto.node for o in node.output)
        self.load_constants(proto)
        self.convert_nodes(proto.node)
        outputs = []
        for output in proto.output:
            value = self.lookup(output.name)
            if value is None:
                raise ModelError(f"output {output.name!r} of graph {proto.name!r} is an omitted optional value")
            outputs.append(value)
        return outputs


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()
