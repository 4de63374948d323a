"""Splitting of a GEMM of which only column ranges are read into one GEMM per range (as in attention)."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import bounds_of
from tilestitch.passes.contract import PassContext, PassResult

from .driver import is_sized, single_reader
from .siblings import meeting, reads_in_place


@dataclass(frozen=True)
class SplitColumns:
    """Rewrite slice_i(x @ W + b) to x @ W_i + b_i, so that what follows each slice can fuse with its GEMM.

    Applied where all readers are slices of disjoint column ranges, each at least `least_columns` wide, and each GEMM
    takes at least `least_multiplications`, so that the cost of a separate launch is small. Ranges that element-wise
    operators recombine stay one GEMM, whose kernel includes that work (fusion's rule `gates`). So do, on GPUs, ranges
    that are read in place.
    """

    least_columns: int = 64
    least_multiplications: int = 1 << 20
    name: ClassVar[str] = "split_columns"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        gpu = context.target.name != "cpu"
        count = sum(self._split(graph, node, gpu) for node in graph.nodes if node.op == "matmul")
        return PassResult.counted(graph, count, "GEMMs")

    def _split(self, graph: Graph, node: Node, gpu: bool) -> bool:
        weight = node.inputs[1]
        if weight.data is None or weight.data.ndim != 2 or not is_sized(node.inputs[0]):
            return False
        chain = _constant_arithmetic(graph, node)
        result = chain[-1].output if chain else node.output
        slices = result.users
        ranges = [_column_range(s) for s in slices]
        if graph.is_output(result) or len(slices) < 2 or not self._worthwhile(node, ranges) or _meet(slices):
            return False
        if gpu and all(_is_read_in_place(graph, s) for s in slices):
            return False
        for reader, columns in zip(slices, ranges, strict=True):
            assert columns is not None
            graph.replace(reader, [_columns_of(graph, reader, node, chain, columns)])
        for dead in (*reversed(chain), node):
            graph.remove(dead)
        return True

    def _worthwhile(self, node: Node, ranges: list[tuple[int, int] | None]) -> bool:
        known = sorted(r for r in ranges if r is not None)
        if len(known) < len(ranges) or any(a[1] > b[0] for a, b in pairwise(known)):
            return False
        shape = node.output.shape
        rows = bounds_of(prod(shape[:-1]))[1]  # for open rows, the upper bound
        depth = node.inputs[0].shape[-2 if node.attrs.get("trans_a") else -1]
        narrowest = min(b - a for a, b in known)
        return narrowest >= self.least_columns and rows * depth * narrowest >= self.least_multiplications


def _constant_arithmetic(graph: Graph, node: Node) -> list[Node]:
    """Return the chain of single readers after `node` that only add or multiply constants of its shape or smaller."""
    chain: list[Node] = []
    value = node.output
    while single_reader(graph, value):
        reader, position = next(iter(value.uses))
        if reader.op not in ("add", "sub", "mul", "div") or reader.output.type != value.type:
            break
        if reader.inputs[1 - position].data is None:
            break
        chain.append(reader)
        value = reader.output
    return chain


def _meet(slices: list[Node]) -> bool:
    """Return whether two of `slices`, all of one shape, are recombined by element-wise work alone."""
    shape = slices[0].output.shape
    alike = all(s.output.shape == shape for s in slices)
    return alike and len(meeting([s.output.users for s in slices], shape)) < len(slices)


def _is_read_in_place(graph: Graph, node: Node) -> bool:
    return not graph.is_output(node.output) and all(reads_in_place(u, graph) for u in node.output.users)


def _column_range(node: Node) -> tuple[int, int] | None:
    """Return the columns [first, end) that a slice takes of all rows; None for other slices."""
    if node.op != "slice" or not is_sized(node.inputs[0]):
        return None
    starts, steps, sizes = node.attrs["starts"], node.attrs["steps"], node.attrs["sizes"]
    rows = node.inputs[0].shape[:-1]
    if tuple(sizes[:-1]) != rows or any(start != 0 for start in starts[:-1]) or any(s != 1 for s in steps):
        return None
    return starts[-1], starts[-1] + sizes[-1]


def _columns_of(graph: Graph, reader: Node, node: Node, chain: list[Node], columns: tuple[int, int]) -> Value:
    first, end = columns
    weight = node.inputs[1]
    assert weight.data is not None
    part = weight.data[first:end] if node.attrs.get("trans_b") else weight.data[:, first:end]
    value = graph.emit(
        "matmul", node.inputs[0], graph.constant(np.ascontiguousarray(part), name=weight.name),
        origins=(*node.origins, *reader.origins), insert_before=reader, **node.attrs,
    )  # fmt: skip
    before = node.output
    for step in chain:
        position = 0 if step.inputs[0] is before else 1
        constant = step.inputs[1 - position]
        assert constant.data is not None
        data = constant.data
        if data.ndim and data.shape[-1] != 1:
            constant = graph.constant(np.ascontiguousarray(data[..., first:end]), name=constant.name)
        operands = (value, constant) if position == 0 else (constant, value)
        value = graph.emit(step.op, *operands, origins=step.origins, insert_before=reader)
        before = step.output
    return value
