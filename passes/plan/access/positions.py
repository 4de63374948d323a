"""The dtype of positions in tensors, and which values kernels compute between others."""

from __future__ import annotations

from collections.abc import Iterable

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import bounds_of

INT32_ELEMENTS = 2**31 - 2**20
"""From so many elements on positions are 64-bit integers; loops may run a little beyond the last element."""


def index_dtype(values: Iterable[Value]) -> str:
    """The dtype that holds every position in every one of `values`."""
    return "int32" if all(bounds_of(v.tensor_type.num_elements)[1] < INT32_ELEMENTS for v in values) else "int64"


def index_dtype_of(nodes: Iterable[Node]) -> str:
    """The dtype that holds every position in every value of a group, those included that are never stored."""
    return index_dtype(v for node in nodes for v in (*node.inputs, *node.outputs))


def values_between(values: Iterable[Value], inputs: Iterable[Value]) -> set[Value]:
    """`values`, all that they are computed from as far as `inputs`, and those of `inputs` that are read."""
    found: set[Value] = set()
    ends, stack = set(inputs), list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(() if value in ends or value.producer is None else value.producer.inputs)
    return found
