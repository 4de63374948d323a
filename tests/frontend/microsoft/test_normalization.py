"""Normalisations of sums, and the operators that ONNX Runtime has in ONNX's own domain."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.frontend.checks import assert_close, floats, run
from tests.frontend.microsoft.checks import check_node, node_model, run_ort, typed
from tilestitch.compiler.frontend import ConversionError, import_model

SUMS = ("y", "", "", "sum")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_norm(dtype: str, beta: bool, bias: bool) -> None:
    x, skip = (floats(2, 5, 7, seed=s, dtype=dtype) for s in (0, 1))
    gamma, b, c = (floats(7, seed=s, dtype=dtype) for s in (2, 3, 4))
    operands = [x, skip, gamma, b if beta else None, c if bias else None]
    check_node("SkipLayerNormalization", operands, {"epsilon": 1e-5}, outputs=SUMS)


@pytest.mark.parametrize("skip", [(1, 5, 7), (5, 7)])
def test_a_residual_without_a_batch(skip: tuple[int, ...]) -> None:
    check_node("SkipLayerNormalization", [floats(2, 5, 7), floats(*skip, seed=1), floats(7, seed=2), floats(7, seed=3)])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 5, 7), (3, 1), (0, 4)])
def test_skip_rms_norm(dtype: str, shape: tuple[int, ...]) -> None:
    x, skip = (floats(*shape, seed=s, dtype=dtype) for s in (0, 1))
    gamma, bias = (floats(shape[-1], seed=s, dtype=dtype) for s in (2, 3))
    for given in ([x, skip, gamma], [x, skip, gamma, bias]):
        check_node("SkipSimplifiedLayerNormalization", given, {"epsilon": 1e-6}, outputs=SUMS)


def test_statistics() -> None:
    def reference(x: np.ndarray, skip: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> list[np.ndarray]:
        total = x + skip
        mean = total.mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(total.var(-1, keepdims=True) + np.float32(1e-12))
        return [(total - mean) * inverse * gamma + beta, mean, inverse]

    operands = [floats(2, 3, 5), floats(2, 3, 5, seed=1), floats(5, seed=2), floats(5, seed=3)]
    check_node("SkipLayerNormalization", operands, outputs=3, reference=reference)


def test_there_is_no_mean_of_an_rms_norm() -> None:
    operands = [floats(2, 3, 5), floats(2, 3, 5, seed=1), floats(5, seed=2)]
    model = typed(node_model("SkipSimplifiedLayerNormalization", operands, outputs=2), [floats(2, 3, 5)] * 2)
    with pytest.raises(ConversionError, match="output 'mean' is not supported"):
        import_model(model)


def test_a_mean_of_an_rms_norm_that_the_model_does_not_use() -> None:
    """Optimisers of `onnxscript` name all outputs of the nodes that they make."""
    operands = [floats(2, 3, 5), floats(2, 3, 5, seed=1), floats(5, seed=2)]
    model = typed(node_model("SkipSimplifiedLayerNormalization", operands, outputs=4), [operands[0]] * 4)
    del model.graph.output[1:3]
    feeds = {f"x{at}": operand for at, operand in enumerate(operands)}
    for ours, theirs in zip(run(model, feeds), run_ort(model, feeds), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_norm_in_onnx_domain(axis: int) -> None:
    x = floats(2, 3, 5)
    attrs = {"axis": axis, "epsilon": 1e-5}
    check_node("SimplifiedLayerNormalization", [x, floats(*x.shape[axis:], seed=1)], attrs, domain="", outputs=2)


def test_layer_norm_before_onnx_had_it() -> None:
    operands = [floats(2, 3, 5), floats(5, seed=1), floats(5, seed=2)]
    check_node("LayerNormalization", operands, {"epsilon": 1e-5}, domain="", opset=12)


def test_simplified_layer_norm_in_a_function_of_the_model() -> None:
    """ONNX's checker looks at functions, too."""
    body = [helper.make_node("SimplifiedLayerNormalization", ["a", "b"], ["c"], epsilon=1e-5)]
    imports = [helper.make_opsetid("", 17)]
    model = node_model("Norm", [floats(2, 5), floats(5, seed=1)], domain="mine")
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.functions.append(helper.make_function("mine", "Norm", ["a", "b"], ["c"], body, imports))
    x, scale = floats(2, 5), floats(5, seed=1)
    (ours,) = run(typed(model, [x]), {"x0": x, "x1": scale})
    assert_close(ours, x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(1e-5)) * scale)


def grouped(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int, silu: bool) -> np.ndarray:
    """Of x[N, C, H, W]."""
    n, c = x.shape[:2]
    flat = x.astype(np.float64).reshape(n, groups, -1)
    normal = (flat - flat.mean(-1, keepdims=True)) / np.sqrt(flat.var(-1, keepdims=True) + 1e-5)
    y = normal.reshape(x.shape) * gamma.reshape(c, 1, 1) + beta.reshape(c, 1, 1)
    return (y / (1 + np.exp(-y)) if silu else y).astype(x.dtype)


@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_group_norm(silu: int, last: int, dtype: str) -> None:
    x, gamma, beta = floats(2, 6, 3, 5, dtype=dtype), floats(6, seed=1), floats(6, seed=2)
    attrs = {"activation": silu, "channels_last": last, "groups": 3}

    def moved(value: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(value, 1, -1)) if last else value

    wanted = grouped(x, gamma, beta, 3, bool(silu))
    check_node("GroupNorm", [moved(x), gamma, beta], attrs, reference=lambda *_: moved(wanted))
    for skip in (floats(2, 6, 3, 5, seed=3), floats(2, 6, seed=3)):
        spread = skip.reshape(*skip.shape, *(1,) * (4 - skip.ndim)).astype(dtype)
        bias = floats(6, seed=4, dtype=dtype)
        total = x + spread + bias.reshape(6, 1, 1)
        wanted_sum = grouped(total.astype(dtype), gamma, beta, 3, bool(silu))
        given = moved(spread) if skip.ndim == 4 else skip.astype(dtype)

        def both(*_: np.ndarray, total: np.ndarray = total, y: np.ndarray = wanted_sum) -> list[np.ndarray]:
            return [moved(y), moved(total.astype(dtype))]

        check_node("SkipGroupNorm", [moved(x), gamma, beta, given, bias], attrs, outputs=2, reference=both)


def test_groups_that_do_not_divide() -> None:
    operands = [floats(1, 2, 2, 5), floats(5), floats(5)]
    model = typed(node_model("GroupNorm", operands, {"groups": 2, "activation": 0}), [operands[0]])
    with pytest.raises(ConversionError, match="groups=2"):
        import_model(model)
