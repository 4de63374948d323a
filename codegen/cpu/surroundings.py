"""The code around the anchor of a group: how its template reads operands, and how results are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, storage_dtype
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import broadcast_index, ravel
from tilestitch.codegen.cpu.contraction.panels import pack
from tilestitch.codegen.groups import before_views, gate_number
from tilestitch.codegen.launch import Places
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.cpu.packing import Packing
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup

from .abi import KernelLaunch, PackedArg, Parameter, buffer_source, kernel_function, store

Matrix = Callable[[np.ndarray], np.ndarray]
"""Function that returns a constant right operand as [groups, k, n]."""


@dataclass(frozen=True)
class Operands(AnchoredGroup):
    """A group around an anchor as its template sees it: the anchor's operands and the computation around it."""

    @property
    def right(self) -> Value:
        return self.anchor.inputs[1]

    def launch(
        self, kind: str, tasks: int, scratch_bytes: int, packing: Packing | None, matrix: Matrix, emit: Emit,
        places: Places | None = None,
    ) -> KernelLaunch:  # fmt: skip
        """Return the launch whose task is `emit(body, task, scratch)`; `packing` is the layout of a constant right
        operand, and `places` the positions of its elements in that.
        """
        right = self.right if packing is not None else None
        # The epilogue may also read a packed operand in its plain layout: then it is an argument twice.
        read_plainly = {v for n in self.nodes for i, v in enumerate(n.inputs) if not (n is self.anchor and i == 1)}
        plain = tuple(v for v in self.inputs if v is not right or v in read_plainly)
        parameters = [Parameter.of(v.name, v.tensor_type) for v in (*plain, *self.outputs)]
        if right is not None and packing is not None:
            arranged = PackedArg(
                right.name, f"{kind}:{packing}", lambda data: pack(matrix(data), packing), places, shape=packing.shape
            )
            parameters.append(Parameter(arranged, right.dtype, math.prod(packing.shape)))

        def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
            around = Surroundings(self, plain, buffers, packing)
            emit(around, task, scratch)

        func = kernel_function(parameters, body)
        origins = tuple(dict.fromkeys(o for node in self.nodes for o in node.origins))
        return KernelLaunch(kind, func, tasks, tuple(p.arg for p in parameters), origins, scratch_bytes)


Emit = Callable[["Surroundings", Expr, Expr], None]


class Surroundings:
    """Readers of the anchor's operands, and the epilogue of its result, inside one kernel."""

    def __init__(self, group: Operands, plain: Sequence[Value], buffers: list[Any], packing: Packing | None) -> None:
        self.group = group
        self.evaluator = Evaluator({}, "int64")
        simplify = self.evaluator.simplify
        self.flat = dict(zip(plain, buffers, strict=False))
        self.evaluator.sources.update({v: buffer_source(b, v.tensor_type, simplify) for v, b in self.flat.items()})
        self.stores = list(zip(group.outputs, buffers[len(plain) :], strict=False))
        self.result = group.result
        self.packed: Any = None
        if packing is not None:
            dtype = storage_dtype(packing.dtype)
            self.packed = T.decl_buffer(packing.shape, dtype, data=buffers[-1].data)

    def load(self, value: Value, index: Sequence[Expr]) -> Expr:
        """Return an element of an operand, in its compute dtype; axes of size one are broadcast."""
        place = broadcast_index(index, value.shape)
        if value in self.flat:
            return from_storage(self.flat[value][ravel(place, value.shape)], value.dtype)
        with self.evaluator.scope():
            return self.evaluator.value(value, place)

    def begin(self, along: Sequence[bool]) -> Callable[[Sequence[Expr]], Expr] | None:
        """Return the initial integer sums, by the index of a result: what the only reader of the anchor's result adds
        to it, if that varies at most `along` some axes. `finish` must then get sums that include it. None if nothing is
        added.
        """
        added = _added(self.group, along)
        if added is None:
            return None
        start, self.result = added

        def element(index: Sequence[Expr]) -> Expr:
            with self.evaluator.scope():
                return self.evaluator.value(start, broadcast_index(index, start.shape))

        return element

    def finish(self, index: Sequence[Expr], *results: Expr) -> None:
        """Store every output of the group from the anchor's result at `index`, or, in a group with gates, from that of
        each gate.

        There `index` counts the columns of a gate.
        """
        anchor = self.result
        with self.evaluator.scope():
            named = [self.evaluator.bind(result) for result in results]
            roles, simplify = self.group.roles, self.evaluator.simplify
            self.evaluator.sources[anchor] = lambda at: named[gate_number(roles, index[-1], at[-1], simplify)]
            for value, buffer in self.stores:
                source, place = before_views(self.group.roles, value, tuple(index), self.evaluator.simplify)
                element = self.evaluator.value(source, tuple(index))
                store(buffer, value.tensor_type, place, element, self.evaluator.simplify)


def _added(group: Operands, along: Sequence[bool]) -> tuple[Value, Value] | None:
    """Return what is added to the anchor's integers before anything else reads them, and the sum."""
    result = group.result
    if result.dtype != "int32" or result in group.outputs or len(result.uses) != 1:
        return None
    (node,) = result.users
    if node.op != "add" or node not in group.nodes or node.output.shape != result.shape:
        return None
    (other,) = (v for v in node.inputs if v is not result)
    if other.data is None and other not in group.inputs:
        return None
    shape = (1,) * (len(along) - len(other.shape)) + tuple(other.shape)
    differs = any(extent != 1 and not may for extent, may in zip(shape, along, strict=True))
    return None if differs else (other, node.output)
