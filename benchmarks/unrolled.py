"""Recurrences of few turns, unrolled and as loops, and with ONNX Runtime: CPU time of one thread, in turns.

python -m benchmarks.unrolled [--rounds N] [--write]
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from benchmarks.turns import cpu_microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.passes.rewrite import unroll
from tilestitch.runtime import Module, load

HEAD = '<ir_version: 9, opset_import: ["" : 20]> g '
COUNTED = "<int64 n = {%d}, bool yes = {1}>"
GATED = """c = Concat<axis = 1>(p, e)  g = MatMul(c, w)  r = Sigmoid(g)  z0 = MatMul(c, v)  z = Sigmoid(z0)
    rp = Mul(r, p)  c2 = Concat<axis = 1>(rp, e)  k0 = MatMul(c2, u)  k = Tanh(k0)
    d = Sub(k, p)  dz = Mul(d, z)  q = Add(p, dz)  o = Identity(q)"""


def scan(body: str, turns: int, rows: str, width: int) -> str:
    one = f"float[{rows}, {width}]"
    all_turns = f"float[{turns}, {rows}, {width}]"
    return f"""{HEAD} ({all_turns} x, {one} s) => ({one} last, {all_turns} all) {{ last, all = Scan(s, x)
        <num_scan_inputs = 1, body = b ({one} p, {one} e) => ({one} q, {one} o) {{ {body} }}> }}"""


def loop(turns: int, width: int) -> str:
    one = f"float[2, {width}]"
    return f"""{HEAD} (float[2, {turns}, {width}] x, {one} s) => ({one} last, float[{turns}, 2, {width}] all)
        {COUNTED % turns} {{
        last, all = Loop(n, yes, s) <body = b (int64 i, bool go, {one} p) => (bool on, {one} q, {one} o) {{
            on = Identity(go)  e = Gather<axis = 1>(x, i)  f = MatMul(e, v)  m = MatMul(p, w)
            a = Add(m, f)  q = Tanh(a)  o = Sigmoid(q) }}> }}"""


def power(turns: int, width: int) -> str:
    return f"""{HEAD} (float[{width}, {width}] x, float[{width}, 1] s) => (float[{width}, 1] last)
        {COUNTED % turns} {{
        last = Loop(n, yes, s) <body = b (int64 i, bool go, float[{width}, 1] p) => (bool on, float[{width}, 1] q) {{
            on = Identity(go)  a = MatMul(x, p)  t = Abs(a)  r = ReduceSum(t)  q = Div(a, r) }}> }}"""


def cases(turns: int) -> dict[str, tuple[str, dict[str, tuple[int, ...]]]]:
    """ONNX text of models by name, and shapes of their inputs and weights."""
    plain, smooth = "m = MatMul(p, w)  a = Add(m, e)  q = Tanh(a)  o = Identity(q)", "h = Mul(p, p)  a = Add(h, e)"
    x, s = (turns, 4, 128), (4, 128)
    shapes = {"x": x, "s": s, "w": (128, 128)}
    return {
        "rnn 128": (scan(plain, turns, "4", 128), shapes),
        "rnn 128, open batch": (scan(plain, turns, "b", 128), shapes),
        "two matmuls 16": (loop(turns, 16), {"x": (2, turns, 16), "s": (2, 16), "w": (16, 16), "v": (16, 16)}),
        "gated 64": (
            scan(GATED, turns, "1", 64),
            {"x": (turns, 1, 64), "s": (1, 64), **dict.fromkeys("wvu", (128, 64))},
        ),
        "power iteration 32": (power(turns, 32), {"x": (32, 32), "s": (32, 1)}),
        "element-wise 256": (
            scan(f"{smooth}  q = Tanh(a)  o = Mul(q, e)", turns, "1", 256),
            {"x": (turns, 1, 256), "s": (1, 256)},
        ),
    }


def compiled(model: ModelProto, most: int) -> tuple[Module, float]:
    """Ready to run, and CPU seconds of compiling, where turns may have `most` nodes together."""
    with patch.object(unroll, "MOST_NODES", most):
        start = time.process_time()
        artifact = compile_model(model, num_threads=1, cache=False).to_bytes()
        return load(artifact, num_threads=1), time.process_time() - start


def measure(name: str, turns: int, rounds: int) -> dict[str, Any]:
    text, shapes = cases(turns)[name]
    random = np.random.default_rng(0)
    arrays = {key: random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32) for key, shape in shapes.items()}
    model = parser.parse_model(text)
    weights = set(shapes) - {"x", "s"}
    model.graph.initializer.extend(numpy_helper.from_array(arrays[key], key) for key in sorted(weights))
    feeds = {"x": arrays["x"], "s": arrays["s"]}
    session = onnxruntime_session(model, 1)
    (looped, loop_s), (unrolled, unrolled_s) = compiled(model, 0), compiled(model, 1 << 20)
    for actual, wanted in zip(unrolled.run(feeds).values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    ways = {
        "loop": lambda: looped.run(feeds),
        "unrolled": lambda: unrolled.run(feeds),
        "onnxruntime": lambda: session.run(None, feeds),
    }
    times = {key: round(value, 1) for key, value in cpu_microseconds(ways, rounds).items()}
    seconds = {"loop_compile_s": round(loop_s, 2), "unrolled_compile_s": round(unrolled_s, 2)}
    return {"model": name, "turns": turns, "nodes": turns * _nodes(model), **times, **seconds}


def _nodes(model: ModelProto) -> int:
    """Of one turn, as they come to be: those that only hand on are none."""
    (body,) = [attribute.g for node in model.graph.node for attribute in node.attribute if attribute.name == "body"]
    return sum(node.op_type != "Identity" for node in body.node)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=400)
    options.add_argument("--write", action="store_true")
    chosen = options.parse_args()
    compiled(parser.parse_model(power(2, 4)), 0)  # imports
    results = []
    for turns in (4, 8, 16, 32):
        for name in cases(turns):
            results.append(measure(name, turns, chosen.rounds))
            print(results[-1], flush=True)
    if chosen.write:
        write_results("unrolled", results)


if __name__ == "__main__":
    main()
