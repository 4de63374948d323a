"""Operators at sizes that fill a GPU: what they move and compute, and what PyTorch calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
MEBIBYTE = 1 << 20
LARGE_BYTES = 256 * MEBIBYTE
"""Of every tensor of the element-wise and row-wise operators: several times the L2 cache."""

COLUMNS = (1024, 8192)
LENGTHS = (2048, 4096, 8192)
HEADS, HEAD_WIDTH = 16, 128
CACHED = (4096, 32768)
DECODED_HEADS, CACHED_HEADS = 32, 8
GEMV = (4096, 11008)
ROWS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Size:
    """One operator on tensors of one type. inputs, weights: shapes by name. flops: as usually counted."""

    operator: str
    dtype: str
    inputs: Mapping[str, tuple[int, ...]]
    output: tuple[int, ...]
    weights: Mapping[str, tuple[int, ...]]
    flops: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """What tells it from others: of decoding, the shape of the cache."""
        return self.inputs["k" if "decode" in self.operator else "x"]

    @property
    def name(self) -> str:
        return f"{self.operator}_{'x'.join(map(str, self.shape))}.{self.dtype}"

    @property
    def symbols(self) -> Mapping[str, int]:
        """Names and values of the dimensions that are open: the numbers of queries and of keys."""
        return {"s": self.output[2], "t": self.shape[2]} if self.operator.startswith("open") else {}

    def declared(self, shape: tuple[int, ...]) -> tuple[int | str, ...]:
        """The shape, with names in the place of open dimensions."""
        names = {value: name for name, value in self.symbols.items()}
        return tuple(names.get(extent, extent) if axis == 2 else extent for axis, extent in enumerate(shape))

    @property
    def moved_bytes(self) -> int:
        """Each input and weight read once, the output written once."""
        shapes = (*self.inputs.values(), *self.weights.values(), self.output)
        return ITEMSIZE[self.dtype] * sum(map(prod, shapes))

    def rates(self, us: float) -> dict[str, float]:
        """What a time means: bandwidth, and arithmetic rate where that counts."""
        found = {"GB_per_s": self.moved_bytes / us / 1e3}
        return found | ({"TFLOP_per_s": self.flops / us / 1e6} if self.flops else {})


def _large(operator: str, dtype: str, columns: int) -> Size:
    shape = (LARGE_BYTES // ITEMSIZE[dtype] // columns, columns)
    line = (columns,)
    inputs = {"x": shape, "r": shape} if operator == "add" else {"x": shape}
    weights = {"layer_norm": {"g": line, "b": line}, "bias_gelu": {"b": line}}.get(operator, {})
    return Size(operator, dtype, inputs, shape, weights)


def _attention(operator: str, dtype: str, length: int) -> Size:
    shape = (1, HEADS, length, HEAD_WIDTH)
    flops = 4 * HEADS * length**2 * HEAD_WIDTH
    inputs = dict.fromkeys(("x", "k", "v"), shape)
    return Size(operator, dtype, inputs, shape, {}, flops // 2 if operator == "causal_attention" else flops)


def _decode(operator: str, length: int) -> Size:
    """One query of every head, several of which share keys."""
    query, cache = (1, DECODED_HEADS, 1, HEAD_WIDTH), (1, CACHED_HEADS, length, HEAD_WIDTH)
    inputs = {"x": query, "k": cache, "v": cache}
    return Size(operator, "float16", inputs, query, {}, 4 * DECODED_HEADS * length * HEAD_WIDTH)


def _gemv(dtype: str, rows: int) -> Size:
    depth, width = GEMV
    return Size("gemv", dtype, {"x": (rows, depth)}, (rows, width), {"w": GEMV}, 2 * rows * depth * width)


SIZES = (
    *(_large(op, dtype, COLUMNS[0]) for dtype in ITEMSIZE for op in ("add", "bias_gelu")),
    *(_large(op, dtype, columns) for dtype in ITEMSIZE for op in ("softmax", "layer_norm") for columns in COLUMNS),
    *(_gemv("float16", rows) for rows in ROWS),
    *(_gemv(dtype, 1) for dtype in ("float32", "bfloat16")),
    *(_attention("attention", dtype, length) for dtype in ("float16", "bfloat16") for length in LENGTHS),
    *(_attention("causal_attention", "float16", length) for length in LENGTHS),
    _attention("attention", "float32", LENGTHS[0]),
    *(_decode(operator, length) for operator in ("decode", "open_decode") for length in CACHED),
)
BY_NAME = {size.name: size for size in SIZES}


def in_torch(size: Size) -> Callable[..., Any]:
    """The operator as a function of its inputs and weights, in their order."""
    import torch

    f = torch.nn.functional
    functions: dict[str, Callable[..., Any]] = {
        "add": torch.add,
        "bias_gelu": lambda x, b: f.gelu(x + b),
        "softmax": lambda x: f.softmax(x, -1),
        "layer_norm": lambda x, g, b: f.layer_norm(x, x.shape[-1:], g, b),
        "gemv": torch.matmul,
        "attention": f.scaled_dot_product_attention,
        "decode": partial(f.scaled_dot_product_attention, enable_gqa=True),
        "open_decode": partial(f.scaled_dot_product_attention, enable_gqa=True),
        "causal_attention": lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    return functions[size.operator]
