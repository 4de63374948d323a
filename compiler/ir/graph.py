"""The graph: nodes in topological order, with def-use chains that the graph maintains."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .claims import Claim
from .errors import IRError
from .printing import print_graph
from .sizes import Symbol
from .types import TensorType, Type, from_numpy_dtype
from .values import Node, Value

__all__ = ["Graph", "Node", "Value"]


class Graph:
    """A list of nodes in topological order. Mutate it only through its methods, which maintain the def-use chains."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.symbols: tuple[Symbol, ...] = ()
        """Symbols of open dimensions, including those of nested graphs."""
        self.claims: tuple[Claim, ...] = ()
        """Conditions on the symbols that runs must satisfy."""
        self._outputs: list[Value] = []
        self._output_places: dict[Value, list[int]] = {}
        self._nodes = NodeList()
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self._outputs)

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        self._outputs = list(values)
        self._output_places = {}
        for place, value in enumerate(self._outputs):
            self._output_places.setdefault(value, []).append(place)

    # -- building ------------------------------------------------------------------------------------------

    def fresh_name(self, hint: str) -> str:
        """Return a name that no value or node of this graph has, `hint` itself if it is free."""
        hint = hint or "v"
        name = hint
        count = self._counters.get(hint, 0)
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._counters[hint] = count
        self._names.add(name)
        return name

    def add_input(self, name: str, type_: Type) -> Value:
        value = Value(self.fresh_name(name), type_)
        self.inputs.append(value)
        return value

    def constant(self, data: Any, dtype: str | None = None, name: str = "c") -> Value:
        """Return a constant value; `data` is anything numpy accepts. The array is frozen (read-only)."""
        from .types import to_numpy_dtype

        array = np.asarray(data, dtype=to_numpy_dtype(dtype) if dtype else None)
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        return Value(self.fresh_name(name), TensorType(from_numpy_dtype(array.dtype), array.shape), array)

    def add(
        self,
        op: str,
        inputs: Sequence[Value],
        attrs: Mapping[str, Any] | None = None,
        *,
        origins: Iterable[str] = (),
        types: Sequence[Type] | None = None,
        name: str | None = None,
        insert_before: Node | None = None,
        output_names: Sequence[str] | None = None,
    ) -> Node:
        """Add a node at the end, or before `insert_before`.

        Output types come from the operator's type rule; host and control operators (`types` given) state theirs.
        Raises TypeRuleError if the operands do not fit the operator.
        """
        from .ops import infer_types

        attrs = dict(attrs or {})
        out_types = infer_types(op, [v.type for v in inputs], attrs, types)
        node_name = self.fresh_name(name or op.split(".")[-1])
        if output_names is None:
            output_names = [node_name] if len(out_types) == 1 else [f"{node_name}.{i}" for i in range(len(out_types))]
        outputs = [
            Value(n if n == node_name else self.fresh_name(n), t) for n, t in zip(output_names, out_types, strict=True)
        ]
        node = Node(op, inputs, outputs, attrs, node_name, origins)
        for i, out in enumerate(outputs):
            out.producer, out.index = node, i
        for i, value in enumerate(node.inputs):
            value._uses[node, i] = None
        self._nodes.insert(node, insert_before)
        return node

    def emit(
        self, op: str, *inputs: Value, origins: Iterable[str] = (), insert_before: Node | None = None, **attrs: Any
    ) -> Value:
        """Add a node with one output and return that output."""
        return self.add(op, inputs, attrs, origins=origins, insert_before=insert_before).output

    def copy_nodes(self, nodes: Iterable[Node], others: Mapping[tuple[Node, Value], Value]) -> None:
        """Append copies of `nodes` of another graph, under the same names; operands in `others` are replaced.

        Other operands that the nodes read from outside are copied as values, without their producers.
        """
        new: dict[Value, Value] = {}
        for node in nodes:
            for value in node.inputs:
                new.setdefault(value, Value(value.name, value.type, value.data))
            inputs = [others.get((node, value), new[value]) for value in node.inputs]
            new.update(_copy_node(self, node, inputs))

    # -- changing ------------------------------------------------------------------------------------------

    def set_input(self, node: Node, index: int, value: Value) -> None:
        """Make `node` read `value` at operand position `index`."""
        old = node.inputs[index]
        del old._uses[node, index]
        node.inputs = (*node.inputs[:index], value, *node.inputs[index + 1 :])
        value._uses[node, index] = None

    def append_input(self, node: Node, value: Value) -> None:
        """Make `node` read `value` as an additional last operand."""
        value._uses[node, len(node.inputs)] = None
        node.inputs = (*node.inputs, value)

    def replace_uses(self, old: Value, new: Value, but: Container[Node] = ()) -> None:
        """Make every reader of `old` (graph outputs included), except the nodes `but`, read `new` instead."""
        if old is new:
            return
        for node, index in list(old.uses):
            if node not in but:
                self.set_input(node, index, new)
        places = self._output_places.pop(old, [])
        for place in places:
            self._outputs[place] = new
        if places:
            self._output_places.setdefault(new, []).extend(places)

    def remove(self, node: Node) -> None:
        """Remove a node without readers; IRError otherwise."""
        for out in node.outputs:
            if out.uses or out in self._output_places:
                raise IRError(f"cannot remove {node.name}: %{out.name} is still used")
        for i, value in enumerate(node.inputs):
            del value._uses[node, i]
        self._nodes.remove(node)
        self._names.discard(node.name)

    def replace(self, node: Node, values: Sequence[Value]) -> None:
        """Replace the node's outputs by `values` and remove it; their producers inherit its origins."""
        if len(values) != len(node.outputs):
            raise IRError(f"{node.name} has {len(node.outputs)} outputs but {len(values)} replacements")
        for old, new in zip(node.outputs, values, strict=True):
            if new.producer is not None and new.producer in self._nodes:
                new.producer.origins = tuple(dict.fromkeys((*new.producer.origins, *node.origins)))
            self.replace_uses(old, new)
        self.remove(node)

    def sort(self, rank: Callable[[Node], int] = lambda node: 0) -> None:
        """Sort the nodes topologically, by rank, and as close to the present order as dependences allow."""
        state: dict[Node, bool] = {}
        order: list[Node] = []
        for root in sorted(self._nodes, key=rank):
            stack: list[tuple[Node, Iterator[Value]]] = []
            if root not in state:
                state[root] = False
                stack.append((root, iter(root.inputs)))
            while stack:
                node, pending = stack[-1]
                for value in pending:
                    producer = value.producer
                    if producer is None or state.get(producer):
                        continue
                    if producer in state:
                        raise IRError(f"graph {self.name} has a cycle through {producer.name}")
                    state[producer] = False
                    stack.append((producer, iter(producer.inputs)))
                    break
                else:
                    state[node] = True
                    order.append(node)
                    stack.pop()
        self._nodes = NodeList(order)

    def clone(self) -> Graph:
        """Return a deep copy (constants share their arrays); nested graphs are cloned as well."""
        return _clone(self)

    # -- looking -------------------------------------------------------------------------------------------

    def values(self) -> Iterator[Value]:
        """Yield the inputs and the results of all nodes, in order."""
        yield from self.inputs
        for node in self.nodes:
            yield from node.outputs

    @property
    def constants(self) -> list[Value]:
        """Constants that nodes or outputs read, in order of first use."""
        seen: dict[Value, None] = {}
        for node in self._nodes:
            seen.update((v, None) for v in node.inputs if v.is_constant)
        seen.update((v, None) for v in self._outputs if v.is_constant)
        return list(seen)

    def node(self, name: str) -> Node:
        node = self._nodes.find(name)
        if node is None:
            raise IRError(f"graph {self.name} has no node {name!r}")
        return node

    def subgraphs(self) -> Iterator[Graph]:
        for node in self._nodes:
            yield from (a for a in node.attrs.values() if isinstance(a, Graph))

    def is_output(self, value: Value) -> bool:
        return value in self._output_places

    def __str__(self) -> str:
        return print_graph(self)


def _clone(graph: Graph) -> Graph:
    copy = Graph(graph.name)
    copy.symbols, copy.claims = graph.symbols, graph.claims
    copy._names, copy._counters = set(graph._names), dict(graph._counters)
    mapping: dict[Value, Value] = {}

    def mapped(value: Value) -> Value:
        if value not in mapping:
            if not value.is_constant:
                raise IRError(f"value %{value.name} is used before it is defined")
            mapping[value] = Value(value.name, value.type, value.data)
        return mapping[value]

    for value in graph.inputs:
        mapping[value] = Value(value.name, value.type)
        copy.inputs.append(mapping[value])
    for node in graph.nodes:
        mapping.update(_copy_node(copy, node, [mapped(v) for v in node.inputs]))
    copy.outputs = [mapped(v) for v in graph.outputs]
    return copy


def _copy_node(target: Graph, node: Node, inputs: Sequence[Value]) -> dict[Value, Value]:
    """Append a copy of `node` that reads `inputs` to `target`; returns its results by those of `node`."""
    outputs = [Value(v.name, v.type) for v in node.outputs]
    attrs = {k: _clone(a) if isinstance(a, Graph) else a for k, a in node.attrs.items()}
    twin = Node(node.op, inputs, outputs, attrs, node.name, node.origins)
    for i, out in enumerate(outputs):
        out.producer, out.index = twin, i
    for i, value in enumerate(twin.inputs):
        value._uses[twin, i] = None
    target._nodes.insert(twin)
    return dict(zip(node.outputs, outputs, strict=True))


class NodeList:
    """Distinct nodes in an order. None stands for both ends."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._next: dict[Node | None, Node | None] = {None: None}
        self._previous: dict[Node | None, Node | None] = {None: None}
        self._by_name: dict[str, Node] = {}
        for node in nodes:
            self.insert(node)

    def __len__(self) -> int:
        return len(self._next) - 1

    def __contains__(self, node: Node) -> bool:
        return node in self._next

    def __iter__(self) -> Iterator[Node]:
        node = self._next[None]
        while node is not None:
            yield node
            node = self._next[node]

    def insert(self, node: Node, before: Node | None = None) -> None:
        """Insert `node`, which is not in the list yet, before `before`, or at the end."""
        previous = self._previous[before]
        self._next[previous], self._next[node] = node, before
        self._previous[before], self._previous[node] = node, previous
        self._by_name[node.name] = node

    def remove(self, node: Node) -> None:
        following, previous = self._next.pop(node), self._previous.pop(node)
        self._next[previous], self._previous[following] = following, previous
        del self._by_name[node.name]

    def find(self, name: str) -> Node | None:
        return self._by_name.get(name)
