"""Operators for language models without a growing cache, against ONNX Runtime. CPU time, one thread.

    taskset -c 1 python -m benchmarks.linear_attention [--rounds N] [-o OUT.json]

LinearAttention in its four rules, 16 heads of 128 by 128, and CausalConvWithState of 2,048 channels and four taps, for
one token and for several: those of ONNX (opset 27), which ONNX Runtime runs by their definition, and its own of
com.microsoft, for which it has kernels. Both run by turns; the least eighth of the times counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from benchmarks.turns import RESULTS, cpu_microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

RULES = ("linear", "gated", "delta", "gated_delta")
TOKENS = (1, 64)
DOMAINS = ("", "com.microsoft")
HEADS, SIZE, CHANNELS, TAPS = 16, 128, 2048, 4

Feeds = Mapping[str, np.ndarray]


def attention(rule: str, tokens: int, domain: str) -> tuple[ModelProto, Feeds]:
    """Keys are as long as a normalised one, decays are logarithms of at most 1, rates are from 0 to 1."""
    random, shape = np.random.default_rng(0), (1, tokens, HEADS * SIZE)
    feeds = {
        "query": random.standard_normal(shape),
        "key": random.standard_normal(shape) * SIZE**-0.5,
        "value": random.standard_normal(shape),
        "past": random.standard_normal((1, HEADS, SIZE, SIZE)),
    }
    if rule.startswith("gated"):
        feeds["decay"] = -np.abs(random.standard_normal((1, tokens, HEADS)))
    if rule.endswith("delta"):
        feeds["beta"] = random.uniform(0, 1, (1, tokens, HEADS))
    names = [name if name in feeds else "" for name in ("query", "key", "value", "past", "decay", "beta")]
    attrs = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "update_rule": rule}
    results = {"output": shape, "present": (1, HEADS, SIZE, SIZE)}
    return _model("LinearAttention", names, feeds, results, domain, **attrs)


def convolution(tokens: int, domain: str) -> tuple[ModelProto, Feeds]:
    random, shape, state = np.random.default_rng(0), (1, CHANNELS, tokens), (1, CHANNELS, TAPS - 1)
    feeds = {
        "x": random.standard_normal(shape),
        "weight": random.standard_normal((CHANNELS, 1, TAPS)),
        "bias": random.standard_normal(CHANNELS),
        "past": random.standard_normal(state),
    }
    return _model("CausalConvWithState", list(feeds), feeds, {"y": shape, "present": state}, domain, activation="silu")


def _model(
    op: str, names: list[str], feeds: Feeds, results: Mapping[str, tuple[int, ...]], domain: str, **attrs: Any
) -> tuple[ModelProto, Feeds]:
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}

    def described(name: str, shape: tuple[int, ...]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node(op, names, list(results), domain=domain, **attrs)], op,
        [described(name, array.shape) for name, array in feeds.items()],
        [described(name, shape) for name, shape in results.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 27), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=13), feeds


def measure(name: str, tokens: int, model: ModelProto, feeds: Feeds, rounds: int) -> dict[str, Any]:
    module, session = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1), onnxruntime_session(model, 1)
    found, reference = list(module.run(feeds).values()), session.run(None, feeds)
    us = cpu_microseconds({"ours": lambda: module.run(feeds), "theirs": lambda: session.run(None, feeds)}, rounds)
    return {
        "operator": name, "tokens": tokens, "us": round(us["ours"], 1), "onnxruntime_us": round(us["theirs"], 1),
        "onnxruntime/us": round(us["theirs"] / us["ours"], 2),
        "error": max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, reference, strict=True)),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear_attention", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "linear_attention.json", metavar="OUT.json")
    options = parser.parse_args(arguments)
    models: dict[tuple[str, int], tuple[ModelProto, Feeds]] = {}
    for domain, tokens in product(DOMAINS, TOKENS):
        prefix = f"{domain}." if domain else ""
        models |= {(f"{prefix}LinearAttention, {rule}", tokens): attention(rule, tokens, domain) for rule in RULES}
        models[f"{prefix}CausalConvWithState", tokens] = convolution(tokens, domain)
    results = []
    for (name, tokens), (model, feeds) in models.items():
        results.append(measure(name, tokens, model, feeds, options.rounds))
        print(results[-1], flush=True)
    write_results("linear_attention", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
