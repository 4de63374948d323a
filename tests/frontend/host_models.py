"""Small ONNX models, imported and evaluated with numpy, next to what onnx's reference evaluator computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator

from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import AnyRankTensor, Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate


def tensor(array: Any, *, shape: Sequence[int | str | None] | None = None) -> TypeProto:
    """The ONNX type of an array; `shape` replaces its own."""
    array = np.asarray(array)
    return helper.make_tensor_type_proto(
        helper.np_dtype_to_tensor_dtype(array.dtype), array.shape if shape is None else shape
    )


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, TypeProto],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 23,
    declared: Mapping[str, TypeProto] | None = None,
) -> ModelProto:
    """A model of these nodes; ONNX infers the types of its outputs, but for those `declared`."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_value_info(name, type_) for name, type_ in inputs.items()],
        [helper.make_value_info(name, (declared or {}).get(name, TypeProto())) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 5)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(proto)


def check(proto: ModelProto, feeds: Mapping[str, Any]) -> Graph:
    """Imports the model; its value for `feeds` is that of onnx's reference, of the stated types. Returns the graph."""
    graph = import_model(proto).graph
    actual = evaluate(graph, [feeds[v.name] for v in graph.inputs])
    expected = ReferenceEvaluator(proto).run(None, dict(feeds))
    for value, got, want in zip(graph.outputs, actual, expected, strict=True):
        same(got, want)
        fits(got, value.type)
    return graph


def same(got: Any, want: Any) -> None:
    """Equal values: lists item by item, arrays in dtype, shape and (to float32's precision) value."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
        return
    if want is None or got is None:
        assert got is want
        return
    want = np.asarray(want)
    assert got.shape == want.shape
    if want.dtype.kind in "OU":
        assert got.tolist() == want.tolist()
        return
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6)


def fits(got: Any, type_: Any) -> None:
    """What the graph states about a value holds."""
    if isinstance(type_, TensorType):
        assert len(type_.shape) == got.ndim
        assert all(isinstance(d, str) or d == n for d, n in zip(type_.shape, got.shape, strict=True))
    elif not isinstance(type_, AnyRankTensor):
        assert got is None or isinstance(got, (list, np.ndarray))


def ops(graph: Graph) -> list[str]:
    """The operators of the graph's nodes."""
    return [node.op for node in graph.nodes]
