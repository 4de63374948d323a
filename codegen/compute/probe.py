"""Dry runs: where a group reads its operands as its iteration variables move, without emitting anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.sym
from tvm import tirx

from tilestitch.compiler.ir.graph import Node, Value

from . import elementwise
from .dtypes import Expr, compute_dtype
from .evaluator import Evaluator
from .indexing import Index, Simplify, broadcast_index, ravel, reshape_index


@dataclass(frozen=True)
class Access:
    """`strides`: by how many elements the place in `value`'s memory moves with each variable; None if not linear.

    offset: the place where all variables are zero.
    """

    value: Value
    strides: tuple[int, ...] | None
    offset: int = 0


@dataclass(frozen=True)
class Walk:
    """What a dry run found. `cuts`: (dimension, position) where one operand of a concat ends and another begins."""

    accesses: tuple[Access, ...]
    cuts: frozenset[tuple[int, int]]


class _Probe(Evaluator):
    """Follows indices only: results of arithmetic are opaque variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        super().__init__({})
        self.variables = variables
        self.cuts: set[tuple[int, int]] = set()

    def cut(self, position: Expr, limit: int) -> None:
        found = _linear(position, self.variables, self)
        if found is None:
            return
        strides, constant = found
        moving = [d for d, stride in enumerate(strides) if stride]
        if len(moving) == 1 and strides[moving[0]] == 1:
            self.cuts.add((moving[0], limit - constant))

    def bind(self, expr: Expr) -> Expr:
        return expr

    def _apply(self, node: Node, index: Index) -> Expr:
        if node.op not in elementwise.RULES:
            return super()._apply(node, index)
        for operand in node.inputs:
            self.value(operand, broadcast_index(index, operand.shape))
        return tirx.Var("x", compute_dtype(node.output.dtype))


Indices = Callable[[Sequence[Expr], Simplify], Sequence[Index]]
"""`indices(variables, simplify)`: the index of each value at a point of the iteration space."""


def probe(values: Sequence[Value], inputs: Iterable[Value], extents: Sequence[int], indices: Indices) -> Walk:
    """The accesses that computing and storing `values` takes, with iteration variables that run over `extents`.

    `inputs` are the values that are read from memory.
    """
    variables = [tirx.Var(f"i{d}", "int32") for d in range(len(extents))]
    evaluator = _Probe(variables)
    for variable, extent in zip(variables, extents, strict=True):
        evaluator.assume(variable, 0, extent)
    found: list[Access] = []

    def read(value: Value) -> Callable[[Sequence[Expr]], Any]:
        def source(index: Sequence[Expr]) -> Any:
            found.append(_access(value, index, variables, evaluator))
            return tirx.Var("x", compute_dtype(value.dtype))

        return source

    evaluator.sources.update((value, read(value)) for value in inputs)
    for value, index in zip(values, indices(variables, evaluator.simplify), strict=True):
        found.append(_access(value, index, variables, evaluator))
        evaluator.value(value, index)
    return Walk(tuple(found), frozenset(evaluator.cuts))


def merge(extents: Sequence[int], kinds: Sequence[bool], accesses: Sequence[Access]) -> tuple[list[int], list[bool]]:
    """Merge neighbouring dimensions of one kind that every access walks as if they were one."""
    sizes, merged = [extents[-1]], [kinds[-1]]
    for d in reversed(range(len(extents) - 1)):
        joint = all(a.strides is not None and a.strides[d] == a.strides[d + 1] * extents[d + 1] for a in accesses)
        if joint and kinds[d] == kinds[d + 1]:
            sizes[0] *= extents[d]
        else:
            sizes.insert(0, extents[d])
            merged.insert(0, kinds[d])
    return sizes, merged


def domain_indices(
    outputs: Sequence[Value], extents: Sequence[int], index: Sequence[Expr], simplify: Simplify
) -> list[Index]:
    """The index of each output, all of which have as many elements, at a point of the iteration space."""
    return [reshape_index(index, extents, output.shape, simplify) for output in outputs]


def walk_merged(inputs: Sequence[Value], outputs: Sequence[Value]) -> tuple[tuple[int, ...], Walk]:
    """The iteration space of element-wise work, as few dimensions as the accesses allow, and a dry run in it."""
    sizes = tuple(d for d in outputs[0].shape if d != 1) or (1,)
    walk = probe(outputs, inputs, sizes, lambda i, simplify: domain_indices(outputs, sizes, i, simplify))
    extents = tuple(merge(sizes, [False] * len(sizes), walk.accesses)[0])
    if len(extents) != len(sizes):
        walk = probe(outputs, inputs, extents, lambda i, simplify: domain_indices(outputs, extents, i, simplify))
    return extents, walk


def _access(value: Value, index: Sequence[Expr], variables: list[Any], evaluator: Evaluator) -> Access:
    found = _linear(ravel(index, value.shape), variables, evaluator)
    return Access(value, *found) if found else Access(value, None)


def _linear(position: Expr, variables: Sequence[Any], evaluator: Evaluator) -> tuple[tuple[int, ...], int] | None:
    """Coefficients of the variables and the constant, if `position` is linear in them."""
    position = evaluator.simplify(position)
    if isinstance(position, int):
        return (0,) * len(variables), position
    coefficients = tvm.sym.detect_linear_equation(position, list(variables))
    if not coefficients or not all(isinstance(c, tirx.IntImm) for c in coefficients):
        return None
    *strides, constant = (int(c.value) for c in coefficients)
    return tuple(strides), constant
