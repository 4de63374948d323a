"""ONNX models with attention, spelled out and as an operator: one kernel, and the numbers of ONNX's own reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

from tests.tolerances import KERNELS
from tilestitch.compiler.driver import CompiledModel, compile_model
from tilestitch.runtime import load

HEADER = '<ir_version: 10, opset_import: ["" : 23]> '

SPELLED_OUT = """g (float[2,6,24] x, int64[2,6] keep, float[24,24] wq, float[24,24] wk, float[24,24] wv)
    => (float[2,6,24] y)
    <int64[4] split = {2, 6, 3, 8}, int64[3] joined = {2, 6, 24}, int64[2] axes = {1, 2}, float root = {2.8284271},
     float one = {1.0}, float low = {-3.4028235e38}>
    { a = MatMul(x, wq)  b = MatMul(x, wk)  c = MatMul(x, wv)
      ra = Reshape(a, split)  rb = Reshape(b, split)  rc = Reshape(c, split)
      q = Transpose <perm = [0,2,1,3]> (ra)  k = Transpose <perm = [0,2,3,1]> (rb)
      v = Transpose <perm = [0,2,1,3]> (rc)
      f = Cast <to = 1> (keep)  u = Unsqueeze(f, axes)  h = Sub(one, u)  m = Mul(h, low)
      s = MatMul(q, k)  d = Div(s, root)  n = Add(d, m)  w = Softmax <axis = -1> (n)  o = MatMul(w, v)
      t = Transpose <perm = [0,2,1,3]> (o)  y = Reshape(t, joined) }"""

OPERATOR = """g (float[2,6,5,8] q, float[2,2,9,8] k, float[2,2,9,12] v, bool[5,9] mask) => (float[2,6,5,12] y)
    { y = Attention <is_causal = 1, softcap = 4.0> (q, k, v, mask) }"""

JOINED_HEADS = """g (float[2,5,24] q, float[2,7,8] k, float[2,7,8] v) => (float[2,5,24] y)
    { y = Attention <q_num_heads = 6, kv_num_heads = 2> (q, k, v) }"""

HALF = """g (float16[1,4,20,16] q, float16[1,4,20,16] k, float16[1,4,20,16] v) => (float16[1,4,20,16] y)
    { y = Attention <is_causal = 1> (q, k, v) }"""

CACHE = """g (float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v, float[1,2,4,8] pk, float[1,2,4,8] pv)
    => (float[1,2,3,8] y, float[1,2,7,8] ck, float[1,2,7,8] cv)
    { y, ck, cv = Attention <is_causal = 1> (q, k, v, , pk, pv) }"""

MODELS = {
    "spelled out": SPELLED_OUT,
    "operator with shared keys, cap and mask": OPERATOR,
    "operator with joined heads": JOINED_HEADS,
    "operator of half floats": HALF,
    "operator with a cache": CACHE,
}


def compiled(text: str, target: str) -> tuple[onnx.ModelProto, CompiledModel]:
    model = parse_model(HEADER + text)
    return model, compile_model(model, target, num_threads=2, keep_source=target == "emulator")


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind in "bi":
            hidden = random.random(shape) < 0.3
            hidden[..., 0] = False
            feeds[value.name] = (~hidden).astype(dtype)
        else:
            feeds[value.name] = random.uniform(-1, 1, shape).astype(dtype)
    return feeds


def assert_same(expected: np.ndarray, actual: np.ndarray) -> None:
    within = KERNELS[expected.dtype.name] * max(1.0, float(np.abs(expected).max()))
    wide = np.float64
    np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), rtol=0, atol=within)


def run(artifact: bytes, feeds: Mapping[str, np.ndarray], device: str) -> list[np.ndarray]:
    with load(artifact, device=device) as module:
        return list(module.run(dict(feeds)).values())


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("name", MODELS)
def test_attention_of_a_model_is_one_kernel(name: str, target: str) -> None:
    model, result = compiled(MODELS[name], target)
    assert [g.kind.value for g in result.plan.groups].count("attention") == 1
    assert not any(k["kind"] == "rowwise" for k in result.explain()["kernels"])
    feeds = inputs_of(model)
    expected = ReferenceEvaluator(model).run(None, dict(feeds))
    for want, got in zip(expected, run(result.to_bytes(), feeds, target), strict=True):
        assert_same(np.asarray(want), got)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_a_query_that_may_see_no_key_gets_zeros(target: str) -> None:
    model, result = compiled(OPERATOR, target)
    feeds = inputs_of(model)
    feeds["mask"][2] = False
    (y,) = run(result.to_bytes(), feeds, target)
    assert not y[:, :, 2].any()
    assert np.isfinite(y).all() and y[:, :, 1].any()


def test_scores_that_the_model_shows_keep_attention_apart() -> None:
    text = OPERATOR.replace("(float[2,6,5,12] y)", "(float[2,6,5,12] y, float[2,6,5,9] s)").replace(
        "{ y =", "{ y, , , s ="
    )
    _, result = compiled(text, "cpu")
    assert "attention" not in [g.kind.value for g in result.plan.groups]
    assert any(r.rule == "legality.scores_stored" for r in result.plan.refusals)
