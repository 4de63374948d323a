"""Models as ONNX Runtime's optimisers and quantisers save them, and decoders as exporters for it write them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.compiled import assert_close
from tests.decoders import VOCABULARY, decoder
from tests.frontend.microsoft.checks import run_ort
from tests.models import Builder, cnn, random_inputs
from tests.networks import bert, gpt2, vit
from tests.tolerances import MODELS
from tilestitch.compiler.cli import errors, main
from tilestitch.compiler.driver import CompiledModel, compile_model
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact

ort = pytest.importorskip("onnxruntime")

NETWORKS: Mapping[str, tuple[Callable[..., ModelProto], int, int]] = {
    "bert": (bert, 3, 24), "gpt2": (gpt2, 2, 32), "vit": (vit, 3, 24),
}  # fmt: skip
"""Builder, heads and width."""


def feeds_of(model: ModelProto) -> dict[str, np.ndarray]:
    feeds = random_inputs(model)
    if "keep" in feeds:
        feeds["keep"][:] = 1
        feeds["keep"][-1, -2:] = 0
    return feeds


def as_exported(model: ModelProto) -> ModelProto:
    """As ONNX Runtime's optimisers look for it: reshapes that keep batch and length, axes added one by one."""
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        sizes = numpy_helper.to_array(tensor)
        if tensor.name in shapes and (len(sizes) == 4 or sizes[1] != 24):
            tensor.CopyFrom(numpy_helper.from_array(np.array([0, 0, *sizes[2:]]), tensor.name))
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Unsqueeze":
            axes = [numpy_helper.from_array(np.array([axis]), f"axis{axis}") for axis in (1, 2)]
            model.graph.initializer.extend(axes)
            model.graph.node.insert(
                index, helper.make_node("Unsqueeze", [node.input[0], "axis1"], ["row"], name="/row")
            )
            model.graph.node[index + 1].input[:] = ["row", "axis2"]
            break
    return model


def by_session(model: ModelProto, kind: str, folder: Path) -> ModelProto:
    """What a session saves at its extended level."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx")


def by_transformers(model: ModelProto, kind: str, folder: Path) -> ModelProto:
    """What onnxruntime.transformers saves."""
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    _, heads, width = NETWORKS[kind]
    onnx.save(model, folder / "plain.onnx")
    made = optimizer.optimize_model(
        str(folder / "plain.onnx"), model_type=kind, num_heads=heads, hidden_size=width, opt_level=0
    )
    made.save_model_to_file(str(folder / "optimised.onnx"))
    return onnx.load(folder / "optimised.onnx")


def launches(compiled: CompiledModel) -> int:
    return len(compiled.explain()["kernels"])


def attentions(compiled: CompiledModel) -> int:
    """Kernels that keep their scores to themselves."""
    return sum("online" in kernel["composition"] for kernel in compiled.explain()["kernels"])


def operators(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}


def run(compiled: CompiledModel, feeds: Mapping[str, np.ndarray], target: str = "cpu") -> dict[str, np.ndarray]:
    with load(compiled.to_bytes(), device=target, num_threads=2 if target == "cpu" else None) as module:
        return dict(module.run(dict(feeds)))


@pytest.mark.parametrize("optimised", [by_session, by_transformers])
@pytest.mark.parametrize("kind", NETWORKS)
def test_optimised_models_are_as_fused_as_plain_ones(
    kind: str, optimised: Callable[[ModelProto, str, Path], ModelProto], tmp_path: Path
) -> None:
    plain = as_exported(NETWORKS[kind][0]())
    model = optimised(plain, kind, tmp_path)
    assert len(operators(model)) >= 2
    feeds = feeds_of(plain)
    (wanted,) = run_ort(plain, feeds)
    ours, before = compile_model(model, "cpu", num_threads=2), compile_model(plain, "cpu", num_threads=2)
    assert_close(run(ours, feeds)["y"], wanted, MODELS["float32"])
    assert attentions(ours) == 2
    assert launches(ours) <= launches(before)


def test_the_optimiser_makes_attention_one_operator_and_we_one_kernel(tmp_path: Path) -> None:
    """Else the test above would show less than it says."""
    assert "Attention" in operators(by_transformers(as_exported(bert()), "bert", tmp_path))
    assert "Attention" in operators(by_transformers(as_exported(vit()), "vit", tmp_path))


def fused_gpt2(past: int) -> ModelProto:
    """Attention as the optimiser writes GPT-2 with a cache: with its projection, causal, and a padding mask."""
    b, batch, rows, hidden, heads = Builder(0), 2, 3, 32, 2
    attended = b.op(
        "Attention", "x", b.weight(hidden, 3 * hidden), b.weight(3 * hidden, scale=0.1), "keep", "past", outputs=2,
        num_heads=heads, unidirectional=1,
    )  # fmt: skip
    b.nodes[-1].output[1] = "present"
    b.nodes.append(helper.make_node("Identity", [attended[0]], ["y"]))
    b.nodes[0].domain = "com.microsoft"
    depth = hidden // heads
    shapes = {"x": [batch, rows, hidden], "past": [2, batch, heads, past, depth]}
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()]
    inputs.append(helper.make_tensor_value_info("keep", onnx.TensorProto.INT32, [batch, past + rows]))
    made = {"y": [batch, rows, hidden], "present": [2, batch, heads, past + rows, depth]}
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in made.items()]
    graph = helper.make_graph(b.nodes, "gpt2", inputs, outputs, b.weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_attention_with_a_cache_is_one_kernel(target: str) -> None:
    model = fused_gpt2(past=4)
    feeds = feeds_of(model)
    compiled = compile_model(model, target, num_threads=2, keep_source=target == "emulator")
    assert attentions(compiled) == 1
    for got, wanted in zip(run(compiled, feeds, target).values(), run_ort(model, feeds), strict=True):
        assert_close(got, wanted, MODELS["float32"])


# -- decoders ------------------------------------------------------------------------------------------------------


def decoder_feeds(model: ModelProto, hidden: int = 0) -> dict[str, np.ndarray]:
    feeds = random_inputs(model)
    feeds["ids"] = np.random.default_rng(1).integers(0, VOCABULARY, feeds["ids"].shape)
    feeds["keep"][:] = 1
    if hidden:
        feeds["keep"][-1, -hidden:] = 0
    return feeds


@pytest.mark.parametrize(
    ("rows", "past", "batch", "room", "hidden"),
    [(5, 0, 1, 0, 0), (5, 0, 2, 8, 0), (1, 5, 1, 0, 0), (1, 5, 2, 9, 0), (1, 5, 2, 5, 2), (3, 4, 1, 0, 0)],
)
def test_a_decoder_of_four_bits(rows: int, past: int, batch: int, room: int, hidden: int) -> None:
    """Prompts, steps, steps of sequences of unequal length, and several tokens after a cache."""
    model = decoder(rows, past, batch, room)
    feeds = decoder_feeds(model, hidden)
    compiled = compile_model(model, "cpu", num_threads=2)
    length = past + rows
    results = run(compiled, feeds)
    for (name, got), wanted in zip(results.items(), run_ort(model, feeds), strict=True):
        if name == "logits":
            assert_close(got, wanted, MODELS["float32"])
            continue
        for b in range(batch):
            used = length - (hidden if b == batch - 1 else 0)
            assert_close(got[b, :, :used], wanted[b, :, :used], MODELS["float32"])
    assert attentions(compiled) == (2 if rows > 1 else 0)  # the rule leaves single queries apart on CPUs
    assert not any(kernel["kind"] == "host" for kernel in compiled.explain()["kernels"])


@pytest.mark.parametrize(("rows", "past"), [(5, 0), (1, 5)])
def test_a_decoder_on_a_gpu(rows: int, past: int) -> None:
    """There a step of a single query is one kernel, too."""
    model = decoder(rows, past)
    feeds = decoder_feeds(model)
    compiled = compile_model(model, "emulator", keep_source=True)
    for got, wanted in zip(run(compiled, feeds, "emulator").values(), run_ort(model, feeds), strict=True):
        assert_close(got, wanted, MODELS["float32"])
    assert attentions(compiled) == 2


def test_tables_that_are_looked_up_stay_packed(tmp_path: Path) -> None:
    compile_model(decoder(1, 5), "cpu", num_threads=2).save(tmp_path / "m.tsm")
    weights = read_artifact(tmp_path / "m.tsm").manifest.weights.values()
    assert (VOCABULARY, 32) in [w.shape for w in weights if w.dtype == "uint8"]


# -- quantisers ----------------------------------------------------------------------------------------------------


class _Calibration:
    """What ONNX Runtime's quantiser asks for inputs."""

    def __init__(self, feeds: Mapping[str, np.ndarray]) -> None:
        self._feeds = iter([dict(feeds)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def assert_checks(path: Path, feeds: Mapping[str, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    """The command's own comparison with ONNX Runtime, unoptimised, within one step of quantisation."""
    artifact = path.with_suffix(".tsm")
    given = []
    for name, value in feeds.items():
        np.save(path.with_name(f"{name}.npy"), value)
        given += ["--input", f"{name}={path.with_name(name)}.npy"]
    assert main.main(["compile", str(path), "-o", str(artifact), "--no-host"]) == errors.OK
    capsys.readouterr()
    code = main.main(["check", str(artifact), str(path), *given, "--json"])
    (y,) = json.loads(capsys.readouterr().out)["outputs"]
    assert y["rule"].startswith("one step of quantisation to 8 bits inside")
    assert (code, y["ok"]) == (errors.OK, True)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("activations", ["QUInt8", "QInt8"])
def test_a_network_of_convolutions_quantised(
    form: str, optimised: bool, activations: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    onnx.save(cnn(opset=17), tmp_path / "plain.onnx")
    feeds = random_inputs(cnn(opset=17))
    path = tmp_path / "m.onnx"
    quantization.quantize_static(
        tmp_path / "plain.onnx", path, _Calibration(feeds), quant_format=quantization.QuantFormat[form],
        activation_type=quantization.QuantType[activations], weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    if optimised:
        onnx.save(by_session(onnx.load(path), "cnn", tmp_path), path)
    if form == "QOperator" or optimised:
        assert sum(name.startswith("QLinear") for name in operators(onnx.load(path))) >= 2
    assert_checks(path, feeds, capsys)


@pytest.mark.parametrize("optimised", [False, True])
def test_a_transformer_quantised_as_it_runs(
    optimised: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    plain = as_exported(bert())
    feeds = feeds_of(plain)
    fused = by_transformers(plain, "bert", tmp_path)
    onnx.save(fused, tmp_path / "fused.onnx")
    path = tmp_path / "m.onnx"
    quantization.quantize_dynamic(
        tmp_path / "fused.onnx", path, weight_type=quantization.QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )  # fmt: skip
    assert "QAttention" in operators(onnx.load(path))
    if optimised:
        onnx.save(by_session(onnx.load(path), "bert", tmp_path), path)
        assert "DynamicQuantizeMatMul" in operators(onnx.load(path))
    assert_checks(path, feeds, capsys)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_quantised_in_blocks(bits: int, tmp_path: Path) -> None:
    module = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    quantizer = module.MatMulNBitsQuantizer(bert(), block_size=16, bits=bits, is_symmetric=False)
    quantizer.process()
    model = quantizer.model.model
    assert "MatMulNBits" in operators(model)
    feeds = feeds_of(bert())
    (wanted,) = run_ort(model, feeds)
    assert_close(run(compile_model(model, "cpu", num_threads=2), feeds)["y"], wanted, MODELS["float32"])
