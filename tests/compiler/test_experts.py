"""Mixtures of experts as compiled for CPUs: matrices are chosen by index, and stay packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.compiled import run_graph
from tests.frontend.checks import assert_close, floats
from tests.frontend.microsoft.checks import run_ort
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

HIDDEN, INNER = 64, 96
ACTIVATION = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "swiglu_limit": 7.0}


def experts(
    sizes: tuple[Any, ...], count: int = 6, best: int = 2, bits: int = 4, block: int = 32, zeros: bool = False,
    hidden: int = HIDDEN, inner: int = INNER, **attributes: Any,
) -> ModelProto:  # fmt: skip
    """A router and QMoE over x[*sizes, hidden]; `block` 0 for one scale a column."""
    rng, stored = np.random.default_rng(0), [("router", 2 * floats(hidden, count, seed=1))]

    def layer(name: str, width: int, depth: int) -> None:
        shape = (count, width, -(-depth // block)) if block else (count, width)
        stored.append((name, rng.integers(0, 256, (count, width, depth * bits // 8)).astype(np.uint8)))
        stored.append((f"{name}_scales", rng.uniform(0.001, 0.02, shape).astype(np.float32)))
        stored.append((f"{name}_bias", floats(count, width, seed=2)))
        points = rng.integers(0, 256, (*shape[:-1], -(-shape[-1] * bits // 8))).astype(np.uint8)
        stored.extend([(f"{name}_zeros", points)] if zeros else [])

    layer("first", 2 * inner, hidden)
    layer("second", hidden, inner)
    operands = ["x", "probs", "first", "first_scales", "first_bias", "second", "second_scales", "second_bias"]
    operands += ["", "", "", *(["first_zeros", "second_zeros"] if zeros else [])]
    attrs = {"k": best, "expert_weight_bits": bits, "normalize_routing_weights": 1, **ACTIVATION, **attributes}
    if block:
        attrs["block_size"] = block
    flat = numpy_helper.from_array(np.array([-1, count]), "flat")
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["logits"]),
        helper.make_node("Reshape", ["logits", "flat"], ["probs"]),
        helper.make_node("QMoE", operands, ["y"], domain="com.microsoft", **attrs),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "experts", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*sizes, hidden])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*sizes, hidden])],
        [*(numpy_helper.from_array(array, name) for name, array in stored), flat],
    )  # fmt: skip
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("zeros", [False, True])
def test_any_number_of_tokens(bits: int, block: int, zeros: bool) -> None:
    """Few, whose experts are computed one by one, many, whose experts share them, and none."""
    model = experts(("tokens",), bits=bits, block=block, zeros=zeros)
    loaded = load(compile_model(model, num_threads=2, host_steps=False).to_bytes())
    for tokens in (1, 2, 6, 7, 40, 0):
        x = floats(tokens, HIDDEN, seed=tokens)
        found = loaded.run({"x": x})["y"]
        if not tokens:
            assert found.shape == x.shape
        elif bits == 8 and block:  # ONNX Runtime's kernel rounds tokens to 8 bits, too
            assert_close(found, evaluate(import_model(model, {"x": x.shape}).graph, {"x": x})[0])
        else:
            assert_close(found, run_ort(model, {"x": x})[0])


@pytest.mark.parametrize(("count", "best"), [(1, 1), (3, 3), (32, 4)])
def test_experts_and_the_best_of_them(count: int, best: int) -> None:
    model = experts(("batch", "length"), count, best)
    loaded = load(compile_model(model, num_threads=1).to_bytes())
    for batch, length in ((1, 1), (5, 1), (1, 23), (3, 17)):
        x = floats(batch, length, HIDDEN, seed=length)
        assert_close(loaded.run({"x": x})["y"], run_ort(model, {"x": x})[0])


@pytest.mark.parametrize("tokens", [3, 40])
def test_nan_stays_with_its_token(tokens: int) -> None:
    model = experts((tokens,))
    loaded = load(compile_model(model, num_threads=1).to_bytes())
    x = floats(tokens, HIDDEN)
    wanted = loaded.run({"x": x})["y"]
    x[1, 5] = np.nan
    found = loaded.run({"x": x})["y"]
    assert np.isnan(found[1]).all()
    assert_close(np.delete(found, 1, 0), np.delete(wanted, 1, 0))


def test_weights_stay_packed_once_for_few_and_many_tokens() -> None:
    model = experts(("tokens",), count=512)
    compiled = compile_model(model, num_threads=1)
    assert len(compiled.specialisations) > 1
    assert len(compiled.to_bytes()) < model.ByteSize() + 250_000


def chosen(codes: str, zeros: bool, width: int, rows: int, batch: int) -> tuple[Graph, dict[str, np.ndarray]]:
    rng, form = np.random.default_rng(0), BlockFormat(codes, 32, "float32", zeros, 80)
    data = form.encode(rng.integers(0, 256, (3 * width, 80)).astype(np.uint8), *pairs(form, rng, 3 * width))
    graph = Graph("chosen")
    x = graph.add_input("x", TensorType("float32", (batch, rows, 80)))
    indices = graph.add_input("indices", TensorType("int64", (batch,)))
    w = graph.constant(data.reshape(3, width, form.blocks, form.block_bytes))
    graph.outputs = [graph.emit("block_matmul", x, w, indices, **form.attrs)]
    return graph, {"x": floats(batch, rows, 80), "indices": rng.integers(-3, 3, batch)}


def pairs(form: BlockFormat, rng: np.random.Generator, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    scales = rng.uniform(0.01, 0.1, (width, form.blocks)).astype(np.float32)
    return scales, rng.integers(0, 16, scales.shape).astype(np.uint8) if form.zeros else None


@pytest.mark.parametrize("codes", ["int4", "int8"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("width", "rows", "batch"), [(50, 1, 5), (32, 8, 4), (7, 3, 1)])
def test_matrices_chosen_by_index(codes: str, zeros: bool, width: int, rows: int, batch: int) -> None:
    graph, feeds = chosen(codes, zeros, width, rows, batch)
    (y,) = run_graph(graph, feeds)
    assert_close(y, evaluate(graph, feeds)[0])


def test_an_index_out_of_range_is_named() -> None:
    graph, feeds = chosen("int4", False, 32, 1, 4)
    feeds["indices"][2] = 3
    with pytest.raises(ExecutionError, match="3"):
        run_graph(graph, feeds)


@pytest.mark.parametrize(("tokens", "matrices"), [(1, 2), (8, 16)])
def test_the_bytes_that_are_read_are_those_of_the_chosen_matrices(tokens: int, matrices: int) -> None:
    (compiled,) = compile_model(experts((tokens,), count=32), num_threads=1).specialisations
    kernels = compiled.explanation["kernels"]
    read = [kernel["bytes_read"] for kernel in kernels if kernel["name"].startswith("block_matmul")]
    sizes = [2 * INNER * (HIDDEN // 32) * (16 + 4), HIDDEN * (INNER // 32) * (16 + 4)]
    for found, size in zip(read, sizes, strict=True):
        assert matrices * size <= found < 2 * matrices * size
