"""What the compiler writes for a GPU is what the runtime reads: models bind and run, with kernels that do nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.runtime.cuda import conftest

if not conftest.HAS_BINDINGS or importlib.util.find_spec("nvidia") is None:
    pytest.skip("needs cuda-bindings and NVRTC", allow_module_level=True)

from tests.cost_models import Preferring
from tests.runtime.cuda import fake_driver
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.program import DeviceLaunch, DeviceStep


def model() -> Any:
    """Rows of a table by index, times a matrix, softmax: weights, an index that can be wrong, and several kernels."""
    rng = np.random.default_rng(0)
    table, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 8), (8, 5)))
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["x"], name="rows"),
        helper.make_node("MatMul", ["x", "w"], ["p"], name="gemm"),
        helper.make_node("Softmax", ["p"], ["y"], axis=-1, name="softmax"),
    ]
    graph = helper.make_graph(
        nodes, "m",
        [helper.make_tensor_value_info("i", TensorProto.INT64, (3,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 5))],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def launches_of(path: Path) -> list[DeviceLaunch]:
    programs = read_artifact(path).programs
    return [x for p in programs for step in p.steps if isinstance(step, DeviceStep) for x in step.launches]


def test_a_compiled_model_binds_and_runs(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compile_model(model(), target="cuda:sm_90a").save(tmp_path / "m.tsm")
    launches = launches_of(path)
    names = [launch.symbol for launch in launches]
    images = idle_kernels(fake, launches, monkeypatch)
    with load(path, device="cuda") as loaded:
        outputs = loaded.run({"i": np.array([6, 0, -1])})
        assert outputs["y"].shape == (3, 5)
        assert [time.symbol for time in loaded.profile({"i": np.zeros(3, np.int64)})] == names
    assert all(image[:4] == b"\x7fELF" for image in images)
    assert {origin for launch in launches for origin in launch.origins} == {"rows", "gemm", "softmax"}


def idle_kernels(fake: Any, launches: list[DeviceLaunch], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Let the stand-in take any machine code; returns what it was given."""
    names, images = [launch.symbol for launch in launches], list[bytes]()

    def load_image(stand_in: Any, image: bytes) -> int:
        images.append(bytes(image))
        return int(stand_in._new("module", names))

    monkeypatch.setitem(fake_driver._FUNCTIONS, "cuModuleLoadData", load_image)
    monkeypatch.setattr(fake_driver, "KERNELS", dict.fromkeys(names, lambda *a: None))
    fake.argument_counts.update({launch.symbol: len(launch.args) for launch in launches})
    return images


def wide_layers() -> Any:
    """Two layers of half floats, the second one's weights transposed."""
    rng = np.random.default_rng(0)
    up, down = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 256), (64, 256)))
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"], name="up"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Transpose", ["down"], ["t"], perm=[1, 0], name="transposed"),
        helper.make_node("MatMul", ["r", "t"], ["y"], name="down"),
    ]
    graph = helper.make_graph(
        nodes, "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, (40, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, (40, 64))],
        [numpy_helper.from_array(up, "up"), numpy_helper.from_array(down, "down")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_tensor_maps_of_a_compiled_model_are_encoded(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of each GEMM's operands; those over the input again when an array on the GPU is bound."""
    compiled = compile_model(wide_layers(), target="cuda:sm_90a", passes=[Preferring("wgmma")])
    path = compiled.save(tmp_path / "m.tsm")
    launches = launches_of(path)
    assert [launch.symbol.rsplit("_", 1)[0] for launch in launches] == ["gemm_wgmma", "gemm_wgmma"]
    idle_kernels(fake, launches, monkeypatch)
    x = np.zeros((40, 64), np.float16)
    with load(path, device="cuda") as loaded:
        on_gpu = loaded.run({"x": x}, on_device=True)["y"]
        assert len(fake.named("cuTensorMapEncodeTiled")) == 4
        loaded.run({"x": on_gpu})
        assert [arguments[2] for arguments in fake.named("cuTensorMapEncodeTiled")][4:] == [on_gpu.address]
