"""Emits primitives into a graph and folds constants.

`emit` evaluates a deterministic primitive at once when every operand is a constant and the result is small, so that
shape arithmetic is gone before the converter that needs it runs. The other methods are shorthands over `emit`: operands
may be Python numbers, which take the dtype of the other operand, and operations that change nothing emit nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tilestitch.compiler.ir import (
    Graph,
    IRError,
    Kind,
    TensorType,
    Type,
    TypeRuleError,
    Value,
    infer_types,
    kind_of,
    reference,
)
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import Size, as_size, bounds_of, is_open, largest
from tilestitch.compiler.ir.types import is_float, to_numpy_dtype

from .errors import NotStatic
from .sizes import computed
from .symbols import sized, unsized

FLOAT16_MAX = 65504
FOLD_LIMIT_BYTES = 16 << 20
"""Most bytes of a folded result, unless it is at most twice its operands; larger ones (a scalar broadcast, a long iota)
stay lazy.
"""

Operand: TypeAlias = "Value | int | float | bool"


class Builder:
    """Builder that appends nodes to `graph`, all with the provenance `origins` (names of ONNX nodes)."""

    def __init__(self, graph: Graph, origins: Iterable[str] = ()) -> None:
        self.graph = graph
        self.origins = tuple(origins)

    # -- the base ------------------------------------------------------------------------------------------

    def emit(self, op: str, *values: Value, **attrs: Any) -> Value:
        """Emit primitive `op` and return its one output; a constant if all operands are.

        Raises TypeRuleError, or NotStatic when the rank of an operand is unknown.
        """
        return self.emit_many(op, values, attrs)[0]

    def emit_many(
        self, op: str, values: Sequence[Value], attrs: Mapping[str, Any], types: Sequence[Type] | None = None
    ) -> tuple[Value, ...]:
        """Emit `op` and return all outputs. Host and control operators state their output `types`; they are never
        folded here.
        """
        types = None if types is None else self._sized(op, attrs, types)
        try:
            out_types = infer_types(op, [v.type for v in values], attrs, types)
        except TypeRuleError as error:
            vague = [v for v in values if not isinstance(v.type, TensorType)]
            if vague:
                raise NotStatic(f"{op} needs tensors of known rank, but {vague[0]!r}") from error
            raise
        folded = self._folded(op, values, attrs) if types is None and self._may_fold(op, values, out_types) else None
        if folded is not None:
            return folded
        sizes = computed(op, values, attrs) if types is None else None
        if sizes is not None:
            return (self.sizes(sizes, out_types[0]),)
        return self.graph.add(op, values, attrs, origins=self.origins, types=types).outputs

    def _sized(self, op: str, attrs: Mapping[str, Any], types: Sequence[Type]) -> list[Type]:
        """Return output types with symbols for the sizes that only a run can tell, including those within nested
        graphs.
        """
        inner = [symbol for graph in attrs.values() if isinstance(graph, Graph) for symbol in graph.symbols]
        hint = f"{self.origins[-1] if self.origins else op}"
        outside = [unsized(type_, inner) for type_ in types]
        return [sized(type_, f"{hint}_{number}") for number, type_ in enumerate(outside)]

    def sizes(self, elements: np.ndarray, type_: Type) -> Value:
        """Return a tensor of sizes, or computed from sizes; a constant where all of it is known."""
        assert isinstance(type_, TensorType)
        flat = tuple(elements.reshape(-1).tolist())
        if not any(is_open(element) for element in flat):
            return self.constant(np.array(flat, to_numpy_dtype(type_.dtype)).reshape(elements.shape), name="sizes")
        return self.graph.emit(
            "sizes", origins=self.origins, values=flat, shape=tuple(elements.shape), dtype=type_.dtype
        )

    def size(self, size: Size, dtype: str = "int64") -> Value:
        """Return a size as a scalar."""
        return self.sizes(np.array(size, object), TensorType(dtype, ()))

    def host(
        self, name: str, values: Sequence[Value], types: Sequence[Type], *, fold: bool = False, **attrs: Any
    ) -> tuple[Value, ...]:
        """Emit a `host.<name>` step with stated output types. `fold` evaluates it now if every operand is a
        constant.
        """
        folded = self._folded("host." + name, values, attrs) if fold and all(v.is_constant for v in values) else None
        return self.emit_many("host." + name, values, attrs, types) if folded is None else folded

    def _may_fold(self, op: str, values: Sequence[Value], out_types: Sequence[Type]) -> bool:
        if kind_of(op) in (Kind.HOST, Kind.CONTROL) or not all(v.is_constant for v in values):
            return False
        if not all(isinstance(t, TensorType) and t.is_static for t in out_types):
            return False
        size = sum(t.nbytes for t in out_types if isinstance(t, TensorType))
        return size <= max(FOLD_LIMIT_BYTES, 2 * sum(v.tensor_type.nbytes for v in values))

    def _folded(self, op: str, values: Sequence[Value], attrs: Mapping[str, Any]) -> tuple[Value, ...] | None:
        """Return the results, or None if there are none (an index out of range): the error then occurs at run time, if
        at all.
        """
        from tilestitch.runtime.host import HostError

        try:
            with np.errstate(all="ignore"):
                results = reference(op)([v.data for v in values], attrs)
        except HostError:
            return None
        hint = op.split(".")[-1]
        return tuple(self.graph.constant(np.asarray(r), name=hint) for r in results)

    def constant(self, data: Any, dtype: str | None = None, name: str = "c") -> Value:
        """Return a constant of anything numpy accepts."""
        return self.graph.constant(data, dtype, name)

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Value:
        return self.broadcast_to(self.constant(value, dtype), shape)

    def none(self) -> Value:
        """Return the absent optional operand of host and control operators."""
        from tilestitch.compiler.ir import OptionalType

        return self.host("none", (), [OptionalType(None)])[0]

    # -- what is known at compile time -----------------------------------------------------------------------

    def shape(self, value: Value) -> tuple[int, ...]:
        """Return the shape; NotStatic if the rank or a dimension is known only at run time."""
        if not isinstance(value.type, TensorType):
            raise NotStatic(f"%{value.name} has type {value.type}: its rank is known only at run time")
        if not value.type.is_sized:
            raise NotStatic(f"%{value.name} has shape {value.type}: a dimension is known only at run time")
        return value.type.sizes

    def rank(self, value: Value) -> int:
        if not isinstance(value.type, TensorType):
            raise NotStatic(f"%{value.name} has type {value.type}: its rank is known only at run time")
        return value.type.rank

    def dim(self, value: Value, axis: int) -> int:
        """Return one dimension; NotStatic if it is known only at run time."""
        self.rank(value)
        size = value.tensor_type.shape[axis]
        if isinstance(size, str):
            raise NotStatic(f"dimension {axis} of %{value.name} ({value.type}) is known only at run time")
        return size

    def axis(self, value: Value, axis: int) -> int:
        """Return `axis` counted from the front; IRError if it is out of range."""
        return normalize_axis(axis, self.rank(value))

    def array_of(self, value: Value) -> np.ndarray:
        """Return the data of a constant; NotStatic for anything else."""
        if value.data is None:
            raise NotStatic(f"%{value.name} must be a constant at compile time, but it is computed at run time")
        return value.data

    # -- element-wise ----------------------------------------------------------------------------------------

    def _operands(self, a: Operand, b: Operand) -> tuple[Value, Value]:
        if isinstance(a, Value):
            return a, b if isinstance(b, Value) else self.like(b, a)
        if not isinstance(b, Value):
            raise IRError("one of two operands must be a value")
        return self.like(a, b), b

    def like(self, number: float, value: Value) -> Value:
        """Return a scalar constant of the dtype of `value`; infinite if the number is out of its range."""
        with np.errstate(over="ignore"):
            return self.constant(np.asarray(number).astype(to_numpy_dtype(dtype_of(value))))

    def add(self, a: Operand, b: Operand) -> Value:
        return self.emit("add", *self._operands(a, b))

    def sub(self, a: Operand, b: Operand) -> Value:
        return self.emit("sub", *self._operands(a, b))

    def mul(self, a: Operand, b: Operand) -> Value:
        return self.emit("mul", *self._operands(a, b))

    def div(self, a: Operand, b: Operand) -> Value:
        return self.emit("div", *self._operands(a, b))

    def pow(self, a: Operand, b: Operand) -> Value:
        return self.emit("pow", *self._operands(a, b))

    def maximum(self, a: Operand, b: Operand) -> Value:
        return self.emit("maximum", *self._operands(a, b))

    def minimum(self, a: Operand, b: Operand) -> Value:
        return self.emit("minimum", *self._operands(a, b))

    def equal(self, a: Operand, b: Operand) -> Value:
        return self.emit("equal", *self._operands(a, b))

    def less(self, a: Operand, b: Operand) -> Value:
        return self.emit("less", *self._operands(a, b))

    def less_equal(self, a: Operand, b: Operand) -> Value:
        return self.emit("less_equal", *self._operands(a, b))

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        return self.emit("select", condition, *self._operands(a, b))

    def cast(self, value: Value, dtype: str) -> Value:
        return value if dtype_of(value) == dtype else self.emit("cast", value, to=dtype)

    def sigmoid(self, x: Value) -> Value:
        return self.div(1.0, self.add(self.emit("exp", self.emit("neg", x)), 1.0))

    def clamp(self, x: Value, low: Operand, high: Operand) -> Value:
        return self.minimum(self.maximum(x, low), high)

    # -- shapes ----------------------------------------------------------------------------------------------

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Return the reshaped value; -1 has the same meaning as in numpy."""
        target = tuple(as_size(d) for d in shape)
        if isinstance(x.type, TensorType) and x.type.shape == target:
            return x
        return self.emit("reshape", x, shape=target)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = tuple(int(p) for p in perm)
        return x if perm == tuple(range(len(perm))) else self.emit("transpose", x, perm=perm)

    def swap_axes(self, x: Value, a: int, b: int) -> Value:
        perm = list(range(self.rank(x)))
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def broadcast_to(self, x: Value, shape: Sequence[int]) -> Value:
        target = tuple(as_size(d) for d in shape)
        if isinstance(x.type, TensorType) and x.type.shape == target:
            return x
        return self.emit("broadcast_to", x, shape=target)

    def expand_dims(self, x: Value, axes: Sequence[int]) -> Value:
        """Insert dimensions of one at the (normalised, output) positions `axes`."""
        source = list(self.symbolic_shape(x))
        for axis in sorted(axes):
            source.insert(axis, 1)
        return self._reshape_keeping(x, source)

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Drop the (normalised) dimensions `axes`, each of size one."""
        return self._reshape_keeping(x, [d for i, d in enumerate(self.symbolic_shape(x)) if i not in axes])

    def symbolic_shape(self, x: Value) -> tuple[int | str, ...]:
        self.rank(x)
        return x.tensor_type.shape

    def _reshape_keeping(self, x: Value, shape: Sequence[int | str]) -> Value:
        """Reshape with the only symbolic dimension, if any, kept by a -1."""
        symbols = [d for d in shape if isinstance(d, str)]
        if len(symbols) > 1:
            raise NotStatic(f"%{x.name} ({x.type}) has several dimensions that are known only at run time")
        if symbols and 0 in shape:
            raise NotStatic(f"%{x.name} ({x.type}) has no elements that tell its dimension {symbols[0]}")
        return self.reshape(x, [-1 if isinstance(d, str) else d for d in shape])

    def slice_axis(self, x: Value, axis: int, start: Size, stop: Size, step: int = 1) -> Value:
        """Return x[start:stop:step] along one axis; all bounds inside it."""
        shape = self.shape(x)
        if start == 0 and stop == shape[axis] and step == 1:
            return x
        size = largest(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))
        starts, steps, sizes = [0] * len(shape), [1] * len(shape), list(shape)
        starts[axis], steps[axis], sizes[axis] = start, step, size
        return self.emit("slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> tuple[Value, ...]:
        parts, start = [], 0
        for size in sizes:
            parts.append(self.slice_axis(x, axis, start, start + size))
            start += size
        return tuple(parts)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.emit("concat", *values, axis=axis)

    def pad(
        self, x: Value, before: Sequence[int], after: Sequence[int], mode: str = "constant", value: Value | None = None
    ) -> Value:
        if all(p == 0 for p in (*before, *after)):
            return x
        operands = (x,) if value is None else (x, value)
        return self.emit(
            "pad", *operands, before=tuple(map(as_size, before)), after=tuple(map(as_size, after)), mode=mode
        )

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        return self.emit("gather", x, indices, axis=axis)

    def iota(self, size: int, dtype: str = "int64") -> Value:
        return self.emit("iota", shape=(size,), axis=0, dtype=dtype)

    # -- reductions and matmuls --------------------------------------------------------------------------------

    def reduce(self, reducer: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """Reduce with `reducer` (sum, prod, max, min) over normalised `axes`; x itself if there are none."""
        axes = tuple(sorted(int(a) for a in axes))
        if not axes:
            return x
        return self.emit("reduce_" + reducer, x, axes=axes, keepdims=bool(keepdims))

    def mean(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """Return the mean over `axes`; integers divide towards zero, an empty mean of floats is NaN."""
        count = prod(self.dim(x, a) for a in axes)
        if x.dtype == "float16" and bounds_of(count)[1] > FLOAT16_MAX:  # infinite as a float16
            return self.cast(self.mean(self.cast(x, "float32"), axes, keepdims), x.dtype)
        total = self.reduce("sum", x, axes, keepdims)
        if is_open(count):
            return self.div(total, self.cast(self.size(count), total.dtype))
        if is_float(total.dtype) and count:
            return self.mul(total, 1.0 / count) if count & (count - 1) == 0 else self.div(total, float(count))
        return self.div(total, count)

    def matmul(
        self, a: Value, b: Value, *, trans_a: bool = False, trans_b: bool = False, out_dtype: str | None = None
    ) -> Value:
        attrs: dict[str, Any] = {}
        if trans_a:
            attrs["trans_a"] = True
        if trans_b:
            attrs["trans_b"] = True
        if out_dtype is not None and out_dtype != a.dtype:
            attrs["out_dtype"] = out_dtype
        return self.emit("matmul", *self._of_known_depth(a, b, trans_a, trans_b), **attrs)

    def _of_known_depth(self, a: Value, b: Value, trans_a: bool, trans_b: bool) -> tuple[Value, Value]:
        """Return the operands of a matmul. Where only one tells the number of products, the other is cut to it."""
        if not all(isinstance(value.type, TensorType) and value.type.is_sized and value.type.rank for value in (a, b)):
            return a, b
        rows, columns = a.tensor_type.rank, b.tensor_type.rank
        axes = rows - 2 if trans_a and rows > 1 else rows - 1, columns - 1 if trans_b or columns == 1 else columns - 2
        depths = self.shape(a)[axes[0]], self.shape(b)[axes[1]]
        return self.cut(a, axes[0], depths[1]), self.cut(b, axes[1], depths[0])

    def cut(self, x: Value, axis: int, size: Size | str) -> Value:
        """Return an operand cut to a known size that its open one along an axis is claimed to equal: kernels pack
        constant weights of known size.
        """
        own = x.tensor_type.shape[axis]
        if isinstance(own, str) or isinstance(size, str) or not is_open(own) or is_open(size):
            return x
        return self.slice_axis(x, axis, 0, size) if may_be_equal(own, size) else x


def dtype_of(value: Value) -> str:
    """Return the element dtype of a tensor of known or unknown rank; IRError for sequences and optionals."""
    dtype = getattr(value.type, "dtype", None)
    if dtype is None:
        raise IRError(f"%{value.name} has type {value.type}, where a tensor is needed")
    return str(dtype)


def normalize_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front; IRError if it is not in [-rank, rank)."""
    if not -rank <= axis < rank:
        raise IRError(f"axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis
