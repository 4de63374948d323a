"""Engines that run the cases: tilestitch on the CPU and on the emulated GPU, its frontend alone, and two others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

Run = Callable[[Sequence[Any]], Sequence[Any]]
Prepare = Callable[[ModelProto], Run]

# The newest IR version that ONNX Runtime accepts; models that only claim a newer one are relabelled, so that their
# operators decide.
ORT_IR_VERSION = 13
ORT_OPSET = 26


def tilestitch(device: str = "CPU") -> Prepare:
    from tilestitch.compiler import onnx_backend

    def prepare(model: ModelProto) -> Run:
        return onnx_backend.prepare(model, device).run

    return prepare


def graph() -> Prepare:
    """Return the engine that evaluates the frontend's graph with numpy, to tell faults of the frontend from later
    ones.
    """
    from tilestitch.compiler.frontend import import_model
    from tilestitch.compiler.ir.evaluate import evaluate

    def prepare(model: ModelProto) -> Run:
        imported = import_model(model).graph
        return lambda inputs: evaluate(imported, list(inputs))

    return prepare


def onnxruntime() -> Prepare:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def prepare(model: ModelProto) -> Run:
        relabelled = ModelProto.FromString(model.SerializeToString())
        relabelled.ir_version = min(relabelled.ir_version, ORT_IR_VERSION)
        for opset in relabelled.opset_import:
            if opset.domain == "":
                opset.version = min(opset.version, ORT_OPSET)
        session = ort.InferenceSession(relabelled.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, map(_feed, inputs))))

    return prepare


def _feed(value: Any) -> Any:
    """Return a value as ONNX Runtime accepts it: arrays in place of numpy scalars."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def reference() -> Prepare:
    from onnx.reference import ReferenceEvaluator

    def prepare(model: ModelProto) -> Run:
        evaluator = ReferenceEvaluator(model)
        initialised = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in initialised]
        return lambda inputs: evaluator.run(None, dict(zip(names, inputs)))

    return prepare


ENGINES: dict[str, Callable[[], Prepare]] = {
    "tilestitch": tilestitch,
    "emulator": lambda: tilestitch("EMULATOR"),
    "graph": graph,
    "onnxruntime": onnxruntime,
    "reference": reference,
}

DEFAULT_KINDS = {"emulator": ("node", "simple", "pytorch-converted", "pytorch-operator")}
"""Kinds of cases that an engine runs by default; all for one that is not here. The emulated GPU takes minutes for a
model of kind `light`.
"""
