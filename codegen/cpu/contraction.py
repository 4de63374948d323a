"""Contraction groups: joins the templates of matrix products and convolutions with a group's prologue and epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, from_storage, storage_dtype
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import forward_index, ravel, unravel
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.fusion.roles import Part, Roles

from . import reducers
from .abi import KernelLaunch, PackedArg, Parameter, buffer_source, kernel_function, store
from .conv import emit_conv, plan_conv
from .conv_transpose import ConvTransposeShape, emit_conv_transpose, plan_conv_transpose
from .gemm import GemmShape, emit_gemm, plan_gemm
from .geometry import ConvShape
from .isa import Isa
from .panels import LoadedOperand, Operand, PackedOperand, Packing, pack
from .window import emit_window, plan_window

Matrix = Callable[[np.ndarray], np.ndarray]
"""Gives a constant right operand as [groups, k, n]."""


@dataclass(frozen=True)
class Operands:
    """A contraction group as its template sees it: operands of the anchor and what is computed around it."""

    nodes: tuple[Node, ...]
    roles: Roles
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    isa: Isa
    threads: int

    @property
    def anchor(self) -> Node:
        assert self.roles.anchor is not None
        return self.roles.anchor

    @property
    def right(self) -> Value:
        return self.anchor.inputs[1]

    @property
    def result(self) -> Value:
        return self.anchor.outputs[0]

    def is_plain(self, value: Value) -> bool:
        """Whether an operand is read from memory as it is, without a prologue."""
        return value in self.inputs

    @property
    def has_long_epilogue(self) -> bool:
        return any(n.op in _LONG for n, part in self.roles.parts.items() if part is Part.EPILOGUE)

    @property
    def packs_right(self) -> bool:
        return len(self.anchor.inputs) > 1 and self.right.data is not None

    @property
    def acc_dtype(self) -> str:
        return compute_dtype(self.result.dtype)

    def launch(
        self, kind: str, tasks: int, scratch_bytes: int, packing: Packing | None, matrix: Matrix, emit: Emit
    ) -> KernelLaunch:
        """The launch whose task is `emit(body, task, scratch)`; `packing` is the layout of a constant right operand."""
        right = self.right if packing is not None else None
        # A packed operand may also be read as it is, by the epilogue: then it is an argument twice.
        read_plainly = {v for n in self.nodes for i, v in enumerate(n.inputs) if not (n is self.anchor and i == 1)}
        plain = tuple(v for v in self.inputs if v is not right or v in read_plainly)
        parameters = [Parameter.of(v.name, v.tensor_type) for v in (*plain, *self.outputs)]
        if right is not None and packing is not None:
            arranged = PackedArg(right.name, f"{kind}:{packing}", lambda data: pack(matrix(data), packing))
            parameters.append(Parameter(arranged, right.dtype, math.prod(packing.shape)))

        def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
            around = Surroundings(self, plain, buffers, packing)
            emit(around, task, scratch)

        func = kernel_function(parameters, body)
        origins = tuple(dict.fromkeys(o for node in self.nodes for o in node.origins))
        return KernelLaunch(kind, func, tasks, tuple(p.arg for p in parameters), origins, scratch_bytes)


Emit = Callable[["Surroundings", Expr, Expr], None]

_LONG = frozenset(
    ["exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"]
    + ["erf", "pow", "mod", "fmod"]
)
"""Operators whose code is so long that repeating it for every register of a tile is not worth it."""


class Surroundings:
    """What lies around the anchor inside one kernel: reading its operands, and storing what follows from its result."""

    def __init__(self, group: Operands, plain: Sequence[Value], buffers: list[Any], packing: Packing | None) -> None:
        self.group = group
        self.evaluator = Evaluator({}, "int64")
        simplify = self.evaluator.simplify
        self.flat = dict(zip(plain, buffers, strict=False))
        self.evaluator.sources.update({v: buffer_source(b, v.tensor_type, simplify) for v, b in self.flat.items()})
        self.stores = list(zip(group.outputs, buffers[len(plain) :], strict=False))
        self.packed: Any = None
        if packing is not None:
            dtype = storage_dtype(packing.dtype)
            self.packed = T.decl_buffer(packing.shape, dtype, data=buffers[-1].data)

    def load(self, value: Value, index: Sequence[Expr]) -> Expr:
        """An element of an operand, in its compute dtype."""
        if value in self.flat:
            shape = value.shape
            index = tuple(0 if d == 1 else i for i, d in zip(index, shape, strict=True))
            return from_storage(self.flat[value][ravel(index, shape)], value.dtype)
        with self.evaluator.scope():
            return self.evaluator.value(value, tuple(index))

    def finish(self, index: Sequence[Expr], result: Expr) -> None:
        """Store every output of the group, given the anchor's result at `index`."""
        anchor = self.group.result
        with self.evaluator.scope():
            named = self.evaluator.bind(result)
            self.evaluator.sources[anchor] = lambda _: named
            for value, buffer in self.stores:
                source, place = self.behind_views(value, tuple(index))
                element = self.evaluator.value(source, tuple(index))
                store(buffer, value.tensor_type, place, element, self.evaluator.simplify)

    def behind_views(self, value: Value, index: tuple[Expr, ...]) -> tuple[Value, tuple[Expr, ...]]:
        """The value in front of the chain of views that makes `value`, and where the element at `index` goes."""
        views: list[Node] = []
        while value.producer is not None and self.group.roles.parts.get(value.producer) is Part.VIEW:
            views.append(value.producer)
            value = value.producer.inputs[0]
        place: tuple[Expr, ...] = index
        for view in reversed(views):
            place = forward_index(view, place, self.evaluator.simplify)
        return value, place


def lower_contraction(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa, threads: int
) -> KernelLaunch:
    """The launch of a contraction group; `outputs` are those that have elements."""
    group = Operands(tuple(nodes), roles, tuple(inputs), tuple(outputs), isa, threads)
    return {"matmul": _matmul, "conv": _conv, "conv_transpose": _conv_transpose}[group.anchor.op](group)


# -- matrix products -------------------------------------------------------------------------------------------------


def _matmul(group: Operands) -> KernelLaunch:
    left, right = group.anchor.inputs
    trans_a, trans_b = bool(group.anchor.attrs.get("trans_a")), bool(group.anchor.attrs.get("trans_b"))
    *batch, m, n = group.result.shape
    k = left.shape[-2] if trans_a else left.shape[-1]
    shared = math.prod(right.shape[:-2]) == 1
    # One right operand for all batch elements: their rows are rows of one product.
    rows = math.prod(batch) * m if shared else m
    shape = GemmShape(
        rows, n, k, 1 if shared else math.prod(batch), left.dtype, right.dtype, group.acc_dtype,
    )  # fmt: skip
    packs = group.packs_right and (shared or right.shape[:-2] == tuple(batch))
    plan = plan_gemm(
        shape,
        group.isa,
        threads=group.threads,
        b_packed=packs,
        a_plain=group.is_plain(left),
        a_contiguous="m" if trans_a else "k",
        long_epilogue=group.has_long_epilogue,
    )
    packing = plan.packing(shape.batch) if packs else None

    def matrix(data: np.ndarray) -> np.ndarray:
        swapped = np.swapaxes(data, -1, -2) if trans_b else data
        return swapped.reshape(shape.batch, k, n)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def place(batch_index: Expr, row: Expr) -> tuple[Expr, ...]:
            """Batch indices and row within the result."""
            if shared:
                return unravel(row, (*batch, m))
            return (*unravel(batch_index, batch), row)

        def operand(value: Value, transposed: bool, at: Sequence[Expr], row: Expr, column: Expr) -> Expr:
            lead = at[len(at) - (len(value.shape) - 2) :] if len(value.shape) > 2 else ()
            return around.load(value, (*lead, *((column, row) if transposed else (row, column))))

        def load_a(batch_index: Expr, row: Expr, column: Expr) -> Expr:
            if left in around.flat and shared and not trans_a and left.shape[:-2] == tuple(batch):
                return from_storage(around.flat[left][row * k + column], left.dtype)
            *lead, local = place(batch_index, row)
            return operand(left, trans_a, lead, local, column)

        def load_b(batch_index: Expr, row: Expr, column: Expr) -> Expr:
            lead = (0,) * len(batch) if shared else unravel(batch_index, batch)
            return operand(right, trans_b, lead, row, column)

        def epilogue(batch_index: Expr, row: Expr, column: Expr, value: Expr) -> None:
            around.finish((*place(batch_index, row), column), value)

        weights: Operand = LoadedOperand(load_b, "k" if trans_b else "n")
        if packing is not None:
            weights = PackedOperand(around.packed, (lambda b: 0) if shared else (lambda b: b))
        emit_gemm(plan, load_a, weights, epilogue, task, scratch)

    return group.launch("matmul", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


# -- convolutions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Where batch, spatial and channel axes stand: NXC (channels last) or NCX."""

    channels_last: bool

    def index(self, image: Expr, position: Sequence[Expr], channel: Expr) -> tuple[Expr, ...]:
        return (image, *position, channel) if self.channels_last else (image, channel, *position)

    def split(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...], int]:
        """Batch, spatial extents, channels."""
        batch, *rest = shape
        return (batch, tuple(rest[:-1]), rest[-1]) if self.channels_last else (batch, tuple(rest[1:]), rest[0])

    def kernel(self, weights: Sequence[int]) -> tuple[int, ...]:
        return tuple(weights[:-2] if self.channels_last else weights[2:])

    def weight_index(self, taps: Sequence[Expr], first: Expr, second: Expr) -> tuple[Expr, ...]:
        """`first`, `second`: (in, out) channels if channels are last for conv; the caller orders them."""
        return (*taps, first, second) if self.channels_last else (second, first, *taps)


def _layout(node: Node) -> _Layout:
    return _Layout(node.attrs["layout"] == "NXC")


def _conv_shape(group: Operands, layout: _Layout) -> ConvShape:
    x, w = group.anchor.inputs
    attrs = group.anchor.attrs
    batch, spatial, channels = layout.split(x.shape)
    out = layout.split(group.result.shape)[2]
    pads = tuple(zip(attrs["before"], attrs["after"], strict=True))
    return ConvShape(
        batch, channels, out, spatial, layout.kernel(w.shape), tuple(attrs["strides"]), tuple(attrs["dilations"]), pads,
        attrs["groups"], x.dtype, w.dtype, group.acc_dtype,
    )  # fmt: skip


def _conv(group: Operands) -> KernelLaunch:
    layout = _layout(group.anchor)
    shape = _conv_shape(group, layout)
    if shape.groups == shape.in_channels and shape.groups > 1:
        return _depthwise(group, layout, shape)
    x, w = group.anchor.inputs
    plan = plan_conv(
        shape,
        group.isa,
        threads=group.threads,
        w_packed=group.packs_right,
        x_plain=group.is_plain(x),
        channels_last=layout.channels_last,
        long_epilogue=group.has_long_epilogue,
    )
    packing = plan.packing if group.packs_right else None
    groups, taps = shape.groups, math.prod(shape.kernel)

    def matrix(data: np.ndarray) -> np.ndarray:
        if layout.channels_last:
            grouped = data.reshape(taps, shape.group_in, groups, shape.group_out).transpose(2, 0, 1, 3)
        else:
            grouped = data.reshape(groups, shape.group_out, shape.group_in, taps).transpose(0, 3, 2, 1)
        return np.ascontiguousarray(grouped).reshape(groups, taps * shape.group_in, shape.group_out)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def load_w(number: Expr, k: Expr, column: Expr) -> Expr:
            tap = unravel(k // shape.group_in, shape.kernel)
            out = number * shape.group_out + column
            return around.load(w, layout.weight_index(tap, k % shape.group_in, out))

        weights: Operand = LoadedOperand(load_w, "n" if layout.channels_last else "k")
        if packing is not None:
            weights = PackedOperand(around.packed, lambda number: number)
        emit_conv(
            plan,
            lambda image, position, channel: around.load(x, layout.index(image, position, channel)),
            weights,
            lambda image, position, channel, value: around.finish(layout.index(image, position, channel), value),
            task,
            scratch,
        )

    return group.launch("conv", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def _depthwise(group: Operands, layout: _Layout, shape: ConvShape) -> KernelLaunch:
    x, w = group.anchor.inputs
    plan = plan_window(shape, group.isa, threads=group.threads, channels_last=layout.channels_last)
    taps = math.prod(shape.kernel)
    packing = Packing(1, taps, shape.out_channels, shape.out_channels, w.dtype) if group.packs_right else None

    def matrix(data: np.ndarray) -> np.ndarray:
        flat = data.reshape(taps, -1) if layout.channels_last else data.reshape(shape.out_channels, taps).T
        return flat.reshape(1, taps, shape.out_channels)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        acc = shape.acc_dtype

        def widen(value: Expr, dtype: str) -> Expr:
            return value if compute_dtype(dtype) == acc else T.cast(value, acc)

        def weight(tap: Expr, channel: Expr) -> Expr:
            if packing is not None:
                return widen(from_storage(around.packed[0, 0, tap, channel], w.dtype), w.dtype)
            return widen(around.load(w, layout.weight_index(unravel(tap, shape.kernel), 0, channel)), w.dtype)

        emit_window(
            plan,
            lambda image, position, channel: widen(around.load(x, layout.index(image, position, channel)), x.dtype),
            T.cast(0, acc) if acc.startswith(("int", "uint")) else T.float64(0) if acc == "float64" else T.float32(0),
            lambda total, element, tap, channel: total + element * weight(tap, channel),
            lambda image, position, channel, value: around.finish(layout.index(image, position, channel), value),
            task,
        )

    return group.launch("depthwise", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def lower_window(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa, threads: int
) -> KernelLaunch:
    """The launch of a window_reduce group: pooling with its epilogue."""
    group = Operands(tuple(nodes), roles, tuple(inputs), tuple(outputs), isa, threads)
    x, attrs, layout = group.anchor.inputs[0], group.anchor.attrs, _layout(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    pads = tuple(zip(attrs["before"], attrs["after"], strict=True))
    shape = ConvShape(
        batch, channels, channels, spatial, tuple(attrs["kernel"]), tuple(attrs["strides"]), tuple(attrs["dilations"]),
        pads, channels, x.dtype, x.dtype, group.acc_dtype,
    )  # fmt: skip
    plan = plan_window(shape, group.isa, threads=threads, channels_last=layout.channels_last)
    reducer = attrs["reducer"]

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        emit_window(
            plan,
            lambda image, position, channel: around.load(x, layout.index(image, position, channel)),
            reducers.identity(reducer, shape.acc_dtype),
            lambda total, element, tap, channel: reducers.combine(reducer, shape.acc_dtype, total, element),
            lambda image, position, channel, value: around.finish(layout.index(image, position, channel), value),
            task,
        )

    return group.launch("window", plan.tasks, plan.scratch_bytes, None, lambda data: data, emit)


def _conv_transpose(group: Operands) -> KernelLaunch:
    x, w = group.anchor.inputs
    attrs, layout = group.anchor.attrs, _layout(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    _, output, out = layout.split(group.result.shape)
    shape = ConvTransposeShape(
        batch, channels, out, spatial, output, layout.kernel(w.shape), tuple(attrs["strides"]),
        tuple(attrs["dilations"]), tuple(attrs["before"]), attrs["groups"], x.dtype, w.dtype, group.acc_dtype,
    )  # fmt: skip
    plan = plan_conv_transpose(
        shape, group.isa, threads=group.threads, w_packed=group.packs_right, channels_last=layout.channels_last
    )
    packing = plan.packing if group.packs_right else None
    groups, taps = shape.groups, math.prod(shape.kernel)

    def matrix(data: np.ndarray) -> np.ndarray:
        if layout.channels_last:
            grouped = data.reshape(taps, groups, shape.group_in, shape.group_out).transpose(1, 0, 2, 3)
        else:
            grouped = data.reshape(groups, shape.group_in, shape.group_out, taps).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(grouped).reshape(groups, taps * shape.group_in, shape.group_out)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def load_w(number: Expr, k: Expr, column: Expr) -> Expr:
            tap, channel = unravel(k // shape.group_in, shape.kernel), number * shape.group_in + k % shape.group_in
            index = (*tap, channel, column) if layout.channels_last else (channel, column, *tap)
            return around.load(w, index)

        weights: Operand = LoadedOperand(load_w, "n" if layout.channels_last else "k")
        if packing is not None:
            weights = PackedOperand(around.packed, lambda number: number)
        emit_conv_transpose(
            plan,
            lambda image, position, channel: around.load(x, layout.index(image, position, channel)),
            weights,
            lambda image, position, channel, value: around.finish(layout.index(image, position, channel), value),
            task,
            scratch,
        )

    return group.launch("conv_transpose", plan.tasks, plan.scratch_bytes, packing, matrix, emit)
