"""Compare what the frontend makes of a node of com.microsoft with ONNX Runtime's kernel, or with numpy."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
from onnx import ModelProto, TypeProto, helper, numpy_helper

from tests.frontend.checks import assert_close, run
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph

Arrays = Sequence[np.ndarray | None]


def node_model(
    op: str,
    inputs: Arrays,
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int | Sequence[str] = 1,
    constants: Collection[int] = (),
    domain: str = "com.microsoft",
    opset: int = 17,
) -> ModelProto:
    """A model of one node, whose outputs are not typed. Operands in `constants` are initialisers."""
    results = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(op, names, results, name="the_node", domain=domain, **(attrs or {}))
    formal, stored = [], []
    for i, x in enumerate(inputs):
        if x is None:
            continue
        if i in constants:
            stored.append(numpy_helper.from_array(np.asarray(x), f"x{i}"))
        else:
            formal.append(helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
    graph = helper.make_graph(
        [node], "test", formal, [helper.make_value_info(r, TypeProto()) for r in results if r], stored
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    )
    model.ir_version = 10
    return model


def typed(model: ModelProto, results: Sequence[np.ndarray]) -> ModelProto:
    """The model with the outputs declared as `results` are, as ONNX's checker demands."""
    for output, result in zip(model.graph.output, results, strict=True):
        elem = helper.np_dtype_to_tensor_dtype(np.asarray(result).dtype)
        output.CopyFrom(helper.make_tensor_value_info(output.name, elem, np.asarray(result).shape))
    return model


def run_ort(model: ModelProto, feeds: Mapping[str, np.ndarray], *, optimised: bool = False) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # DynamicQuantizeLSTM's results depend on it
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def computed(
    op: str,
    inputs: Arrays,
    attrs: Mapping[str, Any] | None = None,
    *,
    reference: Callable[..., Any] | None = None,
    outputs: int | Sequence[str] = 1,
    constants: Collection[int] = (),
    domain: str = "com.microsoft",
    opset: int = 17,
) -> tuple[list[np.ndarray], list[np.ndarray], Graph]:
    """Our results, those of ONNX Runtime (or of `reference`, a function of the operands), and our graph."""
    model = node_model(op, inputs, attrs, outputs=outputs, constants=constants, domain=domain, opset=opset)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in constants}
    if reference is None:
        expected = run_ort(model, feeds)
    else:
        results = reference(*inputs)
        expected = list(results) if isinstance(results, (list, tuple)) else [results]
    ours = run(typed(model, expected), feeds)
    return ours, expected, import_model(model).graph


def check_node(op: str, inputs: Arrays, attrs: Mapping[str, Any] | None = None, **options: Any) -> Graph:
    """Assert that values agree as those of one operator do, integers exactly; returns the graph of primitives."""
    ours, expected, graph = computed(op, inputs, attrs, **options)
    assert len(ours) == len(expected)
    for got, want in zip(ours, expected, strict=True):
        assert_close(got, want)
    # Passes compute what depends on constants only: weights that no kernel reads as they are.
    assert not [n.op for n in graph.nodes if n.op.startswith("host.") and not all(v.is_constant for v in n.inputs)]
    return graph


def check_steps(op: str, inputs: Arrays, attrs: Mapping[str, Any] | None = None, **options: Any) -> Graph:
    """Assert that integers agree within one step."""
    ours, expected, graph = computed(op, inputs, attrs, **options)
    for got, want in zip(ours, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= 1
    assert not [n.op for n in graph.nodes if n.op.startswith("host.")]
    return graph
