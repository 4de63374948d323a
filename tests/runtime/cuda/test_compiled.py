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
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
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
    images: list[bytes] = []

    def load_image(stand_in: Any, image: bytes) -> int:
        images.append(bytes(image))
        return int(stand_in._new("module", names))

    monkeypatch.setitem(fake_driver._FUNCTIONS, "cuModuleLoadData", load_image)
    monkeypatch.setattr(fake_driver, "KERNELS", dict.fromkeys(names, lambda *a: None))
    fake.argument_counts.update({launch.symbol: len(launch.args) for launch in launches})
    with load(path, device="cuda") as loaded:
        outputs = loaded.run({"i": np.array([6, 0, -1])})
        assert outputs["y"].shape == (3, 5)
        assert [time.symbol for time in loaded.profile({"i": np.zeros(3, np.int64)})] == names
    assert all(image[:4] == b"\x7fELF" for image in images)
    assert {origin for launch in launches for origin in launch.origins} == {"rows", "product", "softmax"}
