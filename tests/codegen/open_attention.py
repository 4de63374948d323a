"""Attention of open sizes, compiled once, and its reference in float64."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from onnx import TensorProto, helper

from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, load

HEADS, SHARED = 4, 2
KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@lru_cache
def model(width: int, columns: int, dtype: str = "float32", mask: str = "") -> Module:
    """Attention of open sizes, with a mask of bools, of floats, or none."""
    kind = KINDS[dtype]
    named = [
        ("q", kind, ["b", HEADS, "s", width]), ("k", kind, ["b", SHARED, "t", width]),
        ("v", kind, ["b", SHARED, "t", columns]),
    ]  # fmt: skip
    if mask:
        named.append(("mask", TensorProto.BOOL if mask == "bool" else kind, ["b", 1, "s", "t"]))
    node = helper.make_node("Attention", [name for name, *_ in named], ["y"])
    inputs = [helper.make_tensor_value_info(*each) for each in named]
    output = helper.make_tensor_value_info("y", kind, ["b", HEADS, "s", columns])
    graph = helper.make_graph([node], "g", inputs, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1)


def feeds_of(module: Module, rows: int, keys: int) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(0), {}
    for value in module.inputs:
        shape = [{"b": 2, "s": rows, "t": keys}.get(str(size), size) for size in value.shape]
        if value.dtype == "bool":
            found[value.name] = rng.random(shape) < 0.5
        else:
            found[value.name] = rng.standard_normal(shape).astype(value.dtype)
    return found


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, HEADS // SHARED, axis=1) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    return np.where(np.isnan(weights), 0, weights) @ v  # rows without a key are 0


def check(module: Module, feeds: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(module.run(feeds)["y"], expected(**feeds), rtol=tolerance, atol=tolerance)
