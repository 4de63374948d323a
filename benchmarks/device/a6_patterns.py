"""A6: what PyTorch and JAX make of softmax, norms, GELU and attention, as achieved bandwidth.

Bytes are what must move: each input read once, each output written once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.device.case import LIMIT_S, LONG_S, Case, Setup
from benchmarks.device.peers import measured, runner

SIZES = ((128, 768), (1024, 1024), (8192, 1024), (8192, 8192), (65536, 1024))
ATTENTIONS = ((1, 12, 128, 64), (8, 12, 512, 64), (4, 16, 2048, 128))
DTYPES = ("float32", "bfloat16")


PATTERNS = ("softmax", "layer_norm", "bias_residual_layer_norm", "rms_norm", "gelu")


def functions(torch: Any) -> dict[str, Callable[..., Any]]:
    f = torch.nn.functional
    return {
        "softmax": lambda x, r, g, b: f.softmax(x, -1),
        "layer_norm": lambda x, r, g, b: f.layer_norm(x, x.shape[-1:], g, b),
        "bias_residual_layer_norm": lambda x, r, g, b: f.layer_norm(x + b + r, x.shape[-1:], g, b),
        "rms_norm": lambda x, r, g, b: f.rms_norm(x, x.shape[-1:], g),
        "gelu": lambda x, r, g, b: f.gelu(x + b),
    }


def jax_functions(jax: Any) -> dict[str, Callable[..., Any]]:
    np = jax.numpy

    def norm(x: Any, g: Any, b: Any) -> Any:
        wide = x.astype(np.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return (scaled * g + b).astype(x.dtype)

    def rms(x: Any, g: Any) -> Any:
        wide = x.astype(np.float32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * g).astype(x.dtype)

    return {
        "softmax": lambda x, r, g, b: jax.nn.softmax(x, -1),
        "layer_norm": lambda x, r, g, b: norm(x, g, b),
        "bias_residual_layer_norm": lambda x, r, g, b: norm(x + b + r, g, b),
        "rms_norm": lambda x, r, g, b: rms(x, g),
        "gelu": lambda x, r, g, b: jax.nn.gelu(x + b, approximate=False),
    }


def moved_bytes(pattern: str, rows: int, columns: int, itemsize: int) -> int:
    tensors = 3 if "residual" in pattern else 2
    return tensors * rows * columns * itemsize


def in_torch(pattern: str, shape: tuple[int, int], dtype: str, mode: str) -> dict[str, Any]:
    import torch

    kind = getattr(torch, dtype)
    x, r = (torch.randn(shape, device="cuda", dtype=kind) for _ in range(2))
    g, b = (torch.randn(shape[1], device="cuda", dtype=kind) for _ in range(2))
    result = measured(runner(functions(torch)[pattern], (x, r, g, b), mode))
    torch._dynamo.reset()
    return {**result, "GB_per_s": moved_bytes(pattern, *shape, kind.itemsize) / result["us"] / 1e3}


def in_jax(pattern: str, shape: tuple[int, int], dtype: str) -> dict[str, Any]:
    """Wall clock of calls queued back to back, a call: XLA has no events to record between its launches."""
    import jax

    keys = jax.random.split(jax.random.key(0), 4)
    kind = jax.numpy.dtype(dtype)
    x, r = (jax.random.normal(key, shape, kind) for key in keys[:2])
    g, b = (jax.random.normal(key, shape[1:], kind) for key in keys[2:])
    us = queued_us(jax.jit(jax_functions(jax)[pattern]), (x, r, g, b))
    return {"us": us, "GB_per_s": moved_bytes(pattern, *shape, kind.itemsize) / us / 1e3}


def queued_us(function: Callable[..., Any], operands: Sequence[Any], calls: int = 50, repeats: int = 7) -> float:
    """The median over `repeats` of the wall time of `calls` queued calls of a JAX function, a call."""
    import jax

    jax.block_until_ready(function(*operands))
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(calls):
            result = function(*operands)
        jax.block_until_ready(result)
        times.append((time.perf_counter_ns() - start) / 1e3 / calls)
    return statistics.median(times)


def attention(shape: tuple[int, int, int, int], dtype: str, mode: str) -> dict[str, Any]:
    import torch

    q, k, v = (torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for _ in range(3))
    result = measured(runner(torch.nn.functional.scaled_dot_product_attention, (q, k, v), mode))
    batch, heads, length, width = shape
    torch._dynamo.reset()
    return {**result, "TFLOP_per_s": 4 * batch * heads * length**2 * width / result["us"] / 1e6}


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for mode in ("graph", "compile"):
        for key, shape in _patterns(f"torch {mode}"):
            run = partial(in_torch, key["pattern"], shape, key["dtype"], mode)
            yield Case(part, key, run, LONG_S if mode == "compile" else LIMIT_S, ("torch",))
        for dtype in DTYPES if mode == "graph" else ():
            for sizes in ATTENTIONS:
                key = {"pattern": "attention", "shape": list(sizes), "dtype": dtype, "by": "torch graph"}
                yield Case(part, key, partial(attention, sizes, dtype, mode), needs=("torch",))
    for key, shape in _patterns("jax"):
        yield Case(part, key, partial(in_jax, key["pattern"], shape, key["dtype"]), needs=("jax",))


def _patterns(by: str) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
    for dtype in DTYPES:
        for shape in SIZES:
            for pattern in PATTERNS:
                yield {"pattern": pattern, "shape": list(shape), "dtype": dtype, "by": by}, shape
