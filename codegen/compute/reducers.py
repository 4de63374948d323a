"""Reduction steps, and the combination of partial results."""

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Bind, Expr, compute_dtype, dtype_of, immediate, is_nan
from tilestitch.codegen.compute.elementwise import extreme
from tilestitch.compiler.ir.types import dtype_kind, is_float

from .dtypes import round_half


def accumulator_dtype(dtype: str) -> str:
    """Return the dtype of an accumulator for elements of `dtype`; bytes for bools."""
    return "uint8" if dtype == "bool" else compute_dtype(dtype)


def reducer_of(op: str) -> str:
    """Return sum, prod, max, min or and of `reduce_*`; max or min of `arg_*`."""
    return op.removeprefix("reduce_").removeprefix("arg_")


def identity(reducer: str, dtype: str) -> Expr:
    """Return the accumulator before the first element."""
    if dtype == "bool":
        return tirx.IntImm("uint8", 1 if reducer in ("prod", "min") else 0)
    if reducer in ("sum", "prod"):
        return immediate(0 if reducer == "sum" else 1, dtype)
    if is_float(dtype):
        return immediate(float("-inf") if reducer == "max" else float("inf"), dtype)
    limits = np.iinfo(dtype)
    if reducer == "and":
        return immediate(-1 if limits.min else limits.max, dtype)
    return immediate(limits.min if reducer == "max" else limits.max, dtype)


def combine(reducer: str, dtype: str, a: Expr, b: Expr) -> Expr:
    """Combine two accumulators (or an accumulator and an element), scalars or vectors. Bind both first."""
    if dtype == "bool":
        return T.min(a, b) if reducer in ("prod", "min") else T.max(a, b)
    if reducer in ("max", "min"):
        return extreme(a, b, dtype, largest=reducer == "max")
    if reducer == "and":
        return T.bitwise_and(a, b)
    operation: Callable[[Expr, Expr], Expr] = (lambda x, y: x + y) if reducer == "sum" else (lambda x, y: x * y)
    if dtype_kind(dtype) != "int":
        return operation(a, b)
    signed = dtype_of(a)
    unsigned = "u" + signed
    return T.cast(operation(T.cast(a, unsigned), T.cast(b, unsigned)), signed)


def to_accumulator(value: Expr, dtype: str, exact: bool = False) -> Expr:
    """Return an element in accumulator form. `exact`: rounded to its dtype, so that elements that become equal tie."""
    if dtype == "bool":
        return T.cast(value, "uint8")
    return round_half(value, dtype) if exact else value


def from_accumulator(value: Expr, dtype: str) -> Expr:
    return tirx.NE(value, tirx.IntImm("uint8", 0)) if dtype == "bool" else value


def fold_lanes(reducer: str, dtype: str, accumulator: object, vectors: int, lanes: int, bind: Bind) -> Expr:
    """Combine the `vectors * lanes` accumulators in a local buffer to one, in halves."""
    if lanes == 1:
        result = bind(accumulator[0])  # type: ignore[index]
        for i in range(1, vectors):
            result = bind(combine(reducer, dtype, result, bind(accumulator[i])))  # type: ignore[index]
        return result
    parts = [bind(accumulator[T.ramp(i * lanes, 1, lanes)]) for i in range(vectors)]  # type: ignore[index]
    while len(parts) > 1:
        parts = [bind(combine(reducer, dtype, a, b)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    (vector,) = parts
    scalar = accumulator_dtype(dtype)
    while lanes > 2:
        lanes //= 2
        low, high = (bind(half(f"{scalar}x{lanes}", vector)) for half in (T.vectorlow, T.vectorhigh))
        vector = bind(combine(reducer, dtype, low, high))
    first, second = (bind(tirx.Shuffle([vector], [i])) for i in range(2))
    return bind(combine(reducer, dtype, first, second))


def is_better(reducer: str, dtype: str, value: Expr, best: Expr, last: bool) -> Expr:
    """Return whether `value`, which comes later, replaces `best`; NaN beats all numbers, `last` decides ties."""
    beats = value > best if reducer == "max" else value < best
    if last:
        beats = tirx.Or(beats, tirx.EQ(value, best))
    if not is_float(dtype):
        return beats
    nan = is_nan(value)
    return tirx.Or(tirx.And(beats, tirx.EQ(best, best)), nan if last else tirx.And(nan, tirx.EQ(best, best)))
