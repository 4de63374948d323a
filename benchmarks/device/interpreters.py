"""A graph of our IR as a function in numpy, jax.numpy or PyTorch: what compilers of others get for an exact comparison.

    function = graph_function(graph, namespace("jax"))
    outputs = function(inputs, weights)       # a list of arrays and a dict of them, by the names of constants

Small floats accumulate in float32, as everywhere. Control flow and host steps are `UnsupportedGraph`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Graph, Value
from tilestitch.runtime.host.blocks import dequantised

Attrs = Mapping[str, Any]
SMALL = ("float16", "bfloat16")


class UnsupportedGraph(Exception):
    """The graph has an operator that no interpreter knows."""


class Numpy:
    """The operations in numpy; the other namespaces differ in a few of them."""

    def __init__(self, xp: Any = np) -> None:
        self.xp = xp

    def dtype(self, name: str) -> Any:
        from tilestitch.runtime.dtypes import numpy_dtype

        return numpy_dtype(name)

    def array(self, data: np.ndarray) -> Any:
        return self.xp.asarray(data)

    def cast(self, x: Any, name: str) -> Any:
        return x.astype(self.dtype(name))

    def dtype_name(self, x: Any) -> str:
        return str(x.dtype)

    def transpose(self, x: Any, perm: Sequence[int]) -> Any:
        return self.xp.transpose(x, tuple(perm))

    def concat(self, xs: Sequence[Any], axis: int) -> Any:
        return self.xp.concatenate(list(xs), axis=axis)

    def arange(self, size: int, name: str) -> Any:
        return self.xp.arange(size).astype(self.dtype(name))

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        return self.xp.take(x, self.xp.where(indices < 0, indices + x.shape[axis], indices), axis=axis)

    def reduce(self, kind: str, x: Any, axes: Sequence[int], keepdims: bool) -> Any:
        return getattr(self.xp, kind)(x, axis=tuple(axes), keepdims=bool(keepdims))

    def pad(self, x: Any, widths: Sequence[tuple[int, int]], fill: Any) -> Any:
        return self.xp.pad(x, list(widths), constant_values=fill)

    def scalar(self, x: Any) -> Any:
        return x.reshape(())

    def flip_slice(self, x: Any, index: tuple[slice, ...]) -> Any:
        return x[index]

    def erf(self, x: Any) -> Any:
        from math import erf

        return np.vectorize(erf, otypes=[x.dtype])(x) if x.size else x

    def matmul(self, x: Any, y: Any) -> Any:
        return self.xp.matmul(x, y)

    def conv(self, x: Any, w: Any, attrs: Attrs) -> Any:
        """x[N,C,spatial..], w[O,C/g,k..], by one GEMM a kernel element."""
        return conv_by_taps(self, x, w, attrs)


class Jax(Numpy):
    """jax.numpy; sums and products that XLA has its own operations for are those."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        super().__init__(jnp)
        self.jax = jax

    def erf(self, x: Any) -> Any:
        return self.jax.scipy.special.erf(x)

    def conv(self, x: Any, w: Any, attrs: Attrs) -> Any:
        return self.jax.lax.conv_general_dilated(
            x, w, tuple(attrs["strides"]), list(zip(attrs["before"], attrs["after"])),
            rhs_dilation=tuple(attrs["dilations"]), feature_group_count=attrs["groups"],
        )  # fmt: skip


class Torch(Numpy):
    """PyTorch, whose names differ from numpy's here and there."""

    def __init__(self, device: str = "cpu") -> None:
        import torch

        super().__init__(torch)
        self.device = device

    def dtype(self, name: str) -> Any:
        return getattr(self.xp, name)

    def array(self, data: np.ndarray) -> Any:
        if data.dtype.name == "bfloat16":
            return self.xp.from_numpy(data.view(np.int16).copy()).view(self.xp.bfloat16).to(self.device)
        if data.dtype.name == "float8_e4m3fn":
            return self.xp.from_numpy(data.view(np.uint8).copy()).view(self.xp.float8_e4m3fn).to(self.device)
        return self.xp.from_numpy(np.array(data)).to(self.device)

    def cast(self, x: Any, name: str) -> Any:
        return x.to(self.dtype(name))

    def dtype_name(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def transpose(self, x: Any, perm: Sequence[int]) -> Any:
        return x.permute(tuple(perm))

    def concat(self, xs: Sequence[Any], axis: int) -> Any:
        return self.xp.cat(list(xs), dim=axis)

    def arange(self, size: int, name: str) -> Any:
        return self.xp.arange(size, device=self.device).to(self.dtype(name))

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        wrapped = self.xp.where(indices < 0, indices + x.shape[axis], indices).long()
        picked = x.index_select(axis, wrapped.reshape(-1))
        return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def reduce(self, kind: str, x: Any, axes: Sequence[int], keepdims: bool) -> Any:
        if kind == "prod":
            for axis in sorted(axes, reverse=True):
                x = self.xp.prod(x, dim=axis, keepdim=bool(keepdims))
            return x
        name = {"sum": "sum", "max": "amax", "min": "amin"}[kind]
        return getattr(self.xp, name)(x, dim=tuple(axes), keepdim=bool(keepdims)) if axes else x

    def pad(self, x: Any, widths: Sequence[tuple[int, int]], fill: Any) -> Any:
        flat = [amount for pair in reversed(list(widths)) for amount in pair]
        return self.xp.nn.functional.pad(x, flat, value=fill)

    def scalar(self, x: Any) -> Any:
        return x.reshape(()).item()

    def flip_slice(self, x: Any, index: tuple[slice, ...]) -> Any:
        backwards = [axis for axis, part in enumerate(index) if part.step is not None and part.step < 0]
        if not backwards:
            return x[index]
        forward = list(index)
        for axis in backwards:
            size, part = x.shape[axis], index[axis]
            stop = None if part.stop is None else size - 1 - part.stop
            forward[axis] = slice(size - 1 - part.start, stop, -part.step)
        return self.xp.flip(x, backwards)[tuple(forward)]

    def erf(self, x: Any) -> Any:
        return self.xp.erf(x)

    def matmul(self, x: Any, y: Any) -> Any:
        return self._in_floats(self.xp.matmul, x, y)

    def _in_floats(self, function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
        """On a GPU, PyTorch multiplies floats only; float64 is exact for the sums that int32 holds."""
        if x.is_floating_point():
            return function(x, y)
        return function(x.double(), y.double()).to(x.dtype)

    def conv(self, x: Any, w: Any, attrs: Attrs) -> Any:
        return self._in_floats(lambda x, w: self._conv(x, w, attrs), x, w)

    def _conv(self, x: Any, w: Any, attrs: Attrs) -> Any:
        widths = [(0, 0), (0, 0), *zip(attrs["before"], attrs["after"])]
        function = {1: "conv1d", 2: "conv2d", 3: "conv3d"}[x.ndim - 2]
        convolve = getattr(self.xp.nn.functional, function)
        strides, dilations = tuple(attrs["strides"]), tuple(attrs["dilations"])
        return convolve(self.pad(x, widths, 0), w, None, strides, 0, dilations, attrs["groups"])


def namespace(name: str, device: str = "cpu") -> Numpy:
    """`numpy`, `jax` or `torch` (on `device`)."""
    if name == "torch":
        return Torch(device)
    return Jax() if name == "jax" else Numpy()


Op = Callable[[Numpy, Sequence[Any], Attrs], Any]


def _wide(n: Numpy, x: Any) -> Any:
    return n.cast(x, "float32") if n.dtype_name(x) in SMALL else x


def _elementwise(name: str) -> Op:
    return lambda n, xs, a: getattr(n.xp, name)(*xs)


def _div(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x, y = xs
    if "int" not in n.dtype_name(x):
        return x / y
    safe = n.xp.where(y == 0, n.xp.ones_like(y), y)
    quotient = n.xp.abs(x) // n.xp.abs(safe) * n.xp.sign(x) * n.xp.sign(safe)
    return n.xp.where(y == 0, n.xp.zeros_like(y), quotient)


def _pow(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    return n.cast(n.xp.pow(xs[0], n.cast(xs[1], n.dtype_name(xs[0]))), n.dtype_name(xs[0]))


def _is_inf(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x = xs[0]
    inf = n.xp.isinf(x)
    return inf & ((x > 0) if a["positive"] else (x < 0)) if a["positive"] != a["negative"] else inf & a["positive"]


def _slice(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    index = []
    for start, step, size in zip(a["starts"], a["steps"], a["sizes"]):
        stop = start + step * size
        index.append(slice(0, 0) if size == 0 else slice(start, stop if stop >= 0 else None, step))
    return n.flip_slice(xs[0], tuple(index))


def _pad(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    if a["mode"] != "constant":
        raise UnsupportedGraph(f"pad of mode {a['mode']}")
    fill = n.scalar(xs[1]) if len(xs) > 1 else 0
    return n.pad(xs[0], list(zip(a["before"], a["after"])), fill)


def _iota(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    shape, axis = tuple(a["shape"]), a["axis"]
    line = n.arange(shape[axis], a["dtype"])
    return n.xp.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _gather_nd(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x, indices = xs
    if a["batch_dims"]:
        raise UnsupportedGraph("gather_nd with batch dimensions")
    depth = indices.shape[-1]
    flat, linear = x.reshape((-1, *x.shape[depth:])), 0
    for axis in range(depth):
        part = indices[..., axis]
        linear = linear * x.shape[axis] + n.xp.where(part < 0, part + x.shape[axis], part)
    return n.take(flat, linear, 0)


def _reduce(kind: str) -> Op:
    return lambda n, xs, a: n.cast(n.reduce(kind, _wide(n, xs[0]), a["axes"], a["keepdims"]), n.dtype_name(xs[0]))


def _matmul(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x, y = xs
    result = a.get("out_dtype") or n.dtype_name(x)
    if "int" in result:
        x, y = n.cast(x, result), n.cast(y, result)
    x = x.swapaxes(-1, -2) if a.get("trans_a") else x
    y = y.swapaxes(-1, -2) if a.get("trans_b") else y
    if n.xp is np:
        return n.cast(np.matmul(_wide(n, x), _wide(n, y)), result)
    return n.cast(n.matmul(x, y), result)


def _block_matmul(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x, w, *chosen = xs
    packed = np.asarray(w.cpu() if hasattr(w, "cpu") else w)
    matrices = [dequantised(matrix, a).T for matrix in (packed if chosen else [packed])]
    weights = n.array(np.stack(matrices) if chosen else matrices[0].copy())
    weights = n.take(weights, chosen[0], 0) if chosen else weights
    return _matmul(n, [x, n.cast(weights, n.dtype_name(x))], {"out_dtype": a.get("out_dtype")})


def _conv(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x, w = xs
    rank, kind = x.ndim, a.get("out_dtype") or n.dtype_name(x)
    if "int" in kind:
        x, w = n.cast(x, kind), n.cast(w, kind)
    if a["layout"] == "NXC":
        x = n.transpose(x, (0, rank - 1, *range(1, rank - 1)))
        w = n.transpose(w, (rank - 1, rank - 2, *range(rank - 2)))
    result = n.cast(n.conv(x, w, a), kind)
    return n.transpose(result, (0, *range(2, rank), 1)) if a["layout"] == "NXC" else result


def conv_by_taps(n: Numpy, x: Any, w: Any, a: Attrs) -> Any:
    groups, strides, dilations = a["groups"], a["strides"], a["dilations"]
    x = n.pad(_wide(n, x), [(0, 0), (0, 0), *zip(a["before"], a["after"])], 0)
    outputs, channels, *kernel = w.shape
    sizes = [(s - (k - 1) * d - 1) // t + 1 for s, k, d, t in zip(x.shape[2:], kernel, dilations, strides)]
    weight = _wide(n, w).reshape((groups, outputs // groups, channels, *kernel))
    result: Any = 0
    for offset in itertools.product(*[range(k) for k in kernel]):
        spans = zip(offset, dilations, sizes, strides)
        place = (..., *[slice(o * d, o * d + (s - 1) * t + 1, t) for o, d, s, t in spans])
        taken = x[place]
        columns = taken.reshape((x.shape[0], groups, channels, -1))
        tap = (..., *offset)
        result = result + n.matmul(weight[tap], columns)
    return n.cast(result.reshape((x.shape[0], outputs, *sizes)), n.dtype_name(w))


def _window_reduce(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    x, rank = _wide(n, xs[0]), xs[0].ndim
    if a["layout"] == "NXC":
        x = n.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    is_sum = a["reducer"] == "sum"
    identity = 0 if is_sum else -np.inf if "float" in n.dtype_name(x) else np.iinfo(n.dtype_name(x)).min
    x = n.pad(x, [(0, 0), (0, 0), *zip(a["before"], a["after"])], identity)
    windows = zip(x.shape[2:], a["kernel"], a["dilations"], a["strides"])
    sizes = [(s - (k - 1) * d - 1) // t + 1 for s, k, d, t in windows]
    result: Any = None
    for offset in itertools.product(*[range(k) for k in a["kernel"]]):
        spans = zip(offset, a["dilations"], sizes, a["strides"])
        place = (..., *[slice(o * d, o * d + (s - 1) * t + 1, t) for o, d, s, t in spans])
        taken = x[place]
        result = taken if result is None else result + taken if is_sum else n.xp.maximum(result, taken)
    result = n.cast(result, n.dtype_name(xs[0]))
    return n.transpose(result, (0, *range(2, rank), 1)) if a["layout"] == "NXC" else result


def _cumulative(n: Numpy, xs: Sequence[Any], a: Attrs) -> Any:
    if a["exclusive"] or a["reverse"] or a["reducer"] != "sum":
        raise UnsupportedGraph("running products, and exclusive or reverse running sums")
    return n.cast(n.xp.cumsum(_wide(n, xs[0]), a["axis"]), n.dtype_name(xs[0]))


_SAME = (
    "abs sign floor ceil trunc sqrt exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh maximum "
    "minimum fmod logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor "
    "bitwise_not"
)
_RENAMED = {name: f"arc{name[1:]}" for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}

OPS: Mapping[str, Op] = {
    **{name: _elementwise(_RENAMED.get(name, name)) for name in _SAME.split()},
    "equal": lambda n, xs, a: xs[0] == xs[1],
    "less": lambda n, xs, a: xs[0] < xs[1],
    "less_equal": lambda n, xs, a: xs[0] <= xs[1],
    "neg": lambda n, xs, a: -xs[0],
    "add": lambda n, xs, a: xs[0] + xs[1],
    "sub": lambda n, xs, a: xs[0] - xs[1],
    "mul": lambda n, xs, a: xs[0] * xs[1],
    "div": _div,
    "mod": lambda n, xs, a: n.xp.remainder(*xs),
    "pow": _pow,
    "round": _elementwise("round"),
    "erf": lambda n, xs, a: n.cast(n.erf(_wide(n, xs[0])), n.dtype_name(xs[0])),
    "is_nan": _elementwise("isnan"),
    "is_inf": _is_inf,
    "cast": lambda n, xs, a: n.cast(xs[0], a["to"]),
    "select": _elementwise("where"),
    "reshape": lambda n, xs, a: xs[0].reshape(tuple(a["shape"])),
    "transpose": lambda n, xs, a: n.transpose(xs[0], a["perm"]),
    "broadcast_to": lambda n, xs, a: n.xp.broadcast_to(xs[0], tuple(a["shape"])),
    "slice": _slice,
    "concat": lambda n, xs, a: n.concat(xs, a["axis"]),
    "pad": _pad,
    "iota": _iota,
    "gather": lambda n, xs, a: n.take(xs[0], xs[1], a["axis"]),
    "gather_nd": _gather_nd,
    "reduce_sum": _reduce("sum"),
    "reduce_prod": _reduce("prod"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "matmul": _matmul,
    "block_matmul": _block_matmul,
    "conv": _conv,
    "window_reduce": _window_reduce,
    "cumulative": _cumulative,
}


def unsupported(graph: Graph) -> list[str]:
    """The graph's operators that no interpreter knows."""
    return sorted({node.op for node in graph.nodes} - set(OPS))


def graph_function(graph: Graph, n: Numpy) -> Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]:
    """The graph as a function of its inputs in order and of its constants by name (`graph_constants`).

    Raises `UnsupportedGraph` for a graph with other operators than `OPS`.
    """
    missing = unsupported(graph)
    if missing:
        raise UnsupportedGraph(f"the graph has {', '.join(missing)}")

    def run(inputs: Sequence[Any], weights: Mapping[str, Any]) -> list[Any]:
        values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))

        def read(value: Value) -> Any:
            return weights[value.name] if value.is_constant else values[value]

        for node in graph.nodes:
            values[node.outputs[0]] = OPS[node.op](n, [read(value) for value in node.inputs], node.attrs)
        return [read(value) for value in graph.outputs]

    return run


def graph_constants(graph: Graph) -> dict[str, np.ndarray]:
    """The graph's constants by name."""
    return {value.name: value.data for value in graph.constants if value.data is not None}
