"""Graphs of an independent generator, NNSmith, exported by PyTorch: compiled models agree with ONNX Runtime.

Needs the extra `fuzz`; without it nothing here runs. 48 models by default; `make fuzz` draws 496.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, note, reject, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from tests.frontend.checks import run_ort
from tests.tolerances import RANDOM_MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend.errors import UnsupportedOperatorsError
from tilestitch.runtime import load

pytest.importorskip("nnsmith", reason="NNSmith is not installed; pip install '.[fuzz]'")
torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed; pip install '.[fuzz]'")

SHARDS = 4
MODELS = max(6, settings().max_examples // (8 * SHARDS))
NUDGE = 1e-5
"""What changes by more than the tolerance when inputs change by this part of them is not compared."""

MOST_OF_HALF = float(np.finfo(np.float16).max)

fuzzing = settings(max_examples=MODELS, deadline=None, suppress_health_check=list(HealthCheck))


def generated(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of up to ten operators, and inputs in [1, 2], which is where most of its operators are defined."""
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model

    kind = Model.init("onnx", "cpu")
    kind.add_seed_setter()
    network = kind.from_gir(
        model_gen(opset=kind.operators(), method="symbolic", seed=seed, max_nodes=10, timeout_ms=10_000).make_concrete()
    ).torch_model
    network.eval()
    random = np.random.default_rng(seed)
    inputs = {
        name: random.uniform(1, 2, tuple(like.shape)).astype(like.dtype.numpy())
        for name, like in network.input_like.items()
    }
    return _exported(network, inputs), inputs


def _exported(network: Any, inputs: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, tuple(torch.from_numpy(x) for x in inputs.values()), file,
            input_names=list(inputs), output_names=list(network.output_like), opset_version=17, dynamo=False,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def stable(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], expected: list[Any]) -> list[Any]:
    """Which elements of the outputs change little when inputs do."""
    nudged = {n: np.asarray(x * (1 + NUDGE), x.dtype) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    half = has_half(model)
    return [_close(a, b, half, 0.1) for a, b in zip(run_ort(model, nudged), expected, strict=True)]


def has_half(model: onnx.ModelProto) -> bool:
    """Whether there is float16 anywhere: ONNX Runtime computes it as float32 in places, and rounds late or never."""
    known = onnx.shape_inference.infer_shapes(model).graph
    values = (*known.input, *known.value_info, *known.output)
    return any(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for value in values)


EXTREMES = ("MaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK")


def takes_extremes_of_nan(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> bool:
    """Whether the largest or smallest is sought where there is NaN: ONNX Runtime leaves it out or does not, by where it
    stands; numpy, PyTorch and ONNX's reference hand it on.
    """
    known = {*inputs, *(tensor.name for tensor in model.graph.initializer)}
    read = sorted({node.input[0] for node in model.graph.node if node.op_type in EXTREMES} - known)
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in read)
    return any(np.isnan(value).any() for value in run_ort(shown, inputs)[len(model.graph.output) :])


def _close(actual: Any, expected: Any, half: bool, factor: float = 1.0) -> Any:
    """The tolerance is a part of the magnitude of each element, at least 1: that of float16 where `half`."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if expected.dtype.kind != "f":
        return actual == expected
    wide, other = expected.astype(np.float64), actual.astype(np.float64)
    tolerance = RANDOM_MODELS["float16" if half else expected.dtype.name]
    with np.errstate(all="ignore"):
        near = np.abs(other - wide) <= factor * tolerance * np.maximum(1.0, np.abs(wide))
    if half:  # infinite for the one is too large for float16 for the other
        near |= np.isinf(other) & (np.sign(other) == np.sign(wide)) & (np.abs(wide) > MOST_OF_HALF * (1 - tolerance))
    return near | (other == wide) | (np.isnan(other) & np.isnan(wide))


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("shard", range(SHARDS))
@given(seed=st.integers(0, 2**31 - 1))
@fuzzing
def test_models_of_nnsmith_agree_with_onnx_runtime(shard: int, target: str, seed: int) -> None:
    try:
        model, inputs = generated(seed)
    except RuntimeError:  # PyTorch cannot trace it
        reject()
    try:
        expected = run_ort(model, inputs)
    except (NoKernel, InvalidGraph):  # ONNX Runtime cannot run it
        reject()
    if takes_extremes_of_nan(model, inputs):
        reject()
    note(onnx.printer.to_text(model.graph))
    mask = stable(model, inputs, expected)
    try:
        compiled = compile_model(model, target)
    except UnsupportedOperatorsError:
        return
    with load(compiled.to_bytes(), device=target) as module:
        results = list(module.run(inputs).values())
    for actual, wanted, compared in zip(results, expected, mask, strict=True):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
        wrong = compared & ~_close(actual, wanted, has_half(model))
        assert not wrong.any(), f"{actual[wrong][:5]} instead of {wanted[wrong][:5]}"
