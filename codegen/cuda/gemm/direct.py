"""Contractions with too little reuse for tiles: every thread computes one result, neighbours along memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, widen
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.abi import CudaLaunch, Thread
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.graph import Value

Terms = Callable[[Sequence[Expr], Expr], tuple[tuple[Expr, ...], tuple[Expr, ...], "Expr | None"]]
"""`terms(index of the result, k)`: the indices of the two elements whose product is summed, and whether they exist."""

MOST_UNROLLED = 32


def emit_direct(
    group: Anchored, kind: str, operands: tuple[Value, Value], reduction: int, terms: Terms,
    threads: int,
) -> CudaLaunch:  # fmt: skip
    """Return the launch of a contraction with `reduction` terms per result."""
    shape, acc = group.result.shape, group.acc_dtype
    count = group.result.tensor_type.num_elements
    blocks = -(-count // threads)
    loop = unrolled if reduction <= MOST_UNROLLED else repeated

    def emit(around: Surroundings, thread: Thread) -> None:
        at = named(around.wide(thread.block[0]) * threads + thread.thread[0])
        with when(below(at, count, blocks * threads)):
            index = tuple(named(i) for i in unravel(at, shape))
            total = registers(1, acc)
            T.buffer_store(total, zero(acc), [0])
            if reduction:
                with loop(reduction) as k:
                    left, right, exists = terms(index, k)
                    with when(exists):
                        a, b = (
                            widen(around.load(value, place), value.dtype, acc)
                            for value, place in zip(operands, (left, right), strict=True)
                        )
                        T.buffer_store(total, total[0] + a * b, [0])
            around.finish(index, total[0])

    return group.launch(kind, blocks, threads, emit)
