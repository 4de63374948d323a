"""Slabs: the parts of several consecutive kernels that one thread block computes alone.

Axes are identified across kernels: an element-wise node has those of its operands, a reduction those that it keeps. An
axis along which no kernel reduces or moves anything can be sliced: a slab is one position along each sliced axis, and
is independent of other slabs. So kernels of different parallelism, which share only some axes, become one launch with a
slab per block.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from tilestitch.compiler.ir import Graph, Kind, Node, Value, is_elementwise, kind_of
from tilestitch.compiler.ir.types import TensorType

from .roles import reduced_axes
from .view import GroupView

Axis: TypeAlias = tuple[Value, int]


class Axes:
    """The identification of axes between values of some nodes, and which of them can be sliced."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._parent: dict[Axis, Axis] = {}
        self._fixed: set[Axis] = set()
        self._values = list(dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs)))
        for node in nodes:
            self._relate(node)
        self._fixed.update(self._repeated())
        self._fixed = {self._root(axis) for axis in self._fixed}

    def of(self, value: Value) -> dict[Axis, int]:
        """Return a value's axes that can be sliced: a representative of each, and its number."""
        found = {self._root((value, i)): i for i, size in enumerate(value.shape) if size > 1}
        return {axis: number for axis, number in found.items() if axis not in self._fixed}

    def common(self, values: Iterable[Value]) -> list[Axis]:
        """Return the sliceable axes that all of `values` have, in the order of the first value's axes."""
        first, *rest = values
        others = [self.of(value) for value in rest]
        return [axis for axis in self.of(first) if all(axis in other for other in others)]

    def _relate(self, node: Node) -> None:
        if is_elementwise(node.op) or node.op == "broadcast_to":
            for value in node.inputs:
                skipped = len(node.output.shape) - len(value.shape)
                self._same(value, node.output, [(i, i + skipped) for i in range(len(value.shape))], fix=False)
        elif kind_of(node.op) is Kind.REDUCTION:
            self._reduced(node)
        elif node.op == "transpose":
            self._same(node.inputs[0], node.output, [(p, i) for i, p in enumerate(node.attrs["perm"])])
        elif node.op == "reshape":
            self._same(node.inputs[0], node.output, _kept_by_reshape(node.inputs[0].shape, node.output.shape))
        elif node.op == "iota":
            self._fix(node.output, [node.attrs["axis"]])
        else:
            for value in (*node.inputs, *node.outputs):
                self._fix(value, range(len(value.shape)))

    def _reduced(self, node: Node) -> None:
        (operand, *_), axes = node.inputs, reduced_axes(node)
        kept = [i for i in range(len(operand.shape)) if i not in axes]
        keepdims = len(node.output.shape) == len(operand.shape)
        self._same(operand, node.output, [(a, a if keepdims else i) for i, a in enumerate(kept)])

    def _same(self, value: Value, other: Value, pairs: Sequence[tuple[int, int]], fix: bool = True) -> None:
        """Identify axes of two values where their lengths agree; fix: no others can be sliced."""
        pairs = [(a, b) for a, b in pairs if value.shape[a] == other.shape[b]]
        for a, b in pairs:
            self._parent[self._root((value, a))] = self._root((other, b))
        if fix:
            self._fix(value, set(range(len(value.shape))) - {a for a, _ in pairs})
            self._fix(other, set(range(len(other.shape))) - {b for _, b in pairs})

    def _repeated(self) -> list[Axis]:
        """Return the axes that occur twice in a value."""
        found = []
        for value in self._values:
            roots = [self._root((value, i)) for i, size in enumerate(value.shape) if size > 1]
            found += [root for number, root in enumerate(roots) if root in roots[:number]]
        return found

    def _fix(self, value: Value, axes: Iterable[int]) -> None:
        self._fixed.update((value, i) for i in axes)

    def _root(self, axis: Axis) -> Axis:
        while (parent := self._parent.get(axis, axis)) != axis:
            self._parent[axis] = axis = self._parent.get(parent, parent)
        return axis


def _kept_by_reshape(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of axes that a reshape leaves unchanged."""
    before = {prod(source[:i]): i for i, size in enumerate(source) if size != 1}
    pairs = [(before.get(prod(target[:j])), j) for j, size in enumerate(target) if size != 1]
    return [(i, j) for i, j in pairs if i is not None and source[i] == target[j]]


# -- one slab ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slabs:
    """Values of some groups, sliced along axes of `extents` positions; `axes` tells which axis of a value that is, if
    any.
    """

    extents: tuple[int, ...]
    axes: Mapping[Value, tuple[int | None, ...]]

    @property
    def count(self) -> int:
        return prod(self.extents)

    def shape(self, value: Value) -> tuple[int, ...]:
        """Return the shape of a value's slab."""
        cut = self.axes.get(value, ())
        return tuple(1 if i in cut else size for i, size in enumerate(value.shape))

    def nbytes(self, value: Value) -> int:
        """Return the bytes of a value's slab."""
        return value.tensor_type.nbytes * prod(self.shape(value)) // value.tensor_type.num_elements


def slabs_of(views: Sequence[GroupView], axes: Sequence[int]) -> Slabs | str:
    """Return the slabs of groups that are sliced along `axes` of the first value that the first of them stores; or why
    they cannot be. Every stored value must be sliced, so that no two slabs store the same element.
    """
    stored = [value for view in views for value in view.stored]
    related = Axes([node for view in views for node in view.nodes])
    first = {number: axis for axis, number in related.of(stored[0]).items()} if stored else {}
    wanted = [first[number] for number in axes if number in first]
    everywhere = all(axis in related.of(value) for value in stored for axis in wanted)
    if not wanted or len(wanted) < len(axes) or not everywhere:
        return f"no thread block can have places along axes {tuple(axes)} to itself"
    values = dict.fromkeys(v for view in views for n in view.nodes for v in (*n.inputs, *n.outputs))
    found = {value: related.of(value) for value in values}
    return Slabs(
        tuple(axis[0].shape[axis[1]] for axis in wanted),
        {value: tuple(own.get(axis) for axis in wanted) for value, own in found.items()},
    )


def slab_view(view: GroupView, slabs: Slabs) -> GroupView:
    """Return the view of a group for one slab: inputs and outputs in the same order and with the same names."""
    graph = Graph("slab")
    new = {v: graph.add_input(v.name, TensorType(v.dtype, slabs.shape(v))) for v in view.inputs}
    anchor: Node | None = None
    for node in view.nodes:
        # Constants of one element: copying the value leaves the uses of the old one as they are.
        new.update((v, Value(v.name, v.type, v.data)) for v in node.inputs if v not in new)
        operands, names = [new[v] for v in node.inputs], [v.name for v in node.outputs]
        twin = graph.add(node.op, operands, _attrs(node, slabs), origins=node.origins, name=node.name,
                         output_names=names)  # fmt: skip
        new.update(zip(node.outputs, twin.outputs, strict=True))
        anchor = twin if node is view.anchor else anchor
    outputs = tuple(new[v] for v in view.outputs)
    return GroupView(view.name, tuple(graph.nodes), tuple(new[v] for v in view.inputs), outputs, anchor)


def _attrs(node: Node, slabs: Slabs) -> dict[str, Any]:
    return {**node.attrs, "shape": slabs.shape(node.output)} if "shape" in node.attrs else dict(node.attrs)
