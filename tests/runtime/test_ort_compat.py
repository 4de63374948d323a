"""ONNX Runtime's interface over an artifact; every program here runs the same on ONNX Runtime itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.programs import contents, increment_program
from tilestitch.runtime import ort_compat
from tilestitch.runtime.artifact_writer import write_artifact
from tilestitch.runtime.errors import DeviceError, ExecutionError, InputError, NotAnArtifactError
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.ort_compat.session import device_of
from tilestitch.runtime.types import MapType, OptionalType, SequenceType, TensorType

X = np.arange(4, dtype=np.float32)
W = np.array([10, 20, 30, 40], np.float32)


def onnx_file(folder: Path) -> Path:
    """The model of `increment_program`: u = x + 2, and the constant w."""
    import onnx

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        increment (float[4] x) => (float[4] u, float[4] w) <float[4] c = {10, 20, 30, 40}, float two = {2}> {
          u = Add (x, two)
          w = Identity (c)
        }"""
    )
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.fixture(params=["tilestitch", "onnxruntime"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """What a program imports as `onnxruntime`, and the file that it loads."""
    if request.param == "onnxruntime":
        return pytest.importorskip("onnxruntime"), str(onnx_file(tmp_path))
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(increment_program(), weights={"w": W}))
    return ort_compat, str(path)


@pytest.fixture
def ort(engine: tuple[Any, str]) -> Any:
    return engine[0]


@pytest.fixture
def session(engine: tuple[Any, str]) -> Any:
    library, path = engine
    options = library.SessionOptions()
    options.intra_op_num_threads = 2
    options.inter_op_num_threads = 1
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = library.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return library.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])


def test_a_service(session: Any) -> None:
    name = session.get_inputs()[0].name
    u, w = session.run(None, {name: X})
    np.testing.assert_array_equal(u, X + 2)
    np.testing.assert_array_equal(w, W)
    np.testing.assert_array_equal(session.run(["w"], {name: X})[0], W)
    assert len(session.run([], {name: X})) == 2
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_session_options().intra_op_num_threads == 2
    assert session.get_modelmeta().graph_name == "increment"
    assert session.get_overridable_initializers() == []


def test_inputs_and_outputs_are_described(session: Any) -> None:
    (x,) = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", [4])
    assert [(y.name, y.type, y.shape) for y in session.get_outputs()] == [
        ("u", "tensor(float)", [4]),
        ("w", "tensor(float)", [4]),
    ]


def test_a_model_from_bytes(engine: tuple[Any, str]) -> None:
    library, path = engine
    session = library.InferenceSession(Path(path).read_bytes(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["u"], {"x": X})[0], X + 2)


def test_outputs_in_new_memory(session: Any) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("w")
    binding.bind_output("u", "cpu")
    session.run_with_iobinding(binding)
    w, u = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(w, W)
    np.testing.assert_array_equal(u, X + 2)
    assert [value.shape() for value in binding.get_outputs()] == [[4], [4]]


def test_memory_of_the_callers(session: Any, ort: Any) -> None:
    x, u, w = X.copy(), np.empty(4, np.float32), np.empty(4, np.float32)
    given, taken = ort.OrtValue.ortvalue_from_numpy(x), ort.OrtValue.ortvalue_from_shape_and_type([4], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_output("u", "cpu", 0, np.float32, u.shape, u.ctypes.data)
    binding.bind_ortvalue_output("w", taken)
    for offset in (0, 5):
        given.update_inplace(X + np.float32(offset))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(u, X + 2 + offset)
        np.testing.assert_array_equal(taken.numpy(), W)
    binding.clear_binding_inputs()
    binding.bind_input("x", "cpu", 0, np.float32, w.shape, W.ctypes.data)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(u, W + 2)


def test_ort_values(session: Any, ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.shape(), value.data_type(), value.element_type(), value.device_name()) == (
        [4], "tensor(float)", 1, "cpu",
    )  # fmt: skip
    assert (value.is_tensor(), value.has_value(), value.is_tensor_sequence()) == (True, True, False)
    assert value.tensor_size_in_bytes() == 16
    (u,) = session.run_with_ort_values(["u"], {"x": value})
    np.testing.assert_array_equal(u.numpy(), X + 2)


def test_results_by_callback(session: Any) -> None:
    done, told = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        told.append((results, user_data, error))
        done.set()

    session.run_async(["u"], {"x": X}, callback, "mine")
    assert done.wait(30)
    ((results, user_data, error),) = told
    np.testing.assert_array_equal(results[0], X + 2)
    assert (user_data, error) == ("mine", "")


def test_providers_that_exist(ort: Any) -> None:
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert set(ort.get_available_providers()) <= set(ort.get_all_providers())
    assert ort.get_device() in ("CPU", "GPU")


# --- what is ours alone ---


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "m.tsm", contents(increment_program(), weights={"w": W}))
    return tmp_path / "m.tsm"


def test_mistakes_are_explained(artifact: Path) -> None:
    session = ort_compat.InferenceSession(artifact)
    with pytest.raises(InputError, match="no output 'v'"):
        session.run(["v"], {"x": X})
    with pytest.raises(InputError, match="missing x"):
        session.run(None, {})
    binding = session.io_binding()
    with pytest.raises(ExecutionError, match="nothing was run"):
        binding.get_outputs()
    binding.bind_cpu_input("x", X)
    binding.bind_output("v")
    with pytest.raises(InputError, match="no output 'v'"):
        session.run_with_iobinding(binding)
    with pytest.raises(DeviceError, match="no memory is made on cuda"):
        ort_compat.OrtValue.ortvalue_from_numpy(X, "cuda")
    with pytest.raises(InputError, match=r"float32\[4\], not float64\[4\]"):
        ort_compat.OrtValue(X.copy()).update_inplace(X.astype(np.float64))
    with pytest.raises(AttributeError):
        ort_compat.SessionOptions().no_such_method()  # type: ignore[attr-defined]


def test_an_onnx_model_is_to_be_compiled_first(tmp_path: Path) -> None:
    with pytest.raises(NotAnArtifactError, match=r"tilestitch compile .*m\.onnx -o MODEL\.tsm"):
        ort_compat.InferenceSession(onnx_file(tmp_path))


def test_options_that_do_nothing_say_so(artifact: Path) -> None:
    options = ort_compat.SessionOptions()
    options.enable_profiling = True
    options.optimized_model_filepath = "optimised.onnx"
    with pytest.warns(UserWarning, match="tilestitch runs a compiled model") as warned:
        ort_compat.InferenceSession(artifact, options)
    assert "no profile is written" in str(warned[0].message)
    assert "optimised.onnx is not written" in str(warned[1].message)
    with pytest.warns(UserWarning, match="--shape"):
        options.add_free_dimension_override_by_name("batch", 1)


def test_another_provider_than_the_cpu(artifact: Path) -> None:
    with pytest.warns(UserWarning, match="compiled for the CPU and runs there, not by CUDAExecutionProvider"):
        session = ort_compat.InferenceSession(artifact, providers=["CUDAExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("given", "options", "device"),
    [
        (None, None, "cuda"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], None, "cuda:0"),
        ([("CUDAExecutionProvider", {"device_id": 1})], None, "cuda:1"),
        ([("TensorrtExecutionProvider", {"device_id": "2"}), "CPUExecutionProvider"], None, "cuda:2"),
        (["CUDAExecutionProvider"], [{"device_id": 3}], "cuda:3"),
    ],
)
def test_providers_name_the_gpu(given: Any, options: Any, device: str) -> None:
    assert device_of("cuda", given, options) == device


def test_an_artifact_for_gpus_needs_their_provider(tmp_path: Path) -> None:
    made = contents(increment_program(), weights={"w": W}, kernels=b"")
    gpu = TargetInfo("cuda", architectures=("sm_90a",))
    write_artifact(tmp_path / "m.tsm", replace(made, target=gpu))
    with pytest.raises(DeviceError, match="compiled for a GPU, but the providers are CPUExecutionProvider"):
        ort_compat.InferenceSession(tmp_path / "m.tsm", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (TensorType("float64", ()), "tensor(double)"),
        (TensorType("float8_e4m3fn", None), "tensor(float8e4m3fn)"),
        (SequenceType(TensorType("int64", (2,))), "seq(tensor(int64))"),
        (SequenceType(MapType("string", "float32")), "seq(map(string,tensor(float)))"),
        (OptionalType(SequenceType(TensorType("string", None))), "optional(seq(tensor(string)))"),
    ],
)
def test_names_of_types(type_: Any, name: str) -> None:
    from tilestitch.runtime.ort_compat.values import type_name

    assert type_name(type_) == name


def test_tensors_of_torch_are_ort_values(artifact: Path) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4.0, requires_grad=True)
    value = ort_compat.OrtValue.from_dlpack(tensor)
    assert value.data_ptr() == tensor.data_ptr()
    session = ort_compat.InferenceSession(artifact)
    np.testing.assert_array_equal(session.run(["u"], {"x": value})[0], X + 2)
