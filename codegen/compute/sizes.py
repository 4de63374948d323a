"""Open sizes inside kernels: expressions over the values of the graph's symbols, which are an argument."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.in_kernel import Lower, in_kernel, lowering
from tilestitch.compiler.ir.polynomial import bounds_of
from tilestitch.compiler.ir.sizes import Size, Symbol, is_empty_without, is_open, symbols_of
from tilestitch.compiler.ir.types import TensorType

from .dtypes import Expr
from .narrow_sizes import NarrowSizes, in_int64

_PRESENT: ContextVar[frozenset[Symbol]] = ContextVar("present", default=frozenset())
_COUNTS: ContextVar[tuple[Size, ...] | None] = ContextVar("counts", default=None)
_SYMBOLS: ContextVar[tuple[Symbol, ...]] = ContextVar("symbols", default=())


@contextmanager
def kernels_over(symbols: Sequence[Symbol]) -> Iterator[None]:
    """Give kernels emitted within the context the values of these symbols as their last argument."""
    token = _SYMBOLS.set(tuple(symbols))
    try:
        yield
    finally:
        _SYMBOLS.reset(token)


def symbols_in_force() -> tuple[Symbol, ...]:
    """Return the symbols whose values kernels take."""
    return _SYMBOLS.get()


@contextmanager
def counting_in_32_bits(counts: Sequence[Size]) -> Iterator[None]:
    """Emit kernels within the context with 32-bit positions, and sizes where these are certainly no larger: each of
    `counts` is below `INT32_ELEMENTS` whenever they are launched.
    """
    token = _COUNTS.set(tuple(counts))
    try:
        yield
    finally:
        _COUNTS.reset(token)


def counts_in_32_bits() -> bool:
    """Return whether the kernel being emitted counts in 32 bits."""
    return _COUNTS.get() is not None


@contextmanager
def where_present(symbols: frozenset[Symbol]) -> Iterator[None]:
    """Emit kernels within the context that are launched only where none of these symbols is 0."""
    token = _PRESENT.set(symbols)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def loaded(buffer: Any, position: Expr, type_: TensorType) -> Expr:
    """Return an element of a tensor, or zero if it may be empty while its kernel is launched."""
    sizes = _perhaps_none(type_)
    if not sizes:
        return buffer[position]
    some = tirx.all(*(in_kernel(size) > 0 for size in sizes))
    return tirx.if_then_else(some, buffer[position], tirx.const(0, str(buffer.dtype)))


def may_be_empty(type_: TensorType) -> bool:
    """Return whether a tensor may be empty while its kernel is launched."""
    return bool(_perhaps_none(type_))


def _perhaps_none(type_: TensorType) -> list[Size]:
    return [size for size in dict.fromkeys(type_.sizes) if is_open(size) and may_be_0(size)]


def may_be_0(size: Size) -> bool:
    """Return whether a size may be 0 when the kernel is launched, which proofs about open sizes ignore."""
    lacking = (s for s in symbols_of([size]) if s.or_empty and s not in _PRESENT.get())
    return bounds_of(size)[0] <= 0 or any(is_empty_without(size, s.name) for s in lacking)


def symbols_among(nodes: Sequence[Node]) -> bool:
    """Return whether nodes have operands, results or attributes of open size."""
    sizes = [d for n in nodes for v in (*n.inputs, *n.outputs) for d in v.tensor_type.shape]
    sizes += [d for n in nodes for a in n.attrs.values() if isinstance(a, tuple) for d in a]
    return bool(symbols_of(sizes))


class ReadSizes(dict[str, Any]):
    """The variable with the value of each symbol; `read`: the symbols that have been asked for."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__(variables)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def pruned(self, func: Any) -> Any:
        """Return the function of the kernel without the variables that nothing has asked for: it is equal to one for
        other symbols that reads the same.
        """
        unread = {variable for name, variable in self.items() if name not in self.read}
        kept = [each for each in func.body.seq if not (isinstance(each, tirx.Bind) and each.var in unread)]
        return func.with_body(tirx.SeqStmt(kept)) if unread else func


@contextmanager
def reading(symbols: Sequence[Symbol], values: Any) -> Iterator[ReadSizes]:
    """Let sizes inside a kernel be expressions over `values`, a buffer with one int64 for each symbol. Yields the
    variables in them.
    """
    counts = _COUNTS.get()
    if counts is None:
        read = ReadSizes({symbol.name: T.bind(values[number]) for number, symbol in enumerate(symbols)})
        lower: Lower = partial(in_int64, read=read)
    else:
        read = ReadSizes({s.name: T.bind(T.cast(values[number], "int32")) for number, s in enumerate(symbols)})
        lower = NarrowSizes(read, counts, _PRESENT.get()).lowered
    with lowering(lower):
        yield read


def with_natural_quotients(func: Any, read: ReadSizes) -> Any:
    """Return the function with quotients by open sizes as of non-negative numbers, which positions and sizes are:
    otherwise TVM emits code for negative ones.
    """

    sizes = frozenset(read.values())

    def rewritten(operation: Callable[[Expr, Expr], Expr]) -> Callable[[Any], Any]:
        return lambda node: operation(node.a, node.b) if _only(node.b, sizes) else node

    rules = [(tirx.FloorDiv, rewritten(tirx.truncdiv)), (tirx.FloorMod, rewritten(tirx.truncmod))]
    return tvm_ffi.structural_map(func, rules)


def _only(expr: Expr, variables: frozenset[Any]) -> bool:
    """Return whether an expression contains some of these variables, and no others."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, [(tirx.Var, found.append)])
    return bool(found) and all(any(v.same_as(size) for size in variables) for v in found)


def integer(size: Size, dtype: str) -> Expr:
    """Return a size, which may be open, as an integer of `dtype`."""
    if not is_open(size):
        return tirx.IntImm(dtype, size)
    value = in_kernel(size)
    return value if str(value.ty.dtype) == dtype else T.cast(value, dtype)
