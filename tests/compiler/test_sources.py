"""What `compile_model` takes for a model: files, bytes, protos, and what PyTorch has."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from tests.models import cnn, random_inputs
from tilestitch.compiler import CompiledModel, compile_model
from tilestitch.compiler.errors import ExportError, OptionError
from tilestitch.compiler.frontend import ModelError, checking
from tilestitch.runtime import load


def assert_computes(compiled: CompiledModel, model: onnx.ModelProto) -> None:
    inputs = random_inputs(model)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    with load(compiled.to_bytes()) as loaded:
        (got,) = loaded.run(None, inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def external(folder: Path) -> onnx.ModelProto:
    """The proto of a model whose weights lie in a file of `folder`, without them."""
    onnx.save(cnn(), folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return onnx.load(folder / "m.onnx", load_external_data=False)


# --- files, bytes, protos ---


def test_a_path_a_proto_and_bytes_are_one_model(tmp_path: Path) -> None:
    model = cnn()
    onnx.save(model, tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    whole = compile_model(model).to_bytes()
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), data, bytearray(data), memoryview(data)):
        assert compile_model(source).to_bytes() == whole


def test_bytes_that_are_no_model() -> None:
    for data in (b"", b"no model", b"\x08"):
        with pytest.raises(ModelError, match="the bytes given"):
            compile_model(data)


def test_external_data_of_a_proto_lies_in_the_folder_that_is_named(tmp_path: Path) -> None:
    proto = external(tmp_path)
    assert_computes(compile_model(proto, external_data=tmp_path), cnn())
    assert_computes(compile_model(proto.SerializeToString(), external_data=str(tmp_path)), cnn())
    with pytest.raises(ModelError, match=r"m\.data.*external_data=FOLDER"):
        compile_model(proto)
    with pytest.raises(ModelError, match="belongs next to the model"):
        compile_model(proto, external_data=tmp_path / "elsewhere")


def test_external_data_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    proto = external(tmp_path)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../m.data"
    with pytest.raises(ModelError, match="not a relative path inside"):
        compile_model(proto, external_data=tmp_path / "inner")


def test_a_proto_larger_than_a_message_is_checked_without_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = cnn(), []
    monkeypatch.setattr(checking, "MOST_MESSAGE_BYTES", 1000)
    check = onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: (sizes.append(model.ByteSize()), check(model)))
    assert_computes(compile_model(model), model)
    assert sizes[0] < model.ByteSize() / 2


def test_anything_else_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for other in (3, None, cnn().graph, np.zeros(3)):
        with pytest.raises(OptionError, match=f"{type(other).__qualname__} cannot be compiled; give the path"):
            compile_model(other)
    onnx.save(cnn(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=r"for a ModelProto or bytes"):
        compile_model(tmp_path / "m.onnx", external_data=tmp_path)
    with pytest.raises(OptionError, match=r"for a torch\.nn\.Module only"):
        compile_model(tmp_path / "m.onnx", example_inputs=np.zeros(3))


def test_an_empty_path_and_a_class_are_told_as_such() -> None:
    with pytest.raises(OptionError, match="path of the model is empty"):
        compile_model("")
    torch = pytest.importorskip("torch")
    for options in ({}, {"example_inputs": torch.zeros(3)}):
        with pytest.raises(OptionError, match="ReLU is a class; give an instance"):
            compile_model(torch.nn.ReLU, **options)


def test_a_compiled_model_is_one_line() -> None:
    compiled = compile_model(cnn())
    kernels = len(compiled.plan.groups)
    assert repr(compiled) == (
        f"<CompiledModel for cpu: {kernels} kernels, (x: float32[1, 3, 16, 16]) -> (y: float32[1, 10])>"
    )


# --- PyTorch ---


@pytest.fixture(scope="module")
def torch() -> Any:
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def network(torch: Any) -> Any:
    """In training mode, as it comes; its dropout and running statistics do nothing in evaluation mode."""

    class Network(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop, self.norm = torch.nn.Linear(16, 8), torch.nn.Dropout(), torch.nn.BatchNorm1d(8)
            self.norm.eval()

        def forward(self, x: Any, scale: Any = None) -> Any:
            y = self.norm(self.drop(self.linear(x)))
            return y if scale is None else y * scale

    torch.manual_seed(0)
    return Network()


@pytest.fixture(scope="module")
def x(torch: Any) -> Any:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


def expected(network: Any, *inputs: Any) -> np.ndarray:
    modes = [part.training for part in network.modules()]
    result: np.ndarray = network.eval()(*inputs).detach().numpy()
    for part, mode in zip(network.modules(), modes):
        part.training = mode
    return result


def quietly(model: Any, **options: Any) -> CompiledModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own
        return compile_model(model, **options)


def assert_gives(compiled: CompiledModel, inputs: Any, want: np.ndarray) -> None:
    with load(compiled.to_bytes()) as loaded:
        (got,) = loaded.run(inputs).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_module_is_compiled_for_evaluation_and_left_as_it_was(torch: Any, network: Any, x: Any) -> None:
    modes = [part.training for part in network.modules()]
    assert any(modes) and not all(modes)
    compiled = quietly(network, example_inputs=x)
    assert [part.training for part in network.modules()] == modes
    assert_gives(compiled, [x], expected(network, x))


def test_a_module_with_named_arguments(torch: Any, network: Any, x: Any) -> None:
    scale = torch.tensor(3.0)
    compiled = quietly(network, example_inputs={"x": x, "scale": scale})
    assert_gives(compiled, {"x": x, "scale": scale}, expected(network, x, scale))


def test_an_exported_program_and_what_becomes_of_it(torch: Any, network: Any, x: Any) -> None:
    want = expected(network, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network.eval(), (x,))
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
    network.train()
    network.norm.eval()
    for model in (program, exported, exported.model_proto):
        assert_gives(quietly(model), [x], want)


def test_open_dimensions_of_an_onnx_program(torch: Any, network: Any, x: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(
            network.eval(), (x,), dynamo=True, verbose=False, dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
    network.train()
    network.norm.eval()
    compiled = quietly(exported, shapes=[{"x": (2, 16)}, {"x": (5, 16)}])
    assert "2 specialisations" in repr(compiled)
    for size in (2, 5):
        given = torch.ones(size, 16)
        assert_gives(compiled, [given], expected(network, given))


def test_modules_that_cannot_be_exported(torch: Any, network: Any, x: Any) -> None:
    with pytest.raises(OptionError, match=r"Network is exported by running it; give example_inputs: a tensor, a tuple"):
        compile_model(network)
    with pytest.raises(ExportError, match=r"cannot export the Network to ONNX \(.+\); see what torch\.onnx\.export"):
        quietly(network, example_inputs=torch.zeros(4, 3))
    assert ExportError("").exit_code == 2


def test_an_exporter_without_its_packages(torch: Any, network: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'onnxscript'")

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(ExportError, match="pip install onnxscript") as caught:
        compile_model(network, example_inputs=x)
    assert caught.value.exit_code == 4
