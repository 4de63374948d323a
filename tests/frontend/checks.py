"""Compare what the frontend makes of one ONNX node with what ONNX's reference or ONNX Runtime computes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.tolerances import OPERATORS
from tilestitch.compiler.frontend import ImportedModel, import_model
from tilestitch.compiler.ir.evaluate import evaluate

NEWEST = onnx.defs.onnx_opset_version()


def node_model(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    opset: int = NEWEST,
    outputs: int | Sequence[str] = 1,
    constants: Collection[int] = (),
) -> ModelProto:
    """A model of one node. Operands whose index is in `constants` are initialisers, the others are inputs."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(op, names, results, name="the_node", **(attrs or {}))
    given = [(n, x) for i, (n, x) in enumerate(zip(names, inputs, strict=True)) if x is not None and i not in constants]
    formal = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given]
    stored = [
        numpy_helper.from_array(np.asarray(x), n)
        for i, (n, x) in enumerate(zip(names, inputs, strict=True))
        if x is not None and i in constants
    ]
    unnamed = [onnx.ValueInfoProto(name=r) for r in results if r]
    graph = helper.make_graph([node], "test", formal, unnamed, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    return _typed(model)


def _typed(model: ModelProto) -> ModelProto:
    """The model with its outputs typed by shape inference, as the checker demands."""
    bare = ModelProto()
    bare.CopyFrom(model)
    inferred = {v.name: v for v in onnx.shape_inference.infer_shapes(bare, data_prop=True).graph.output}
    for output in model.graph.output:
        if inferred[output.name].type.WhichOneof("value"):
            output.CopyFrom(inferred[output.name])
        else:
            output.type.tensor_type.elem_type = model.graph.input[0].type.tensor_type.elem_type
    return model


def run(model: ModelProto, feeds: Mapping[str, np.ndarray], **options: Any) -> list[Any]:
    imported = import_model(model, **options)
    with np.errstate(all="ignore"):
        return evaluate(imported.graph, [feeds[name] for name in imported.input_names])


def run_ort(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def assert_close(actual: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    actual = np.asarray(actual)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.dtype.name not in OPERATORS:
        np.testing.assert_array_equal(actual, expected)
        return
    tolerance = OPERATORS[expected.dtype.name]
    wide = expected.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    scale = max(1e-3, float(finite.max())) if finite.size else 1.0
    np.testing.assert_allclose(actual.astype(np.float64), wide, rtol=tolerance, atol=tolerance * scale)


def check_node(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    opset: int = NEWEST,
    outputs: int | Sequence[str] = 1,
    constants: Collection[int] = (),
    against: str = "reference",
) -> ImportedModel:
    """Assert that the node's primitives compute what `against` (reference, onnxruntime) does; returns the import."""
    model = node_model(op, inputs, attrs, opset=opset, outputs=outputs, constants=constants)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in constants}
    if against == "onnxruntime":
        expected = run_ort(model, feeds)
    else:
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(model).run(None, feeds)
    assert_all_close(run(model, feeds), expected)
    return import_model(model)


def assert_all_close(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        assert_close(got, want)


def host_steps(imported: ImportedModel) -> list[str]:
    """The operators that are left to the host."""
    return [n.op for n in imported.graph.nodes if n.op.startswith("host.")]


def floats(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ints(*values: Any, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)
