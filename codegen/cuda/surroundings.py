"""The code around the anchor of a group: how its kernels read operands, and how results are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import broadcast_index, ravel
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Emission,
    PackedArg,
    Parameter,
    Thread,
    ValueArg,
    buffer_source,
    kernel_function,
    store,
)
from tilestitch.codegen.cuda.elementwise.vectors import VectorAccess
from tilestitch.codegen.cuda.functions import RULES
from tilestitch.codegen.cuda.positions import index_dtype_of
from tilestitch.codegen.cuda.rows.bands import BandRows
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.groups import before_views, gate_number
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.access.strided import Strided
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup


@dataclass(frozen=True)
class Anchored(AnchoredGroup):
    """A group with an anchor as its template sees it: the anchor's operands and the computation around it.

    `packed`: constants in another layout, which only the anchor reads: the argument, and the positions of their
    elements. `after`: row-wise work that follows in the same launch, only in kernels of GEMMs.
    """

    target: CudaTarget
    packed: Mapping[Value, tuple[PackedArg, Strided]] = field(default_factory=dict)
    after: BandRows | None = None

    @property
    def layouts(self) -> dict[Value, Strided]:
        """Layouts of packed constants."""
        return {value: memory for value, (_, memory) in self.packed.items()}

    @property
    def index_dtype(self) -> str:
        """The dtype that holds every position in every tensor of the group."""
        return index_dtype_of(self.nodes)

    def argument(self, value: Value) -> ValueArg | PackedArg:
        """Return the kernel argument for an input or output."""
        return self.packed[value][0] if value in self.packed else ValueArg(value.name)

    def _parameter(self, value: Value) -> Parameter:
        packed = self.packed.get(value)
        size = value.tensor_type.num_elements if packed is None else prod(packed[1].shape)
        return Parameter(self.argument(value), value.dtype, size)

    def launch(
        self,
        kind: str,
        blocks: int,
        threads: int,
        emit: Emit,
        *,
        inputs: Sequence[Value] | None = None,
        outputs: Sequence[Value] | None = None,
        extra: Parameter | None = None,
        counters: Parameter | None = None,
        maps: Sequence[Parameter] = (),
        shared_bytes: int = 0,
        blocks_per_sm: int | None = None,
        portable: bool = True,
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> CudaLaunch:
        """Return a launch of `blocks` blocks of `threads` threads that run `emit(surroundings, thread)`.

        inputs, outputs: what this launch reads and writes, if not all of the group. extra, counters: further arguments,
        with buffers under these names in the surroundings. maps: tensor maps, with addresses there as `maps`.
        blocks_per_sm: as for `kernel_function`; portable, cluster: as in `CudaLaunch`.
        """
        read = self.inputs if inputs is None else tuple(inputs)
        written = self.outputs if outputs is None else tuple(outputs)
        parameters = [self._parameter(v) for v in (*read, *written)]
        parameters += [more for more in (extra, counters) if more is not None]
        own, mapped = len(parameters), len(parameters) + len(maps)
        known = [v for v in (*read, *written) if v not in self.packed]
        further = missing(self.after.values, known) if self.after is not None else ()
        parameters += [*maps, *(Parameter.of(v.name, v.tensor_type) for v in further)]

        def body(buffers: list[Any], thread: Thread) -> None:
            more = iter(buffers[len(read) + len(written) : own])
            mine = (next(more) if extra is not None else None, next(more) if counters is not None else None)
            rest = dict(zip(further, buffers[mapped:], strict=True))
            emit(Surroundings(self, read, written, buffers, mine, buffers[own:mapped], rest), thread)

        grid, block = (blocks, 1, 1), (threads, 1, 1)
        func = kernel_function(parameters, grid, block, body, blocks_per_sm)
        origins = tuple(dict.fromkeys(o for node in self.nodes for o in node.origins))
        args = tuple(p.arg for p in parameters)
        emission = Emission(tuple(parameters), body)
        return CudaLaunch(
            kind, func, grid, block, args, origins, shared_bytes, portable=portable, cluster=cluster, emission=emission
        )


def missing(values: Iterable[Value], known: Iterable[Value]) -> tuple[Value, ...]:
    """Return those of `values` that are not known, without repetition."""
    there = set(known)
    return tuple(dict.fromkeys(v for v in values if v not in there))


class Surroundings:
    """Readers of the anchor's operands, and the epilogue of its result, inside one kernel."""

    def __init__(
        self, group: Anchored, read: Sequence[Value], written: Sequence[Value], buffers: Sequence[Any],
        own: tuple[Any, Any] = (None, None), maps: Sequence[Any] = (), further: Mapping[Value, Any] | None = None,
    ) -> None:  # fmt: skip
        self.group = group
        self.evaluator = Evaluator({}, group.index_dtype, RULES)
        self.flat = dict(zip(read, buffers, strict=False))
        for value, buffer in self.flat.items():
            self.evaluator.sources[value] = buffer_source(buffer, value.tensor_type, self.evaluator.simplify)
        self.stores = list(zip(written, buffers[len(read) :], strict=False))
        self.extra, self.counters = own
        self.maps = tuple(maps)
        self.after = {v: b for v, b in self.flat.items() if v not in group.packed}
        """Buffers that row-wise work after the GEMM reads and writes."""
        self.after.update(self.stores)
        self.after.update(further or {})

    def wide(self, index: Expr) -> Expr:
        """Return a thread or block index in the group's index dtype."""
        wanted = self.group.index_dtype
        return index if isinstance(index, int) or wanted == "int32" else T.cast(index, wanted)

    def load(self, value: Value, index: Sequence[Expr]) -> Expr:
        """Return an element of an operand, in its compute dtype; axes of size one are broadcast. To be called in a
        branch or loop of its own.
        """
        if value in self.group.packed:
            return from_storage(self.flat[value][self.group.packed[value][1].position(tuple(index))], value.dtype)
        place = broadcast_index(index, value.shape)
        if value in self.flat:
            return from_storage(self.flat[value][ravel(place, value.shape)], value.dtype)
        with self.evaluator.scope():
            return self.evaluator.value(value, place)

    def finish(self, index: Sequence[Expr], *results: Expr) -> None:
        """Store every output of the group from the anchor's result at `index`, or, in a group with gates, from that of
        each gate.

        There `index` counts the columns of a gate.
        """
        with self.evaluator.scope():
            self._know(index, results)
            for value, buffer in self.stores:
                source, place = before_views(self.group.roles, value, tuple(index), self.evaluator.simplify)
                element = self.evaluator.value(source, tuple(index))
                store(buffer, value.tensor_type, place, element, self.evaluator.simplify)

    def _know(self, index: Sequence[Expr], results: Sequence[Expr]) -> None:
        """Set the anchor's result at `index`, or those of all gates there."""
        roles, simplify = self.group.roles, self.evaluator.simplify
        named = [self.evaluator.bind(result) for result in results]
        self.evaluator.sources[self.group.result] = lambda at: named[gate_number(roles, index[-1], at[-1], simplify)]

    def finish_vector(self, indices: Sequence[Sequence[Expr]], results: Sequence[Expr]) -> None:
        """Store outputs as `finish` does, for neighbours along the last axis of the anchor's result, with vectorised
        accesses.

        `results`: of all gates of one index after the other.
        """
        evaluator, each = self.evaluator, len(results) // len(indices)
        access, single = VectorAccess(evaluator, len(indices)), dict(evaluator.sources)
        with evaluator.scope():
            for value, buffer in self.flat.items():
                evaluator.sources[value] = access.source(buffer, value)
            found: list[list[tuple[Sequence[Expr], Expr]]] = [[] for _ in self.stores]
            for lane, index in enumerate(indices):
                self._know(index, results[lane * each : (lane + 1) * each])
                for number, (value, _) in enumerate(self.stores):
                    source, place = before_views(self.group.roles, value, tuple(index), self.evaluator.simplify)
                    found[number].append((place, evaluator.value(source, tuple(index))))
            for lanes, (value, buffer) in zip(found, self.stores, strict=True):
                access.store(buffer, value, [place for place, _ in lanes], [element for _, element in lanes])
        evaluator.sources = single


Emit = Callable[[Surroundings, Thread], None]
