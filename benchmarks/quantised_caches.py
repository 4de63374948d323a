"""Attention of decoders over caches of float32, 8-bit and 4-bit codes, against ONNX Runtime.

    python -m benchmarks.quantised_caches [--rounds N]

One node of GroupQueryAttention with 32 heads of 128 elements, 8 of keys and values: a step of one token, and one of 64,
after which the cache holds `TOKENS`. One thread, CPU time, in turns. The number of cached tokens is a constant. Errors
are the largest ones against ONNX Runtime over its largest result; the codes of new tokens are equal, or it fails.
Results go to benchmarks/results/quantised_caches.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.quantised import least_ms, relative_error
from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

HEADS, KV_HEADS, DEPTH, TOKENS = 32, 8, 128, 1024
ROWS = (1, 64)
FORMS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "float32": (TensorProto.FLOAT, DEPTH, {}),
    "8 bits": (TensorProto.INT8, DEPTH, {"kv_cache_bit_width": 8}),
    "4 bits": (TensorProto.UINT8, DEPTH // 2, {"kv_cache_bit_width": 4}),
}
"""ONNX type and elements a head of a cache, and attributes."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised_caches", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, metavar="N")
    options = parser.parse_args(arguments)
    rows = [
        {"cache": form, "new_tokens": count, **_measured(_model(form, count), options.rounds)}
        for count in ROWS
        for form in FORMS
    ]
    print(table([list(row.values()) for row in rows], list(rows[0])))
    print(write_results("quantised_caches", rows))
    return 0


def _model(form: str, count: int) -> ModelProto:
    """The node, for `count` new tokens of one sequence."""
    type_, depth, attrs = FORMS[form]
    sizes = {"query": HEADS, "key": KV_HEADS, "value": KV_HEADS}
    new = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, count, h * DEPTH)) for n, h in sizes.items()]
    before, after = (1, KV_HEADS, TOKENS - count, depth), (1, KV_HEADS, TOKENS, depth)
    past = [helper.make_tensor_value_info(f"past_{name}", type_, before) for name in ("key", "value")]
    present = [helper.make_tensor_value_info(f"present_{name}", type_, after) for name in ("key", "value")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, count, HEADS * DEPTH))
    stored: dict[str, np.ndarray] = {"last": np.array([TOKENS - 1], np.int32), "total": np.array(TOKENS, np.int32)}
    operands = [v.name for v in (*new, *past)] + list(stored)
    if attrs:
        attrs = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", **attrs}
        stored["scale"] = np.linspace(2, 4, KV_HEADS * DEPTH, dtype=np.float32) / (
            1 << (attrs["kv_cache_bit_width"] - 1)
        )
        operands += [""] * 5 + ["scale", "scale"]
    node = helper.make_node(
        "GroupQueryAttention", operands, [v.name for v in (result, *present)], domain="com.microsoft", num_heads=HEADS,
        kv_num_heads=KV_HEADS, **attrs,
    )  # fmt: skip
    constants = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph([node], "attention", [*new, *past], [result, *present], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _feeds(inputs: Any) -> Mapping[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        i.name: random.standard_normal(i.shape).astype(np.float32)
        if i.type == "tensor(float)"
        else random.integers(0, 256, i.shape).astype(np.uint8).view(np.int8 if i.type == "tensor(int8)" else np.uint8)
        for i in inputs
    }


def _measured(model: ModelProto, rounds: int) -> dict[str, Any]:
    rival = onnxruntime_session(model, 1)
    feeds = _feeds(rival.get_inputs())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "attention.tsm")
        compile_model(model, num_threads=1).save(path)
        with load(path, num_threads=1) as ours:
            found, wanted = list(ours.run(feeds).values()), rival.run(None, feeds)
            for got, want in zip(found[1:], wanted[1:], strict=True):
                np.testing.assert_array_equal(got, want)
            least = least_ms({"ours": lambda: ours.run(feeds), "onnxruntime": lambda: rival.run(None, feeds)}, rounds)
    return {
        "ours_ms": round(least["ours"], 3), "onnxruntime_ms": round(least["onnxruntime"], 3),
        "against_onnxruntime": round(least["onnxruntime"] / least["ours"], 2),
        "relative_error": relative_error(found[0], wanted[0]),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
