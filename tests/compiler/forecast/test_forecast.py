"""Forecasts: the kernels that PyTorch would launch, totals with intervals, memory, GPUs from files, sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilestitch.compiler.cli.main import main
from tilestitch.compiler.errors import ForecastError
from tilestitch.compiler.forecast.forecast import RUNTIMES, Runtime, forecast
from tilestitch.compiler.forecast.gpus import find_gpu
from tilestitch.compiler.forecast.pytorch import Launch, compiled, eager
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.devices import DeviceError

BATCH, WIDTH = 64, 96


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def model(
    nodes: list[Any], weights: list[onnx.TensorProto], shape: Any = (BATCH, WIDTH), dtype: int = 1
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], name=f"/{op}_{output}", **attributes)


def graph_of(nodes: list[Any], weights: list[onnx.TensorProto], shape: Any = (BATCH, WIDTH), dtype: int = 1) -> Graph:
    return import_model(model(nodes, weights, shape, dtype)).graph


def kinds(launches: list[Launch]) -> list[tuple[str, tuple[int, ...]]]:
    return [(launch.kernel.kernel_class, launch.kernel.sizes) for launch in launches]


LAYER = (
    [
        node("MatMul", "x w", "a"),
        node("Add", "a b", "h"),
        node("Gelu", "h", "g"),
        node("Add", "g x", "s"),
        node("LayerNormalization", "s scale b", "y"),
    ],
    [weight("w", WIDTH, WIDTH), weight("b", WIDTH), weight("scale", WIDTH)],
)


# -- kernels -----------------------------------------------------------------------------------------------------------


def test_a_bias_is_part_of_its_gemm_and_every_other_node_is_a_kernel() -> None:
    launches = eager(graph_of(*LAYER))
    assert kinds(launches) == [
        ("linear", (1, BATCH, WIDTH, WIDTH)), ("elementwise", (BATCH, WIDTH)), ("elementwise", (BATCH, WIDTH)),
        ("layernorm", (BATCH, WIDTH)),
    ]  # fmt: skip
    assert [launch.kernel.op for launch in launches] == ["linear", "gelu", "add", "ln"]


def test_a_compiler_merges_what_lies_between_gemms() -> None:
    gemm, rest = compiled(graph_of(*LAYER))
    assert gemm.kernel.kernel_class == "linear"
    assert rest.kernel.kernel_class == "layernorm"
    assert rest.nodes == ("/Gelu_g", "/Add_s", "/LayerNormalization_y")
    tensors = rest.kernel.sizes[0] * WIDTH * 4 * 2 / (BATCH * WIDTH * 4)
    assert 3 <= tensors < 3.1  # the GEMM's result and the residual in, one out, and a little for the weights


def test_a_value_that_two_read_is_stored() -> None:
    nodes = [node("Tanh", "x", "t"), node("Relu", "t", "r"), node("Add", "t r", "y")]
    assert [launch.nodes for launch in compiled(graph_of(nodes, []))] == [("/Tanh_t",), ("/Relu_r", "/Add_y")]


def test_a_batched_gemm_copies_operands_that_are_permuted() -> None:
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1, 3]), node("MatMul", "t t", "y")]
    launches = eager(graph_of(nodes, [], (2, 16, 4, 16)))
    copied = ("copy", (2 * 16 * 4 * 16 * 4,) * 2)
    assert kinds(launches) == [copied, copied, ("bmm", (8, 16, 16, 16))]


def test_views_launch_nothing_but_where_a_reshape_meets_a_permutation() -> None:
    shape = numpy_helper.from_array(np.array([BATCH * WIDTH]), "shape")
    assert eager(graph_of([node("Reshape", "x shape", "y")], [shape])) == []
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), node("Reshape", "t shape", "y")]
    assert kinds(eager(graph_of(nodes, [shape]))) == [("copy", (BATCH * WIDTH * 4,) * 2)]


def test_softmax_is_one_kernel_over_its_axis() -> None:
    assert kinds(eager(graph_of([node("Softmax", "x", "y", axis=-1)], []))) == [("softmax", (BATCH, WIDTH))]


@pytest.mark.parametrize(
    ("attributes", "filters", "expected"),
    [
        ({"pads": [1, 1, 1, 1]}, (8, 4, 3, 3), ("conv", (2, 4, 8, 3, 3, 10, 10, 1))),
        ({"strides": [2, 1]}, (8, 4, 3, 5), ("conv", (2, 4, 8, 3, 5, 4, 6, 0))),
        ({}, (8, 4, 1, 1), ("linear", (1, 200, 4, 8))),
        ({"group": 2}, (8, 2, 3, 3), ("bmm", (2, 128, 18, 4))),
    ],
)
def test_a_convolution_of_images_is_one_and_others_are_gemms(attributes: Any, filters: Any, expected: Any) -> None:
    launches = eager(graph_of([node("Conv", "x w", "y", **attributes)], [weight("w", *filters)], (2, 4, 10, 10)))
    assert kinds(launches) == [expected]


def test_what_constants_alone_make_is_no_kernel() -> None:
    nodes = [node("Tanh", "w", "t"), node("Add", "x t", "y")]
    assert len(eager(graph_of(nodes, [weight("w", BATCH, WIDTH)]))) == 1


def test_data_types_that_were_not_measured_are_refused() -> None:
    half = numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.float16), "w")
    graph = graph_of([node("MatMul", "x w", "y")], [half], dtype=TensorProto.FLOAT16)
    with pytest.raises(ForecastError, match=r"/MatMul_y multiplies float16.*--runtime tilestitch"):
        eager(graph)


def test_open_sizes_are_refused() -> None:
    graph = graph_of([node("Relu", "x", "y")], [], ("n", WIDTH))
    with pytest.raises(ForecastError, match=r"/Relu_y.*--shape"):
        eager(graph)
    with pytest.raises(ForecastError, match=r"input x is float32\[n,.*--shape x="):
        forecast(graph, find_gpu("h100"), "tilestitch")


# -- totals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_total_lies_in_its_interval_and_no_kernel_takes_no_time(runtime: Runtime) -> None:
    found = forecast(graph_of(*LAYER), find_gpu("h100"), runtime)
    assert 0 < found.low_us <= found.total_us <= found.high_us
    assert all(0 < k.low_us <= k.us <= k.high_us and k.bound for k in found.kernels)
    assert found.weights_bytes >= 4 * WIDTH * WIDTH and found.values_bytes >= 2 * 4 * BATCH * WIDTH
    assert found.fits


def test_a_model_that_the_memory_does_not_hold_is_forecast_and_said_not_to_fit() -> None:
    nodes = [node("Relu", "x", "y")]
    assert not forecast(graph_of(nodes, [], (2**17, 2**15)), find_gpu("l4"), "pytorch").fits


def test_values_that_are_alive_together_count_together() -> None:
    nodes = [node("Tanh", "x", "a"), node("Relu", "a", "b"), node("Tanh", "b", "y")]
    found = forecast(graph_of(nodes, []), find_gpu("h100"), "pytorch")
    assert found.values_bytes == 4 * (4 * BATCH * WIDTH)  # x and y, and a beside b


def test_a_share_of_a_gpu_is_planned_and_forecast_for_itself() -> None:
    graphs = [graph_of([node("MatMul", "x w", "y")], [weight("w", WIDTH, 2048)], (2048, WIDTH)) for _ in range(3)]
    whole, half, eighth = (
        forecast(graph, find_gpu(gpu), "tilestitch") for graph, gpu in zip(graphs, ("H200", "h200/66", "h200/8"))
    )
    assert whole.total_us < half.total_us < eighth.total_us
    assert [one.to_json()["device"] for one in (whole, half, eighth)] == ["H200", "H200/66", "H200/8"]
    with pytest.raises(ForecastError, match="PyTorch was measured on whole GPUs only; leave out /8 of H200/8"):
        forecast(graphs[2], find_gpu("h200/8"), "pytorch")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h200/", "'' is no number of multiprocessors; write h200/32 for 32 of H200's"),
        ("h200/x", "'x' is no number"),
        ("h200/133", "H200 has 132 multiprocessors, of which 133 were asked for"),
    ],
)
def test_a_share_that_is_none(name: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        find_gpu(name)


def test_precision_is_ours_only() -> None:
    with pytest.raises(ForecastError, match="--precision"):
        forecast(graph_of(*LAYER), find_gpu("h100"), "pytorch", "fp16")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "y")]
    target = tmp_path / "m.onnx"
    onnx.save(model(nodes, [weight("w", WIDTH, WIDTH)], ("batch", WIDTH)), target)
    return target


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_sweep_gives_each_size_on_each_gpu(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("predict", path, "--device", "h100,t4", "--runtime", "pytorch", "--sweep", "batch=1,4096")
    found = answer(capsys, *command, "--json")["forecasts"]
    assert [(one["batch"], one["device"]) for one in found] == [
        (1, "H100 SXM"), (1, "T4"), (4096, "H100 SXM"), (4096, "T4"),
    ]  # fmt: skip
    assert found[2]["total_us"] < found[3]["total_us"]
    assert main([str(word) for word in command]) == 0
    assert "batch/s" in capsys.readouterr().out


def test_a_gpu_may_be_a_data_sheet(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = {
        "gpu": "Next", "compute_capability": 9.0, "sm_count": 264, "boost_clock_mhz": 2500, "fp32_gflops": 169000,
        "dram_bandwidth_gb_s": 9000, "dram_gb": 300, "l2_mb": 100, "tdp_w": 1500, "process_nm": 3,
    }  # fmt: skip
    given = path.with_name("next.json")
    given.write_text(json.dumps(sheet))
    for runtime in RUNTIMES:
        shape = ("--shape", f"x=32768x{WIDTH}", "--runtime", runtime, "--json")
        found = answer(capsys, "predict", path, "--device", f"{given},h100", *shape)["forecasts"]
        assert found[0]["device"] == "Next"
        assert found[0]["total_us"] < found[1]["total_us"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--device", "h99"), "no GPU called 'h99'"),
        (("--device", ","), "the name of a GPU is missing"),
        (("--device", "none.json"), "no such file"),
        (("--device", "h100", "--sweep", "length=1"), "no input has a dimension length; its open dimensions: batch"),
        (("--device", "h100", "--runtime", "pytorch"), "--shape"),
    ],
)
def test_wrong_options_say_what_to_do(
    path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], told: str
) -> None:
    assert main(["predict", str(path), *options]) in (1, 2)
    found = capsys.readouterr().err
    assert told in found and "internal error" not in found


def test_text_shows_what_takes_longest(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--shape", f"x=64x{WIDTH}")
    assert main(["predict", str(path), "--device", "h100", "--runtime", "pytorch", *shape]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("H100 SXM, pytorch: ") and "/MatMul_a" in shown and "bound by" in shown
