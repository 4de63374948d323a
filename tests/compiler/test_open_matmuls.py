"""Matmuls and attention whose rows, columns and steps are all of open size: compiled once, right at every size."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.compiled import assert_close
from tests.compiler.test_open_kernels import HEAD, inputs
from tests.tolerances import MODELS
from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.passes.plan.cpu.schedules import CpuAttentionSchedule
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")

SIZES = [(1, 1, 1, 1), (2, 3, 5, 7), (1, 16, 16, 16), (3, 17, 33, 49), (2, 48, 47, 96), (2, 200, 1, 31), (1, 1, 300, 1),
         (1, 400, 129, 100)]  # fmt: skip
"""Of b, s, t and u: ones, whole vectors and panels, and one more or less."""
MATMULS = {
    "scores": "(float[b, s, 24] x, float[b, t, 24] w) => (float[b, s, t] y)\n"
    "{ v = Transpose<perm=[0, 2, 1]>(w)  y = MatMul(x, v) }",
    "weighed": "(float[b, s, t] x, float[b, t, 20] w) => (float[b, s, 20] y) { y = MatMul(x, w) }",
    "long_epilogue": "(float[b, s, 24] x, float[b, 24, t] w) => (float[b, s, t] y) { m = MatMul(x, w)  y = Erf(m) }",
    "all": "(float[s, t] x, float[t, u] w) => (float[s, u] y) { y = MatMul(x, w) }",
    "prologues": "(float[b, s, t] x, float[b, t, u] w) => (float[b, s, u] y)\n"
    "{ a = Sin(x)  c = Abs(w)  m = MatMul(a, c)  y = Relu(m) }",
    "half": "(float16[b, s, t] x, float16[b, t, u] w) => (float16[b, s, u] y) { y = MatMul(x, w) }",
    "left_transposed": "(float[b, t, s] x, float[b, t, u] w) => (float[b, s, u] y)\n"
    "{ v = Transpose<perm=[0, 2, 1]>(x)  y = MatMul(v, w) }",
    "known_left": "(float[b, 24, t] x, float[7, 24] w) => (float[b, 7, t] y) { y = MatMul(w, x) }",
    "columns_of_one": "(float[b, s, t] x, float[b, t, 1] w) => (float[b, s, 1] y) { y = MatMul(x, w) }",
    "row_of_one": "(float[b, 1, t] x, float[b, t, u] w) => (float[b, 1, u] y) { y = MatMul(x, w) }",
    "row_by_rows": "(float[b, 1, t] x, float[b, u, t] w) => (float[b, 1, u] y)\n"
    "{ v = Transpose<perm=[0, 2, 1]>(w)  y = MatMul(x, v) }",
}
QUERY = "float[b, 4, s, 16] q, float[b, 4, t, 16] k, float[b, 4, t, 16] v"
ATTENTION = {
    "plain": f"({QUERY}) => (float[b, 4, s, 16] y)\n"
    "{ kt = Transpose<perm=[0, 1, 3, 2]>(k)  m = MatMul(q, kt)  p = Softmax<axis=-1>(m)  y = MatMul(p, v) }",
    "masked": f"({QUERY}, float[b, 1, s, t] w) => (float[b, 4, s, 16] y)\n"
    "{ kt = Transpose<perm=[0, 1, 3, 2]>(k)  m = MatMul(q, kt)  a = Add(m, w)  p = Softmax<axis=-1>(a)\n"
    "y = MatMul(p, v) }",
    "heads_apart": "(float[b, s, 64] q, float[b, t, 64] k, float[b, t, 64] v) => (float[b, s, 64] y)\n"
    "<int64[4] apart = {0, 0, 4, 16}, int64[3] together = {0, 0, 64}> {\n"
    "q1 = Reshape(q, apart)  k1 = Reshape(k, apart)  v1 = Reshape(v, apart)\n"
    "q2 = Transpose<perm=[0, 2, 1, 3]>(q1)  k2 = Transpose<perm=[0, 2, 3, 1]>(k1)\n"
    "v2 = Transpose<perm=[0, 2, 1, 3]>(v1)  m = MatMul(q2, k2)  p = Softmax<axis=-1>(m)  z = MatMul(p, v2)\n"
    "z1 = Transpose<perm=[0, 2, 1, 3]>(z)  y = Reshape(z1, together) }",
    "one_query": "(float[b, 4, 1, 16] q, float[b, 4, t, 16] k, float[b, 4, t, 16] v) => (float[b, 4, 1, 16] y)\n"
    "{ kt = Transpose<perm=[0, 1, 3, 2]>(k)  m = MatMul(q, kt)  p = Softmax<axis=-1>(m)  y = MatMul(p, v) }",
}


@pytest.mark.parametrize(
    "text",
    [
        "(float[s, 24] x) => (float[s, 40] y) { y = MatMul(x, w) }",
        "(float16[s, 24] h) => (float[s, 40] y) { x = Cast<to=1>(h)  m = MatMul(x, w)  y = Gelu(m) }",
    ],
)
def test_every_number_of_rows(text: str) -> None:
    """A few whole tiles of rows, and what is left in each of the pieces that it may come in."""
    model = parser.parse_model(HEAD.replace("17", "20") + text)
    weights = np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    module = load(compile_model(model, dims={}, num_threads=1).to_bytes(), num_threads=1)
    reference = rivals.onnxruntime(model, 1)
    for rows in range(1, 48):
        feeds = inputs(model, {"s": rows})
        (wanted,) = reference(feeds)
        assert_close(module.run(feeds)["y"], wanted, MODELS["float32"])


@pytest.mark.parametrize("name", [*MATMULS, *ATTENTION])
def test_one_kernel_is_right_at_every_size(name: str) -> None:
    model = parser.parse_model(HEAD + {**MATMULS, **ATTENTION}[name])
    compiled = compile_model(model, dims={})
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, s, t, u in SIZES:
            feeds = inputs(model, {"b": b, "s": s, "t": t, "u": u})
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS[wanted.dtype.name])


def test_pixels_of_images_of_any_size_attend_to_each_other() -> None:
    """As many as there are rows times columns: one open number."""
    text = (
        "(float[b, 32, s, t] x) => (float[b, 2, p, 16] y) <int64[4] apart = {0, 2, 16, -1}> {\n"
        "k = Reshape(x, apart)  q = Transpose<perm=[0, 1, 3, 2]>(k)  m = MatMul(q, k)  p = Softmax<axis=-1>(m)\n"
        "y = MatMul(p, q) }"
    )
    model = parser.parse_model(HEAD + text)
    compiled = compile_model(model, dims={})
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, s, t in [(1, 1, 1), (2, 3, 5), (1, 16, 16), (3, 17, 33), (2, 40, 1), (1, 31, 23)]:
            feeds = inputs(model, {"b": b, "s": s, "t": t})
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])


def test_keys_that_the_mask_hides_have_no_weight_at_any_size() -> None:
    """Rows of which all keys are hidden are NaN, as a softmax of -inf is; NaN in hidden values stays out of others."""
    model = parser.parse_model(HEAD + ATTENTION["masked"])
    with load(compile_model(model, dims={}).to_bytes()) as module:
        for s, t in [(1, 1), (5, 3), (14, 33), (40, 64)]:
            feeds = inputs(model, {"b": 1, "s": s, "t": t})
            feeds["w"][:] = np.where(np.arange(t) >= (t + 1) // 2, -np.inf, 0)
            feeds["w"][..., -1, :] = -np.inf
            (actual,) = module.run(feeds).values()
            assert np.isnan(actual[..., -1, :]).all()
            seen = (t + 1) // 2
            scores = feeds["q"] @ feeds["k"][:, :, :seen].swapaxes(-1, -2)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            wanted = (weights / weights.sum(axis=-1, keepdims=True)) @ feeds["v"][:, :, :seen]
            assert_close(actual[..., :-1, :], wanted[..., :-1, :], MODELS["float32"])


def test_a_reduction_in_several_passes_is_right_at_every_length() -> None:
    """So many steps are typical that a panel does not stay in the cache: sums wait between passes."""
    text = "(float[s, t] x, float[t, u] w) => (float[s, u] y) { y = MatMul(x, w) }"
    model = parser.parse_model(HEAD + text)
    compiled = compile_model(model, dims={"s": (1, 200), "t": (20000, 60000), "u": (1, 40)})
    (group,) = compiled.plan.groups
    assert group.schedule is not None and group.schedule.k_block < 20000  # type: ignore[union-attr]
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for s, t, u in [(1, 20000, 1), (33, 20001, 40), (200, 24593, 17)]:
            feeds = inputs(model, {"s": s, "t": t, "u": u})
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])


@pytest.mark.skipif(not host_target().has("avx512bf16"), reason="this CPU has no AVX512-BF16")
def test_attention_of_open_size_multiplies_pairs_of_bfloat16() -> None:
    """As where they are widened to float32: only weights are rounded, relative to the largest one of their row."""
    model = parser.parse_model(HEAD + ATTENTION["heads_apart"])
    pairs, wide = (compile_model(model, target, precision="bf16") for target in ("cpu:znver4", "cpu:x86-64-v4"))
    (group,) = (group for group in pairs.plan.groups if isinstance(group.schedule, CpuAttentionSchedule))
    assert group.instructions == {"vdpbf16ps"}
    with load(pairs.to_bytes()) as loaded, load(wide.to_bytes()) as reference:
        for b, s, t, _ in SIZES:
            feeds = inputs(model, {"b": b, "s": s, "t": t})
            assert_close(loaded.run(feeds)["y"], reference.run(feeds)["y"], 4e-3)
