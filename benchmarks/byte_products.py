"""Matmuls of two quantised operands that are known at run time only, beside ONNX Runtime: CPU time, one thread.

    taskset -c 1 python -m benchmarks.byte_products [--rounds N] [-o OUT.json]

Each is a model of its own. They run by turns; the least eighth of the times counts. Outputs are compared with those of
unoptimised ONNX Runtime.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.turns import RESULTS, cpu_microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

SHAPES = (((12, 128, 64), (12, 64, 128)), ((12, 128, 128), (12, 128, 64)), ((256, 256), (256, 256)))
OPERANDS = (("uint8", 120, "uint8", 131), ("int8", 0, "int8", 0), ("uint8", 128, "int8", 0), ("uint8", 0, "int8", 0))
"""Dtype and zero point of each."""
FORMS = ("MatMulInteger", "QLinearMatMul", "QDQ")
TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}


def model_of(form: str, operands: tuple[str, int, str, int], shapes: tuple[tuple[int, ...], ...]) -> ModelProto:
    left, of_left, right, of_right = operands
    constants = {
        "za": np.asarray(of_left, left), "zb": np.asarray(of_right, right), "sa": np.float32(0.02),
        "sb": np.float32(0.03), "sy": np.float32(0.4), "zy": np.uint8(120),
    }  # fmt: skip
    if form == "MatMulInteger":
        nodes = [helper.make_node(form, ["a", "b", "za", "zb"], ["y"])]
    elif form == "QLinearMatMul":
        nodes = [helper.make_node(form, ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"], ["y"])]
    else:
        nodes = [helper.make_node("DequantizeLinear", [x, f"s{x}", f"z{x}"], [f"{x}f"]) for x in "ab"]
        nodes.append(helper.make_node("MatMul", ["af", "bf"], ["yf"]))
        nodes.append(helper.make_node("QuantizeLinear", ["yf", "sy", "zy"], ["y"]))
    given = [
        helper.make_tensor_value_info(name, TYPES[dtype], shape)
        for name, dtype, shape in zip("ab", (left, right), shapes, strict=True)
    ]
    made = "int32" if form == "MatMulInteger" else "uint8"
    result = helper.make_tensor_value_info("y", TYPES[made], (*shapes[0][:-1], shapes[1][-1]))
    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "product", given, [result], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(form: str, operands: tuple[str, int, str, int], shapes: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    model, random = model_of(form, operands, shapes), np.random.default_rng(0)
    feeds = {
        name: random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
        for name, dtype, shape in zip("ab", operands[::2], shapes, strict=True)
    }
    module = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    sessions = {optimised: onnxruntime_session(model, 1, optimised) for optimised in (True, False)}
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: module.run(feeds)["y"], "onnxruntime": lambda: sessions[True].run(None, feeds)[0],
    }  # fmt: skip
    us = cpu_microseconds(ways, rounds)
    steps = np.abs(ways["ours"]().astype(np.int64) - sessions[False].run(None, feeds)[0]).max()
    return {
        "form": form, "operands": operands, "shapes": shapes,
        **{f"{name}_us": round(each, 1) for name, each in us.items()},
        "onnxruntime/ours": round(us["onnxruntime"] / us["ours"], 2), "steps_off": int(steps),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.byte_products", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "byte_products.json", metavar="OUT.json")
    options = parser.parse_args(arguments)
    results = []
    for form, operands, shapes in itertools.product(FORMS, OPERANDS, SHAPES):
        if form == "QLinearMatMul" and operands[0] == "int8":
            continue  # ONNX Runtime has no such kernel
        results.append(measure(form, operands, shapes, options.rounds))
        print(results[-1], flush=True)
    write_results("byte_products", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
