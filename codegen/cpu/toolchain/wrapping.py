"""Makes unsigned arithmetic wrap.

TVM tells LLVM that sums, differences and products of 32 and 64 bits never overflow, including unsigned ones (`nuw`),
and LLVM exploits that: it folds `(x + 7) * -3`, computed modulo 2**32, to -1. Our kernels use unsigned numbers in order
to wrap. So 32-bit arithmetic is done in 64 bits, which LLVM narrows to one plain instruction again, and 64-bit
arithmetic in halves.
"""

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, immediate

HALF = 32


def wrapping(func: Any) -> Any:
    """Return `func` with sums, differences and products of uint32 and uint64, scalars or vectors, that may overflow."""
    rules = [
        (tirx.Add, _rewritten(lambda a, b: a + b, "int64", _sum)),
        (tirx.Sub, _rewritten(lambda a, b: a - b, "int64", lambda a, b: _sum(a, T.bitwise_not(b), 1))),
        (tirx.Mul, _rewritten(lambda a, b: a * b, "uint64", _product)),
    ]
    return tvm_ffi.structural_map(func, rules)


def _rewritten(
    operation: Callable[[Expr, Expr], Expr], wide: str, in_halves: Callable[[Expr, Expr], Expr]
) -> Callable[[Any], Any]:
    def rewrite(node: Any) -> Any:
        dtype, _, lanes = str(node.ty.dtype).partition("x")
        if dtype == "uint32":
            a, b = (tirx.Cast(_vector(wide, lanes), x) for x in (node.a, node.b))
            return tirx.Cast(_vector(dtype, lanes), operation(a, b))
        return in_halves(node.a, node.b) if dtype == "uint64" else node

    return rewrite


def _vector(dtype: str, lanes: str) -> str:
    return f"{dtype}x{lanes}" if lanes else dtype


def _constant(number: int, like: Expr) -> Expr:
    scalar, (_, _, lanes) = immediate(number, "uint64"), str(like.ty.dtype).partition("x")
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def _low(x: Expr) -> Expr:
    return T.bitwise_and(x, _constant((1 << HALF) - 1, x))


def _high(x: Expr) -> Expr:
    return T.shift_right(x, _constant(HALF, x))


def _joined(high: Expr, low: Expr) -> Expr:
    """Return the number with these halves; the upper half of `high` is dropped."""
    return T.bitwise_or(T.shift_left(high, _constant(HALF, high)), _low(low))


def _sum(a: Expr, b: Expr, carry: int = 0) -> Expr:
    low = _low(a) + _low(b) + _constant(carry, a)
    return _joined(_high(a) + _high(b) + _high(low), low)


def _product(a: Expr, b: Expr) -> Expr:
    low = _low(a) * _low(b)
    return _joined(_low(_high(a) * _low(b)) + _low(_low(a) * _high(b)) + _high(low), low)
