"""Ranks that depend on sizes: an If that drops a dimension of size 1, as exporters write `x.squeeze(1)`."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.ir.claims import Claim, allowed
from tilestitch.compiler.ir.sizes import Symbol, size_of
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError, InputError

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
SQUEEZED = """
    shape = Shape(c)
    last = Gather(shape, two)
    is_one = Equal(last, one)
    s = If(is_one) <
        then_branch = then () => (float[b, 8] dropped) { dropped = Squeeze(c, two) },
        else_branch = other () => (float[b, 8, l] kept) { kept = Identity(c) }>
"""
CONSTANTS = {"one": np.array([1]), "two": np.array([2])}


def model(text: str, **constants: Any) -> ModelProto:
    made = parser.parse_model(HEAD + text)
    constants = {**CONSTANTS, **constants}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return made


def test_a_dimension_is_dropped_where_the_rest_fits_only_then() -> None:
    random = np.random.default_rng(0)
    k, w = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 1, 5), (8, 3)))
    text = (
        """(float[b, t] x) => (float[b, 3] y) <int64[1] axis = {1}> {
        u = Unsqueeze(x, axis)
        c = Conv<strides=[4]>(u, k)"""
        + SQUEEZED
        + "y = Gemm(s, w) }"
    )
    proto = model(text, k=k, w=w)
    compiled = compile_model(proto, num_threads=1)
    sizes = {s["name"]: (s["low"], s["high"]) for s in compiled.explain()["sizes"]["symbols"]}
    assert (sizes["t"], compiled.explain()["host"]["steps"]) == ((5, 8), 0)  # of which the convolution makes one frame
    reference = rivals.CHECKERS["onnxruntime"](proto)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for batch, samples in product((1, 3), (5, 7, 8)):
            x = random.standard_normal((batch, samples)).astype(np.float32)
            assert_close(module.run({"x": x})["y"], reference({"x": x})[0], MODELS["float32"])
        with pytest.raises(InputError, match="t, which must be from 5 to 8"):
            module.run({"x": np.zeros((1, 9), np.float32)})


def test_sizes_for_both_ranks_are_served() -> None:
    text = "(float[b, 8, t] x) => (float y) { c = Neg(x)" + SQUEEZED + "y = BatchNormalization(s, k, k, k, k) }"
    proto = model(text, k=np.arange(1, 9, dtype=np.float32))
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    compiled = compile_model(proto, num_threads=1)
    assert [s.explanation["host"]["steps"] for s in compiled.specialisations][:2] == [0, 0]
    reference = rivals.CHECKERS["onnxruntime"](proto)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for batch, size in product((1, 2, 7), (1, 2, 3, 5)):
            x = np.random.default_rng(size).standard_normal((batch, 8, size)).astype(np.float32)
            assert_close(module.run({"x": x})["y"], reference({"x": x})[0], MODELS["float32"])


@pytest.mark.parametrize("negated", [False, True])
def test_a_branch_that_fits_one_rank_serves_the_sizes_of_that_rank(negated: bool) -> None:
    """In a branch, a claim says nothing of the runs that take the other one."""
    squeezed = SQUEEZED
    if negated:
        squeezed = squeezed.replace("is_one = Equal(last, one)", "e = Equal(last, one) is_one = Not(e)")
        squeezed = squeezed.replace("then_branch", "swap").replace("else_branch", "then_branch")
        squeezed = squeezed.replace("swap", "else_branch")
    text = (
        """(float[b, 8, t] x, bool some) => (float[b, 3] y) <int64[1] axis = {2}> {
        y = If(some) <
            then_branch = yes () => (float[b, 3] narrow) { c = Neg(x) """
        + squeezed
        + """narrow = Gemm(s, w) },
            else_branch = no () => (float[b, 3] wide) {
                m = ReduceMean<axes=[2], keepdims=0>(x)
                wide = Gemm(m, w)
            }>
        }"""
    )
    w = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    proto = model(text, w=w)
    compiled = compile_model(proto, num_threads=1)
    assert compiled.explain()["host"]["steps"] == 1  # the If itself
    reference = rivals.CHECKERS["onnxruntime"](proto)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for size, some in ((1, True), (1, False), (2, False), (5, False)):
            x = np.random.default_rng(size).standard_normal((3, 8, size)).astype(np.float32)
            feeds = {"x": x, "some": np.array(some)}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
        with pytest.raises(ExecutionError, match=r"\(If\): .*t.* for b=3, t=2"):
            module.run({"x": np.zeros((3, 8, 2), np.float32), "some": np.array(True)})


T = size_of(Symbol("t", 1, 2**31 - 1))


@pytest.mark.parametrize(
    ("size", "exact", "low", "high"),
    [
        ((T + 320) // 512 - 1, True, 192, 703), (T * T - 9, True, 3, 3), (7 - T, False, 1, 7),
        (T // 3 - 4, False, 12, 2**31 - 1), (T + 1, True, 1, 2**31 - 1), (T - T // 2 - 4, True, 7, 8),
    ],
)  # fmt: skip
def test_a_claim_leaves_a_range_of_sizes(size: Any, exact: bool, low: int, high: int) -> None:
    found = allowed(Symbol("t", 1, 2**31 - 1), Claim(size, exact))
    assert (found.low, found.high) == (low, high)


def test_weights_in_a_branch_tell_a_size_of_which_the_other_branch_says_nothing() -> None:
    text = """(float[b, 8, t] x, bool some) => (float[b, n, 3] y) {
        y = If(some) <
            then_branch = yes () => (float[b, 8, 3] narrow) { c = Exp(x) narrow = MatMul(c, w) },
            else_branch = no () => (float[b, 1, 3] wide) {
                m = ReduceMean<axes=[2], keepdims=0>(x)
                a = MatMul(m, w)
                wide = Unsqueeze(a, one)
            }>
        }"""
    proto = model(text, w=np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32))
    compiled = compile_model(proto, num_threads=1)
    assert compiled.explain()["host"]["steps"] == 1  # the If itself
    reference = rivals.CHECKERS["onnxruntime"](proto)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for size, some in ((8, True), (1, False), (7, False), (8, False)):
            x = np.random.default_rng(size).standard_normal((3, 8, size)).astype(np.float32)
            feeds = {"x": x, "some": np.array(some)}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
        with pytest.raises(ExecutionError, match="t - 8 must be 0"):
            module.run({"x": np.zeros((3, 8, 9), np.float32), "some": np.array(True)})
