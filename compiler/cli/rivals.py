"""Other engines that run the same model, for checks and benchmarks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto

Run = Callable[[Mapping[str, Any]], Sequence["np.ndarray"]]

# The newest IR version that ONNX Runtime accepts. A model that merely claims a newer one is relabelled.
ORT_IR_VERSION = 13

_ORT_FAILURES = (
    "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile", "NotImplemented",
    "RuntimeException",
)  # fmt: skip
"""Exceptions of ONNX Runtime for a model that it cannot load or run; they have no common base."""


def onnxruntime(model: ModelProto | Path, threads: int | None = None, as_written: bool = False) -> Run:
    """Return a function from inputs by name to the outputs in the model's order.

    threads: None for as many as there are cores.
    as_written: run every node by itself. ONNX Runtime's fused matmuls of quantised tensors round differently from the
        operators that they replace, so results commonly differ by a few quantisation steps.
    """
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    if as_written:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    failures = (RuntimeError, *(getattr(state, name) for name in _ORT_FAILURES))  # the first for types of elements
    remedy = "check --against reference instead" if as_written else "leave out --against onnxruntime"
    try:
        session = ort.InferenceSession(_loadable(model), options, providers=["CPUExecutionProvider"])
    except failures as error:
        raise UsageError(f"ONNX Runtime cannot load the model ({_one_line(error)}); {remedy}") from error
    declared = {value.name: value.shape for value in session.get_inputs()}
    types = [value.type for value in session.get_outputs()]

    def run(inputs: Mapping[str, Any]) -> Sequence[np.ndarray]:
        feeds = _named(inputs, list(declared))
        _check_shapes(feeds, declared)
        try:
            results = session.run(None, feeds)
        except failures as error:
            raise UsageError(f"ONNX Runtime cannot run the model ({_one_line(error)}); {remedy}") from error
        return [_typed(result, type_) for result, type_ in zip(results, types, strict=True)]

    return run


_ORT_FLOATS = {
    f"tensor({name.replace('_', '')})": name
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}
"""Element types, by ONNX Runtime's name, whose bits it returns as integers."""


def _typed(result: Any, type_: str) -> Any:
    name = _ORT_FLOATS.get(type_)
    if name is None or result.dtype.name == name:
        return result
    import ml_dtypes

    return result.view(getattr(ml_dtypes, name))


def reference(model: ModelProto | Path) -> Run:
    """Return ONNX's reference implementation in Python: slow, and right by definition."""
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(_whole(model))
    except RuntimeError as error:  # raised for operators, and versions of them, that it lacks
        raise UsageError(
            f"ONNX's reference cannot run the model ({error}); check --against onnxruntime instead"
        ) from error
    return lambda inputs: evaluator.run(None, _named(inputs, evaluator.input_names))


def openvino(model: ModelProto | Path, threads: int | None = None) -> Run:
    """Return a function from inputs by name to the outputs in the model's order, which the next call overwrites.

    threads: None for as many as there are cores.
    """
    request = openvino_request(model, threads)
    # A port may have more names: those of values that OpenVINO's rewrites have replaced by the input.
    names = [port.get_node().get_friendly_name() for port in request.model_inputs]

    def run(inputs: Mapping[str, Any]) -> Sequence[np.ndarray]:
        try:
            results = request.infer(_named(inputs, names), share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            raise UsageError(
                f"OpenVINO cannot run the model ({_one_line(error)}); leave out --against openvino"
            ) from error
        return list(results.values())

    return run


def openvino_request(model: ModelProto | Path, threads: int | None = None, precision: str = "f32") -> Any:
    """Return OpenVINO's request for a model in its latency mode, one run at a time; raises UsageError if it refuses the
    model or computes in another precision than `precision`, its name for float32 (`f32`) or bfloat16 (`bf16`).
    """
    import openvino as ov

    settings = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    if threads is not None:
        settings["INFERENCE_NUM_THREADS"] = threads
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        core = ov.Core()
        compiled = core.compile_model(core.read_model(source), "CPU", settings)
    except RuntimeError as error:
        raise UsageError(
            f"OpenVINO cannot load the model ({_one_line(error)}); leave out --against openvino"
        ) from error
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if used != precision:
        raise UsageError(f"OpenVINO was asked for {precision} and uses {used}; leave out --against openvino")
    return compiled.create_infer_request()


def pytorch(factory: str, threads: int | None = None) -> Run:
    """Return the module that FACTORY, `MODULE:FUNCTION`, makes, as a function of the inputs in the model's order."""
    import torch

    module_name, _, function = factory.partition(":")
    if not module_name or not function:
        raise UsageError(f"--torch {factory!r} is not of the form MODULE:FUNCTION")
    try:
        module = getattr(importlib.import_module(module_name), function)()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--torch {factory}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"--torch {factory} returns {type(module).__name__}, not a torch.nn.Module; return one")
    module.eval()
    if threads is not None:
        torch.set_num_threads(threads)

    def run(inputs: Mapping[str, Any]) -> Sequence[np.ndarray]:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(value) for value in inputs.values()))
        tensors = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return [tensor.numpy() for tensor in tensors]

    return run


JITTER = 2.0**-21
"""Relative difference of sums of some hundred float32 numbers that are added in different orders."""

_ROUNDING = {
    "QuantizeLinear": 1, "DynamicQuantizeLinear": None, "DynamicQuantizeMatMul": None, "DynamicQuantizeLSTM": None,
    "MatMulNBits": 2,
}  # fmt: skip
"""Operators that quantise their first input, and which other input has its type; None: it is float32."""

ACCURACY_OF_BYTES = 4
"""The `accuracy_level` of MatMulNBits that rounds activations to 8 bits."""


def jittered(model: ModelProto | Path, sign: int = 1, seed: int = 0) -> ModelProto:
    """Return a copy of MODEL in which each element of the float32 tensors that it quantises at run time is first scaled
    by 1 + JITTER or 1 - JITTER, at random by SEED (SIGN -1: the opposite): how far its results move shows how much the
    model amplifies a difference in the last bits. A common factor would have no effect where the range of the elements
    determines the scale.
    """
    copy = _own(model)
    _jitter(copy.graph, sign, seed, {}, "tilestitch_jitter")
    return copy


def _jitter(graph: GraphProto, sign: int, seed: int, around: Mapping[str, int], prefix: str) -> None:
    """Add jitter to GRAPH and the bodies in it, in place. `around`: types of the constants outside it."""
    constants = {**around, **_constants(graph)}
    nodes = list(graph.node)
    del graph.node[:]
    for number, node in enumerate(nodes):
        name = f"{prefix}_{number}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _jitter(attribute.g, sign, seed, constants, f"{name}_{attribute.name}")
        if _rounds_floats(node, constants):
            graph.node.extend(_scaled_at_random(node.input[0], name, sign, seed + number))
            node.input[0] = name
        graph.node.append(node)


def _constants(graph: GraphProto) -> dict[str, int]:
    """Return the types of a graph's constants."""
    tensors = {tensor.name: tensor.data_type for tensor in graph.initializer}
    given = ((node, attribute) for node in graph.node if node.op_type == "Constant" for attribute in node.attribute)
    return tensors | {node.output[0]: one.t.data_type for node, one in given if one.HasField("t")}


def _rounds_floats(node: NodeProto, constants: Mapping[str, int]) -> bool:
    """Return whether a node quantises float32 numbers that a run computes."""
    from onnx import TensorProto, helper

    if node.op_type not in _ROUNDING or node.input[0] in constants:
        return False
    if node.op_type == "MatMulNBits":
        levels = [helper.get_attribute_value(one) for one in node.attribute if one.name == "accuracy_level"]
        if levels != [ACCURACY_OF_BYTES]:
            return False
    like = _ROUNDING[node.op_type]
    return like is None or constants.get(node.input[like]) == TensorProto.FLOAT


def _scaled_at_random(value: str, name: str, sign: int, seed: int) -> list[NodeProto]:
    """Return the nodes that compute NAME from VALUE: each element times 1 + JITTER or 1 - JITTER."""
    from onnx import helper

    noise, zero, up, more, less, factor = (f"{name}_{part}" for part in ("noise", "zero", "up", "more", "less", "by"))
    constants = {zero: 0.0, more: 1 + sign * JITTER, less: 1 - sign * JITTER}
    return [
        *(helper.make_node("Constant", [], [one], value=helper.make_tensor(one, 1, [], [number]))
          for one, number in constants.items()),
        helper.make_node("RandomUniformLike", [value], [noise], low=-1.0, high=1.0, seed=float(seed)),
        helper.make_node("Greater", [noise, zero], [up]),
        helper.make_node("Where", [up, more, less], [factor]),
        helper.make_node("Mul", [value, factor], [name], name=name),
    ]  # fmt: skip


def _named(inputs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in names if name not in inputs]
    if missing:
        raise UsageError(f"the artifact has no input {', '.join(missing)}, which the model needs: not the same model")
    return {name: inputs[name] for name in names}


def _check_shapes(inputs: Mapping[str, Any], declared: Mapping[str, Sequence[int | str | None]]) -> None:
    """Raise UsageError where an input does not have the shape that the model declares for it; names match any size."""
    for name, dims in declared.items():
        shape = getattr(inputs[name], "shape", None)
        if shape is None or not dims:  # a list or a map; a scalar, or a shape that the model does not declare
            continue
        if len(shape) != len(dims) or any(isinstance(d, int) and d != s for d, s in zip(dims, shape, strict=True)):
            raise UsageError(
                f"input {name} of the artifact has the shape {list(shape)}, that of the model {list(dims)}: they are "
                "not the same model"
            )


def _one_line(error: Exception) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split())


def _loadable(model: ModelProto | Path) -> str | bytes:
    from tilestitch.compiler.frontend.importer import load_model

    proto = load_model(model) if isinstance(model, Path) else model
    if proto.ir_version <= ORT_IR_VERSION:
        return str(model) if isinstance(model, Path) else proto.SerializeToString()
    relabelled = _own(model)
    relabelled.ir_version = ORT_IR_VERSION
    return relabelled.SerializeToString()


def _own(model: ModelProto | Path) -> ModelProto:
    """Return a copy of the model that may be changed, with its external data."""
    return _whole(model) if isinstance(model, Path) else type(model).FromString(model.SerializeToString())


def _whole(model: ModelProto | Path) -> ModelProto:
    """Return the model with its external data."""
    from tilestitch.compiler.frontend.importer import load_model

    return load_model(model, external_data=True) if isinstance(model, Path) else model


CHECKERS: dict[str, Callable[[Any], Run]] = {
    "onnxruntime": partial(onnxruntime, as_written=True),
    "reference": reference,
}
"""Engines against which results are checked, by name; each takes a path or a ModelProto."""

RACERS: dict[str, Callable[[Any, int | None], Run]] = {"onnxruntime": onnxruntime, "openvino": openvino}
"""Engines that run the same model as fast as they can, by name; each takes a path or a ModelProto, and a number of
threads.
"""


def on_jittered(against: str, model: ModelProto | Path, inputs: Mapping[str, Any]) -> list[Sequence[np.ndarray]]:
    """Return the reference's results for the model, jittered in several ways."""
    return [CHECKERS[against](jittered(model, sign, seed))(inputs) for seed in (0, 1) for sign in (1, -1)]
